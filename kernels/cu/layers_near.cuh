// Attention inside `layers_small.cu`: queries, keys and values come from the blocks of the cluster,
// and what was attended goes to them.
#pragma once
#include "layers_small.cuh"

#ifdef HOPPER

template <int PAIRS>
DEV bool load_head(Raw<PAIRS>& raw, const Near& p, int row, int position, int head) {
  static_assert(PAIRS == 1, "heads of 64");
  const int lane = thread() % WARP;
  int within = head - p.kv_head * p.group;
  if (p.rope.heads <= head) within = p.group + (p.rope.heads + p.rope.kv_heads <= head);
  const int at = row - p.first_row;
  const float* from = p.raw + (at * (p.group + 2) + within) * 64 + lane;
  raw.values.low[0] = from[0], raw.values.high[0] = from[WARP];
  raw.turns[0] = p.turns[at * WARP + lane];
  return true;
}

template <int HEAD>
DEV void store_row(const Near& p, uint2 span, int kv_head, int row, int at, float low,
                   float high) {
  if (row >= span.y * p.group) return;
  const u32 word = pack_bf16(low, high);
  send_to_all(word_of(p.inner, span.x + row / p.group, row % p.group * HEAD + at), word,
              p.inner_there);
}

// Turns `heads` of the rows' own queries, keys and values from head `first` on, which stand in this
// order; keys and values to their places among those of the chunk from `key0` on.
DEV void turn_near(Keys& s, const Near& p, const Text& text, int key0, int first, int heads) {
  const int me = again(threadIdx.x), lane = me % WARP, all = text.span.y * heads;
  int at = 0, left = me / WARP;
  for (int one = left; one < all; one += WARPS, left += WARPS) {
    while (heads <= left) left -= heads, ++at;
    const int within = first + left;
    const bool is_q = within < p.group;
    const int key = text.start + at - key0;
    if (!is_q && (text.rows <= at || key < 0 || CHUNK <= key)) continue;
    int head = p.kv_head * p.group + within;
    if (!is_q) head = p.rope.heads + (within - p.group) * p.rope.kv_heads + p.kv_head;
    const float* from = p.raw + (at * (p.group + 2) + within) * 64 + lane;
    Raw<1> raw;
    raw.values.low[0] = from[0], raw.values.high[0] = from[WARP];
    raw.turns[0] = p.turns[at * WARP + lane];
    Head<1> turned = {};
    if (at < text.rows && p.rope.behind <= text.start + at) {
      turned = turned_head(p.rope, raw, head);
    }
    bf16* to = is_q ? s.q : within == p.group ? s.k : s.v;
    const int line = is_q ? at * p.group + within : key;
    *(chunk_at<64>(to, line, lane / 8) + lane % 8) = to_bf16(turned.low[0]);
    *(chunk_at<64>(to, line, lane / 8 + 4) + lane % 8) = to_bf16(turned.high[0]);
  }
}

// The rows' own keys and values in the chunk from `key0` on to their pages.
DEV void keep_near(const Hub& hub, const Near& p, const Text& text, Keys& s, int key0) {
  const int i = again(threadIdx.x), row = i / 16, is_v = i / 8 % 2, chunk = i % 8;
  const int position = text.start + row, key = position - key0;
  if (text.rows <= row || key < 0 || CHUNK <= key) return;
  const bf16* from = chunk_at<64>(is_v ? s.v : s.k, key, chunk);
  const size_t slot = slot_of(p.rope, hub.own_pages[row], is_v, p.kv_head, position, 64);
  *(uint4*)(p.rope.layer + slot + within_slot(position, chunk * 8)) = *(const uint4*)from;
}

// What a warp multiplies of a tile of keys: weights, and its eighth of the values.
struct Tile {
  u32 weights[4][4], values[2][4];

  MEMBER void load(Keys& s, int at, int lane, int warp) {
#pragma unroll
    for (int two = 0; two < 2; ++two) {
      const bf16* first = chunk_at<64>(s.v, lane, warp);
      load_tiles_transposed(values[two], first + (at * KEYS + two * 32) * 64);
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const bf16* first = chunk_at<CHUNK>(s.weights, lane % 16, step * 2 + lane / 16);
      load_tiles(weights[step], first + at * KEYS);
    }
  }
};

