// Attention inside `layers.cu`: `attend_chunk` with queries, keys and values that come as words
// with marks, and results that go so.
#pragma once
#include "layers.cuh"

#ifdef HOPPER

struct Marked : Attend {
  const uint2* qkv;
  uint4* results;
  u32 mark;
  mutable int tries;
};

template <int PAIRS>
DEV bool load_head(Raw<PAIRS>& raw, const Marked& p, int row, int position, int head) {
  const int lane = thread() % WARP, half = PAIRS * WARP;
  const size_t heads = p.rope.heads + 2 * p.rope.kv_heads;
  const size_t place = max(position - p.rope.behind, 0);
  const uint2* from = p.qkv + (row * heads + head) * 2 * half + lane;
  u32 off = 0;
#pragma unroll
  for (int i = 0; i < PAIRS; ++i) {
    uint2 low, high;
    load_marked(low, from + i * WARP), load_marked(high, from + i * WARP + half);
    raw.values.low[i] = __uint_as_float(low.x), raw.values.high[i] = __uint_as_float(high.x);
    raw.turns[i] = p.rope.turns[place * half + i * WARP + lane];
    off |= (low.y ^ p.mark) | (high.y ^ p.mark);
  }
  count_try(p.tries);
  return __all_sync(FULL, off == 0);
}

template <int HEAD>
DEV void store_row(const Marked& p, uint2 span, int kv_head, int row, int at, float low,
                   float high) {
  if (row >= span.y * p.group) return;
  const int head = kv_head * p.group + row % p.group;
  uint2* to = word_place(p.results, span.x + row / p.group, head * HEAD + at);
  store_marked(to, pack_bf16(low, high), p.mark);
}

// A block's part in attention: some chunks of one sequence and kv head. It stands in shared memory,
// since products need the registers.
struct Attending {
  Marked p;
  Text text;
  int kv_head, part, blocks;
};

// Whether the block has such a part. Each warp finds it by itself.
template <int HEAD, int TILES>
DEV bool find_part(Attending& a, const Layers& of) {
  const int pairs = of.sequences * of.attend.rope.kv_heads;
  const int place = gridDim.x - 1 - blockIdx.x, pair = place % pairs;
  const int sequence = pair / of.attend.rope.kv_heads;
  (Attend&)a.p = of.attend;
  a.kv_head = pair % of.attend.rope.kv_heads, a.part = place / pairs;
  // Its own sequence is number 0 to it.
  a.p.spans += sequence;
  a.p.arrivals += sequence * of.attend.rope.kv_heads;
  const size_t lines = (size_t)sequence * of.attend.rope.kv_heads * of.attend.chunks_max;
  a.p.parts += lines * TILES * 16 * (HEAD + 2);
  a.p.qkv = of.qkv, a.p.results = of.inputs[O], a.p.tries = 0;
  a.text = find_text(a.p);
  a.blocks = a.text.chunks <= ALONE_MAX ? 1 : min(of.parts, a.text.chunks);
  return a.part < a.blocks && 0 < a.text.span.y;
}

// What is reckoned from it stays where it is: attention's addresses are not kept in registers
// while products run.
DEV int unknown_zero() {
  int zero = 0;
  asm volatile("" : "+r"(zero));
  return zero;
}

// Asks for the keys and values of a layer's first chunk that were there before this step.
template <int HEAD, int TILES>
DEV void ask_for_keys(Shared<HEAD, TILES>& s, const Attend& of, const Text& text, int kv_head,
                      int part, u64 before) {
  if (text.chunks == 0) return;
  Attend p = of;
  p.rope.layer += before;
#pragma unroll 1
  for (int is_v = 0; is_v < 2; ++is_v) {
    copy_chunk<HEAD>(is_v ? s.v : s.k, p, text, kv_head, is_v, part);
  }
}

// Results of all rows of the sequence in a layer. See `attend_chunk`.
template <int HEAD, int TILES, int AT_ONCE, class Args>
DEV void attend_rows(Shared<HEAD, TILES>& s, const Args& p, Text text, const u32* own_pages,
                     int kv_head, int part, int blocks) {
  text.own_page = own_pages[threadIdx.x % ROWS_MAX];
  turn_rows<HEAD, WARPS, AT_ONCE>(s.q, s.own, p, text, kv_head, [&](int position) {
    return position / CHUNK % blocks == part;
  });
  Part<HEAD, TILES, WARPS> total;
  total.clear();
  for (int chunk = part; chunk < text.chunks; chunk += blocks) {
    const int key0 = chunk * CHUNK, next = chunk + blocks;
    copies_wait<0>();
    __syncthreads();
    if (text.start < key0 + CHUNK) {
      patch_keys<HEAD, WARPS, CHUNK>(s.k, s.v, s.own, text, key0);
      __syncthreads();
    }
    float scores[TILES][4][4];
    score(scores, s, key0, p, text);
    __syncthreads();
    if (next < text.chunks) copy_chunk<HEAD>(s.k, p, text, kv_head, 0, next);
    weigh(scores, s, p);
    __syncthreads();
    Part<HEAD, TILES, WARPS> part_sums;
    part_sums.clear();
    for (int at = 0; at < TILE_COUNT && key0 + at * KEYS < text.keys; ++at) {
      raise_to_tile(part_sums, s, at, p);
      add_values(part_sums, s, at);
    }
    if (blocks == 1) total.add(part_sums, p.scale_log2);
    else leave_part(p, part_sums, kv_head, chunk);
    if (next < text.chunks) {
      __syncthreads();
      copy_chunk<HEAD>(s.v, p, text, kv_head, 1, next);
    }
  }
  finish_rows(total, p, text, kv_head, blocks);
}

template <int HEAD, int TILES>
DEV void attend(Shared<HEAD, TILES>& s, const Attending& kept, const u32* own_pages,
                const Layer& layer, u64 before, u32 mark) {
  Marked p = kept.p;
  p.mark = mark;
  p.rope.layer += before;
  p.rope.bias = layer.bias, p.rope.q_norm = layer.q_norm, p.rope.k_norm = layer.k_norm;
  attend_rows<HEAD, TILES, 3>(s, p, kept.text, own_pages, kept.kv_head, kept.part, kept.blocks);
}
#endif
