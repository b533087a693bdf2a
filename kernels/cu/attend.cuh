// What all attention kernels share: their arguments and the order of their arithmetic.
//
// Keys come in tiles of 64 and chunks of 4 tiles. Within a chunk the softmax runs on from tile to
// tile; chunks are then merged from left to right. Tiles and chunks are cut by key position alone
// and all kernels use the same operations in the same order, so the result for a row does not
// depend on which kernel made it, beside which rows or on how many blocks.
#pragma once
#include "rope.cuh"

#define KEYS 64     // of a tile
#define CHUNK 256   // keys that are softmaxed in one go
#define ONES 0x3f803f80u   // two ones

// One attention over pages. By value; `ops/attend.rs` has its twin.
struct Attend {
  Rope rope;
  const uint2* spans;    // first row and number of rows, for each sequence or block of one
  bf16* out;             // (rows, heads head_dim) in blocks
  float* parts;          // scratch of attend_few: chunks that wait to be merged
  u32* arrivals;         // scratch of attend_few, zero between launches
  int block_rows;        // of out
  int group;             // query heads for each kv head
  int chunks_max;
  float scale_log2;      // log2(e) / sqrt(head_dim)
};

// 16-byte chunk of a row in shared memory, turned by the row against bank conflicts.
template <int ROW> DEV bf16* chunk_at(bf16* tile, int row, int chunk) {
  return tile + row * ROW + (chunk ^ (row & 7)) * 8;
}

// Minus infinity among a lane's scores of a tile, of row l/4 or of row l/4 + 8, where the row does
// not see the key.
DEV void hide(float (&scores)[8][4], int half, int end, int key0, int behind) {
  const int lane = threadIdx.x % WARP;
  if (end < key0 + KEYS || key0 < behind) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      int key = key0 + i / 2 * 8 + lane % 4 * 2 + i % 2;
      float& value = scores[i / 2][half * 2 + i % 2];
      if (key < behind || end <= key) value = NEGATIVE_INFINITY;
    }
  }
}

// Weights are relative to `most`, the largest score so far: none was seen while it is infinite.
DEV float base_of(float most, float scale) {
  return most == NEGATIVE_INFINITY ? 0.0f : __fmul_rn(most, scale);
}
DEV float weight_of(float score, float scale, float base) {
  return exp2_fast(__fmaf_rn(score, scale, -base));
}

// What sums relative to `most` are multiplied with to be relative to `now`: exactly 1 if equal,
// so that a tile or chunk in which a row sees nothing leaves its bits alone.
DEV float shrink(float most, float now, float scale) {
  return most == NEGATIVE_INFINITY ? 0.0f : exp2_fast(__fmul_rn(__fsub_rn(most, now), scale));
}

// Two parts of a softmax: `mine` and `theirs` are what each part is multiplied with.
DEV float merge_most(float most, float other, float scale, float& mine, float& theirs) {
  float both = fmaxf(most, other);
  mine = shrink(most, both, scale);
  theirs = shrink(other, both, scale);
  return both;
}
DEV float merge(float sum, float mine, float other, float theirs) {
  return __fmaf_rn(sum, mine, __fmul_rn(other, theirs));
}
DEV float divide(float sum, float weights) {
  return weights == 0.0f ? 0.0f : __fdiv_rn(sum, weights);
}

// Keys or values of a tile to shared memory, zeros from `end` on.
template <int HEAD, int THREADS>
DEV void copy_keys(bf16* to, const Attend& p, const u32* pages, int kv_head, int is_v, int key0,
                   int end) {
  // Eight rows or a multiple at once: a thread's chunk is turned alike in all.
  const int rows = THREADS / (HEAD / 8), first = threadIdx.x / (HEAD / 8);
  const int chunk = threadIdx.x % (HEAD / 8), within = within_slot(first, chunk * 8);
  static_assert(rows % 8 == 0, "lines are turned by their number in eight");
  bf16* at = chunk_at<HEAD>(to, first, chunk);
#pragma unroll
  for (int done = 0; done < KEYS; done += rows, at += rows * HEAD) {
    const int key = key0 + done + first;
    const bool take = key < end;
    const u32 page = take ? pages[key / PAGE] : 0;
    copy_async(at, p.rope.layer + slot_of(p.rope, page, is_v, kv_head, key, HEAD) + within, take);
  }
}

// Where the out value of a packed row (row, query head of the group) stands.
template <int HEAD>
DEV bf16* out_of(const Attend& p, int first, int kv_head, int packed, int at) {
  int row = first + packed / p.group, head = kv_head * p.group + packed % p.group;
  return p.out + block_place(row, head * HEAD + at, p.block_rows);
}