// `raise_to_tile` and `add_values` for `tiles` tiles, which are loaded ahead.
DEV void add_tiles(Part<64, 1, WARPS>& part, Keys& s, int tiles, int halves, float scale) {
  const int me = again(threadIdx.x), lane = me % WARP, warp = me / WARP, row = lane / 4;
  float by[2][TILE_COUNT] = {};
  Tile tile[2];
  tile[0].load(s, 0, lane, warp);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (halves <= half) break;
    float most[TILE_COUNT];
#pragma unroll
    for (int at = 0; at < TILE_COUNT; ++at) {
      most[at] = fmaxf(s.most[at * 2][half * 8 + row], s.most[at * 2 + 1][half * 8 + row]);
    }
    float now = NEGATIVE_INFINITY;
#pragma unroll
    for (int at = 0; at < TILE_COUNT; ++at) {
      const float next = fmaxf(now, most[at]);
      by[half][at] = shrink(now, next, scale);
      now = next;
    }
    part.most[0][half] = now;
  }
#pragma unroll
  for (int at = 0; at < TILE_COUNT; ++at) {
    if (tiles <= at) break;
    // The one behind the last is read for nothing.
    if (at + 1 < TILE_COUNT) tile[(at + 1) % 2].load(s, at + 1, lane, warp);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (halves <= half) break;
#pragma unroll
      for (int i = half * 2; i < half * 2 + 2; ++i) {
        part.weights[0][i] *= by[half][at], part.sums[0][0][i] *= by[half][at];
      }
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const Tile& now = tile[at % 2];
      mma(part.weights[0], now.weights[step], ONES, ONES);
      mma(part.sums[0][0], now.weights[step], now.values[step / 2][step % 2 * 2],
          now.values[step / 2][step % 2 * 2 + 1]);
    }
  }
}

// Results of a packed row to all blocks, of four lanes eight values from `at` on. A warp calls it.
DEV void send_attended(Hub& hub, int row, int at, float low, float high, bool is_there) {
  const u32* to = hub.inner[0][0] + hub.packed[row] + at / 8 * HALF;
  send_four(to, pack_bf16(low, high), &hub.inner_there, is_there);
}

// A chunk's part to the block that merges them.
DEV void send_part(Hub& hub, float* merged, const Part<64, 1, WARPS>& part, int chunk, int rows) {
  const int me = again(threadIdx.x), lane = me % WARP, warp = me / WARP;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + lane / 4;
    if (rows <= row) continue;
    float* to = merged + (chunk * rows + row) * LINE;
    const float2 sums = make_float2(part.sums[0][0][half * 2], part.sums[0][0][half * 2 + 1]);
    send(to + warp * 8 + lane % 4 * 2, sums, &hub.parts_there, hub.merger);
    if (warp != 0 || lane % 4 != 0) continue;
    const float2 rest = make_float2(part.weights[0][half * 2], part.most[0][half]);
    send(to + 64, rest, &hub.parts_there, hub.merger);
  }
}

// Merges a layer's chunks, from left to right: see `merge_parts`.
DEV void merge_near(Hub& hub, const float* merged, int index, int rows, float scale) {
  wait_for(&hub.parts_there, index & 1);
  for (int i = again(threadIdx.x); i < rows * WARP; i += THREADS) {
    const int row = i / WARP, at = i % WARP * 2;
    float most = NEGATIVE_INFINITY, weights = 0.0f, low = 0.0f, high = 0.0f;
    for (int chunk = 0; chunk < hub.text.chunks; ++chunk) {
      const float* from = merged + (chunk * rows + row) * LINE;
      const float2 sums = *(const float2*)(from + at), rest = *(const float2*)(from + 64);
      float mine, theirs;
      most = merge_most(most, rest.y, scale, mine, theirs);
      weights = merge(weights, mine, rest.x, theirs);
      low = merge(low, mine, sums.x, theirs);
      high = merge(high, mine, sums.y, theirs);
    }
    send_attended(hub, row, at, divide(low, weights), divide(high, weights), true);
  }
}

