// What the kernels for a few rows of each sequence share: where a block stands, the turning of
// the rows' own queries, keys and values, softmax parts and their merge.
//
// Queries, and the rows' own keys and values, come straight from the product before and are turned
// here; the keys and values also go to their pages. The rows and query heads that share a kv head
// fill the tensor cores' 16-row side (packed row i is row i / group, head i % group).
#pragma once
#include "attend.cuh"

#define ROWS_MAX 8   // of a sequence

// One sequence's rows: known before the product that makes their queries has ended.
struct Text {
  uint2 span;         // first row and number of rows
  const u32* pages;
  int start;          // position of the first row
  int rows;           // those that exist
  int keys;           // start + rows
  int chunks;
  u32 own_page;       // a lane's: the page of its row

  // Keys that a packed row sees.
  MEMBER int end_of(int packed, int group) const {
    int row = packed / group;
    return row < rows ? start + row + 1 : 0;
  }
};

// Every warp finds it by itself.
DEV Text find_text(const Attend& p) {
  const int lane = thread() % WARP;
  Text text;
  text.span = p.spans[blockIdx.z];
  const bool is_row = lane < text.span.y;
  const i32 position = is_row ? p.rope.positions[text.span.x + lane] : -1;
  text.pages = p.rope.pages + (size_t)p.rope.lanes[text.span.x] * p.rope.pages_max;
  text.rows = __popc(__ballot_sync(FULL, 0 <= position));
  text.start = __shfl_sync(FULL, max(position, 0), 0);
  text.keys = text.start + text.rows;
  text.chunks = (text.keys + CHUNK - 1) / CHUNK;
  text.own_page = lane < text.rows ? text.pages[position / PAGE] : 0;
  return text;
}

// What a lane knows of its rows, l/4 and l/4 + 8 of each tile, in its warp's share of head_dim.
template <int HEAD, int TILES, int WARPS>
struct Part {
  static const int COLUMNS = HEAD / 8 / WARPS;   // of 8
  float most[TILES][2];
  float weights[TILES][4];                       // their sum: the product with a matrix of ones
  float sums[TILES][COLUMNS][4];

  MEMBER void clear() {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      most[tile][0] = most[tile][1] = NEGATIVE_INFINITY;
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[tile][i] = 0.0f;
#pragma unroll
      for (int column = 0; column < COLUMNS; ++column)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[tile][column][i] = 0.0f;
    }
  }

  // To a new maximum of one row.
  MEMBER void raise(int tile, int half, float to, float scale) {
    float by = shrink(most[tile][half], to, scale);
    most[tile][half] = to;
#pragma unroll
    for (int i = half * 2; i < half * 2 + 2; ++i) {
      weights[tile][i] *= by;
#pragma unroll
      for (int column = 0; column < COLUMNS; ++column) sums[tile][column][i] *= by;
    }
  }

  MEMBER void add(const Part& other, float scale) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float mine, theirs;
        most[tile][half] =
            merge_most(most[tile][half], other.most[tile][half], scale, mine, theirs);
#pragma unroll
        for (int i = half * 2; i < half * 2 + 2; ++i) {
          weights[tile][i] = merge(weights[tile][i], mine, other.weights[tile][i], theirs);
#pragma unroll
          for (int column = 0; column < COLUMNS; ++column) {
            sums[tile][column][i] =
                merge(sums[tile][column][i], mine, other.sums[tile][column][i], theirs);
          }
        }
      }
  }
};

// Packed rows that no query has, before the queries come.
template <int HEAD, int TILES, int WARPS>
DEV void clear_queries(bf16* q, const Attend& p, const Text& text) {
  const int used = text.span.y * p.group * (HEAD / 8);
  for (int i = used + thread(); i < TILES * 16 * (HEAD / 8); i += WARPS * WARP) {
    ((uint4*)q)[i] = make_uint4(0, 0, 0, 0);
  }
}

// Asks for a head; whether it is there.
template <int PAIRS>
DEV bool load_head(Raw<PAIRS>& raw, const Attend& p, int row, int position, int head) {
  raw = raw_head<PAIRS>(p.rope, row, position, head);
  return true;
}

