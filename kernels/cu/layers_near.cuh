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
  const float* from = p.raw + (row * (p.group + 2) + within) * 64 + lane;
  raw.values.low[0] = from[0], raw.values.high[0] = from[WARP];
  raw.turns[0] = p.turns[row * WARP + lane];
  return true;
}

template <int HEAD>
DEV void store_row(const Near& p, uint2 span, int kv_head, int row, int at, float low,
                   float high) {
  if (row >= span.y * p.group) return;
  const u32 word = pack_bf16(low, high);
  const u32* to = word_of(p.inner, span.x + row / p.group, row % p.group * HEAD + at);
#pragma unroll
  for (int i = 0; i < CLUSTER; ++i) send(to, word, p.inner_there, i);
}

// Turns the rows' own queries, keys and values; the latter to their places among the others.
DEV void turn_near(Keys& s, const Near& p, const Text& text) {
  const int lane = threadIdx.x % WARP, heads = p.group + 2, all = text.span.y * heads;
  int at = 0, within = threadIdx.x / WARP;
  for (int one = within; one < all; one += WARPS, within += WARPS) {
    while (heads <= within) within -= heads, ++at;
    const bool is_q = within < p.group;
    int head = p.kv_head * p.group + within;
    if (!is_q) head = p.rope.heads + (within - p.group) * p.rope.kv_heads + p.kv_head;
    const float* from = p.raw + ((text.span.x + at) * heads + within) * 64 + lane;
    Raw<1> raw;
    raw.values.low[0] = from[0], raw.values.high[0] = from[WARP];
    raw.turns[0] = p.turns[(text.span.x + at) * WARP + lane];
    Head<1> turned = {};
    const bool is_there = at < text.rows;
    if (is_there && p.rope.behind <= text.start + at) turned = turned_head(p.rope, raw, head);
    bf16* to = is_q ? s.q : within == p.group ? s.k : s.v;
    const int line = is_q ? at * p.group + within : text.start + at;
    if (!is_q && !is_there) continue;
    *(chunk_at<64>(to, line, lane / 8) + lane % 8) = to_bf16(turned.low[0]);
    *(chunk_at<64>(to, line, lane / 8 + 4) + lane % 8) = to_bf16(turned.high[0]);
  }
}

// The rows' own keys and values to their pages.
DEV void keep_near(const Keys& s, const Near& p, const NearText& text,
                   const u32* own_pages) {
  const int i = threadIdx.x, row = i / 16, is_v = i / 8 % 2, chunk = i % 8;
  if (text.rows <= row) return;
  const int position = text.start + row;
  bf16* from = chunk_at<64>((bf16*)(is_v ? s.v : s.k), position, chunk);
  const size_t slot = slot_of(p.rope, own_pages[row], is_v, p.kv_head, position, 64);
  *(uint4*)(p.rope.layer + slot + within_slot(position, chunk * 8)) = *(uint4*)from;
}

// `attend_rows` for texts of one chunk.
DEV void attend_near(Hub& hub, Keys& s, const Near& p) {
  const NearText& text = hub.text;
  turn_near(s, p, text);
  __syncthreads();
  float scores[1][4][4];
  const int halves = text.span.y * p.group <= 8 ? 1 : 2;
  score(scores, s, 0, p, text, halves);
  __syncthreads();
  weigh(scores, s, p, halves);
  __syncthreads();
  Part<64, 1, WARPS> part;
  part.clear();
#pragma unroll 1
  for (int at = 0; at < TILE_COUNT && at * KEYS < text.keys; ++at) {
    raise_to_tile(part, s, at, p, halves);
    add_values(part, s, at);
  }
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + lane / 4;
    if (text.span.y * p.group <= row) continue;
    // Adding it to nothing leaves it as it is, but no zero below zero.
    const float* pair = &part.sums[0][0][half * 2];
    const float weights = part.weights[0][half * 2];
    const u32 word = pack_bf16(divide(__fadd_rn(pair[0], 0.0f), weights),
                               divide(__fadd_rn(pair[1], 0.0f), weights));
    const u32* to = hub.inner[0][0] + hub.packed[row] + warp / 2 * (ROWS * 8) + lane % 4 * 2 +
                    warp % 2;
#pragma unroll
    for (int i = 0; i < CLUSTER; ++i) send(to, word, &hub.inner_there, i);
  }
}
#endif