// Results of rows whose one chunk this is.
DEV void send_whole(Hub& hub, const Part<64, 1, WARPS>& part, int rows, int halves) {
  const int me = again(threadIdx.x), lane = me % WARP, warp = me / WARP;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (halves <= half) break;
    const int row = half * 8 + lane / 4;
    // Adding it to nothing leaves it as it is, but no zero below zero.
    const float* pair = &part.sums[0][0][half * 2];
    const float weights = part.weights[0][half * 2];
    send_attended(hub, row, warp * 8, divide(__fadd_rn(pair[0], 0.0f), weights),
                  divide(__fadd_rn(pair[1], 0.0f), weights), row < rows);
  }
}

// `attend_rows` where each of the text's chunks has a block.
DEV void attend_near(Hub& hub, const Near& p, const NearText& text, Keys& s, int index,
                     const Layers& of) {
  const int key0 = hub.part * CHUNK, rows = text.span.y * p.group, halves = rows <= 8 ? 1 : 2;
  turn_near(s, p, text, key0, 0, p.group + 2);
  __syncthreads();
  float scores[1][4][4];
  score(scores, s, key0, p, text, halves);
  __syncthreads();
  weigh(scores, s, p, halves);
  __syncthreads();
  Part<64, 1, WARPS> part;
  part.clear();
  add_tiles(part, s, min((text.keys - key0 + KEYS - 1) / KEYS, TILE_COUNT), halves, p.scale_log2);
  if (1 < hub.parts) {
    float* const merged = merged_of(hub, of);
    send_part(hub, merged, part, hub.part, rows);
    if (hub.part == 0) merge_near(hub, merged, index, rows, p.scale_log2);
  } else {
    send_whole(hub, part, rows, halves);
  }
}

// One of a block's chunks, the first or a later one, where it has several.
DEV void attend_to_chunk(Hub& hub, Keys& s, int chunk, float* merged) {
  const Near& p = hub.near;
  const NearText& text = hub.text;
  const int key0 = chunk * CHUNK, next = chunk + hub.parts;
  const int rows = text.span.y * p.group, halves = rows <= 8 ? 1 : 2;
  const bool is_first = chunk == hub.part, has_next = next < text.chunks;
  // The rows' own keys go to their pages before others take their places.
  const bool is_early = has_next && key0 + CHUNK <= text.start;
  turn_near(s, p, text, key0, is_first ? 0 : p.group, is_first ? p.group + 2 : 1);
  __syncthreads();
  float scores[1][4][4];
  score(scores, s, key0, p, text, halves);
  __syncthreads();
  if (is_early) copy_chunk<64>(s.k, p, text, p.kv_head, 0, next);
  weigh(scores, s, p, halves);
  if (!is_first) {
    // Values may come later than keys.
    if (is_early) copies_wait<1>();
    else copies_wait<0>();
    __syncthreads();
    turn_near(s, p, text, key0, p.group + 1, 1);
  }
  __syncthreads();
  Part<64, 1, WARPS> part;
  part.clear();
  add_tiles(part, s, min((text.keys - key0 + KEYS - 1) / KEYS, TILE_COUNT), halves, p.scale_log2);
  send_part(hub, merged, part, chunk, rows);
  if (!has_next) return;
  __syncthreads();
  if (!is_early) {
    keep_near(hub, p, text, s, key0);
    __syncthreads();
    copy_chunk<64>(s.k, p, text, p.kv_head, 0, next);
  }
  copy_chunk<64>(s.v, p, text, p.kv_head, 1, next);
  copies_wait<1>();
  __syncthreads();
}

// `attend_near` where a block may have several chunks.
DEV void attend_chunks(Hub& hub, Keys& s, int index, const Layers& of) {
  float* const merged = merged_of(hub, of);
#pragma unroll 1
  for (int chunk = hub.part; chunk < hub.text.chunks; chunk += hub.parts) {
    attend_to_chunk(hub, s, chunk, merged);
  }
  const int rows = hub.text.span.y * hub.near.group;
  if (hub.part == 0) merge_near(hub, merged, index, rows, hub.near.scale_log2);
}
#endif