// Turns the queries that share this kv head, and the rows' own keys and values.
// `keeps(position)`: whether this block puts those to their page.
template <int HEAD, int WARPS, int AT_ONCE, class Args, class Keeps>
DEV void turn_rows(bf16* q, bf16 (&own)[2][ROWS_MAX * HEAD], const Args& p, const Text& text,
                   int kv_head, Keeps keeps) {
  const int PAIRS = HEAD / 64;
  const int warp = thread() / WARP, lane = thread() % WARP;
  const int heads = p.group + 2, all = text.span.y * heads;
  auto head_of = [&](int within) {
    if (within < p.group) return kv_head * p.group + within;
    return p.rope.heads + (within - p.group) * p.rope.kv_heads + kv_head;
  };
  for (int first = warp; first < all; first += WARPS * AT_ONCE) {
    Raw<PAIRS> raw[AT_ONCE];
    bool is_there;
    do {
      is_there = true;
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        int one = first + i * WARPS, at = one / heads;
        if (all <= one || text.rows <= at) continue;
        const int row = text.span.x + at, position = text.start + at;
        is_there &= load_head<PAIRS>(raw[i], p, row, position, head_of(one % heads));
      }
    } while (!is_there);
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      int one = first + i * WARPS, at = one / heads, within = one % heads;
      if (all <= one) continue;
      const int position = text.start + at;
      const bool is_there = at < text.rows && p.rope.behind <= position;
      Head<PAIRS> turned = {};
      if (is_there) turned = turned_head(p.rope, raw[i], head_of(within));
      if (within < p.group) {
        int packed = at * p.group + within;
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
          int low = pair * WARP + lane, high = low + HEAD / 2;
          *(chunk_at<HEAD>(q, packed, low / 8) + low % 8) = to_bf16(turned.low[pair]);
          *(chunk_at<HEAD>(q, packed, high / 8) + high % 8) = to_bf16(turned.high[pair]);
        }
        continue;
      }
      int is_v = within - p.group;
      turned.store(own[is_v] + at * HEAD);
      u32 page = __shfl_sync(FULL, text.own_page, at);
      // A slot before the first that exists is read, too, with a weight of zero.
      if (text.rows <= at || !keeps(position)) continue;
      turned.store(p.rope.layer + slot_of(p.rope, page, is_v, kv_head, position, HEAD),
                   [&](int value) { return within_slot(position, value); });
    }
  }
}

// Puts the rows' own keys and values that fall among the KEPT keys from `key0` on in their places.
template <int HEAD, int WARPS, int KEPT>
DEV void patch_keys(bf16* k, bf16* v, const bf16 (&own)[2][ROWS_MAX * HEAD], const Text& text,
                    int key0) {
  for (int i = thread(); i < text.rows * (HEAD / 8); i += WARPS * WARP) {
    int row = i / (HEAD / 8), chunk = i % (HEAD / 8), place = text.start + row - key0;
    if (place < 0 || KEPT <= place) continue;
    *(uint4*)chunk_at<HEAD>(k, place, chunk) = ((uint4*)(own[0] + row * HEAD))[chunk];
    *(uint4*)chunk_at<HEAD>(v, place, chunk) = ((uint4*)(own[1] + row * HEAD))[chunk];
  }
}

// Minus infinity where a row does not see a key; the largest score of each row to `largest`. The
// warp's scores are of COLUMNS times 8 keys from `key0` on. Of a tile's two halves of eight rows
// the first `halves` have rows.
template <int TILES, int COLUMNS, class Rows>
DEV void mask(float (&scores)[TILES][COLUMNS][4], float* largest, int key0, const Attend& p,
              const Rows& text, int halves = 2) {
  const int lane = thread() % WARP;
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (halves <= half) break;
      const int row = tile * 16 + half * 8 + lane / 4, end = text.end_of(row, p.group);
      float most = NEGATIVE_INFINITY;
#pragma unroll
      for (int i = 0; i < COLUMNS * 2; ++i) {
        int key = key0 + i / 2 * 8 + lane % 4 * 2 + i % 2;
        float& value = scores[tile][i / 2][half * 2 + i % 2];
        if (key < p.rope.behind || end <= key) value = NEGATIVE_INFINITY;
        most = fmaxf(most, value);
      }
      most = fmaxf(most, __shfl_xor_sync(FULL, most, 1));
      most = fmaxf(most, __shfl_xor_sync(FULL, most, 2));
      if (lane % 4 == 0) largest[row] = most;
    }
}

template <int HEAD>
DEV void store_row(const Attend& p, uint2 span, int kv_head, int row, int at, float low,
                   float high) {
  if (row >= span.y * p.group) return;
  *(u32*)out_of<HEAD>(p, span.x, kv_head, row, at) = pack_bf16(low, high);
}

template <int HEAD, int TILES, int WARPS, class Args>
DEV void store_all(const Args& p, const Part<HEAD, TILES, WARPS>& total, uint2 span,
                   int kv_head) {
  const int lane = thread() % WARP, warp = thread() / WARP;
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int column = 0; column < total.COLUMNS; ++column) {
        const float* pair = &total.sums[tile][column][half * 2];
        float weights = total.weights[tile][half * 2];
        store_row<HEAD>(p, span, kv_head, tile * 16 + half * 8 + lane / 4,
                        (warp * total.COLUMNS + column) * 8 + lane % 4 * 2,
                        divide(pair[0], weights), divide(pair[1], weights));
      }
}

// A chunk that another block will merge: for each row sums, then their weight and maximum.
template <int HEAD, int TILES>
DEV float* part_of(const Attend& p, int kv_head, int chunk, int row) {
  size_t line = (size_t)(blockIdx.z * p.rope.kv_heads + kv_head) * p.chunks_max + chunk;
  return p.parts + (line * TILES * 16 + row) * (HEAD + 2);
}

template <int HEAD, int TILES, int WARPS>
DEV void leave_part(const Attend& p, const Part<HEAD, TILES, WARPS>& part, int kv_head,
                    int chunk) {
  const int lane = thread() % WARP, warp = thread() / WARP;
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int row = tile * 16 + half * 8 + lane / 4;
      float* to = part_of<HEAD, TILES>(p, kv_head, chunk, row);
#pragma unroll
      for (int column = 0; column < part.COLUMNS; ++column) {
        const float* pair = &part.sums[tile][column][half * 2];
        float2* at = (float2*)(to + (warp * part.COLUMNS + column) * 8 + lane % 4 * 2);
        __stcg(at, make_float2(pair[0], pair[1]));
      }
      if (warp == 0 && lane % 4 == 0) {
        float2 rest = make_float2(part.weights[tile][half * 2], part.most[tile][half]);
        __stcg((float2*)(to + HEAD), rest);
      }
    }
}

// Whether this is the last of `blocks` blocks of a sequence and kv head to leave its parts.
DEV bool is_last(const Attend& p, int kv_head, int blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (thread() == 0) {
    u32* count = p.arrivals + blockIdx.z * p.rope.kv_heads + kv_head;
    last = atomicAdd(count, 1) == blocks - 1;
    if (last) *count = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

// The last block merges all chunks, from left to right.
template <int HEAD, int TILES, int WARPS, class Args>
DEV void merge_parts(const Args& p, uint2 span, int kv_head, int chunks) {
  for (int i = thread(); i < span.y * p.group * (HEAD / 2); i += WARPS * WARP) {
    int row = i / (HEAD / 2), at = i % (HEAD / 2) * 2;
    float most = NEGATIVE_INFINITY, weights = 0.0f, low = 0.0f, high = 0.0f;
    // Several loads on their way at once.
#pragma unroll 4
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const float* from = part_of<HEAD, TILES>(p, kv_head, chunk, row);
      float2 sums = __ldcg((const float2*)(from + at));
      float2 rest = __ldcg((const float2*)(from + HEAD));
      float mine, theirs;
      most = merge_most(most, rest.y, p.scale_log2, mine, theirs);
      weights = merge(weights, mine, rest.x, theirs);
      low = merge(low, mine, sums.x, theirs);
      high = merge(high, mine, sums.y, theirs);
    }
    store_row<HEAD>(p, span, kv_head, row, at, divide(low, weights), divide(high, weights));
  }
}
