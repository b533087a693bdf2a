// What the two kernels for a run of rows of one sequence share: a warp has 16 of a block's 128
// packed rows (row, query head) and all of head_dim.
#pragma once
#include "attend.cuh"

// What a lane knows of its rows, l/4 and l/4 + 8 of the warp's 16.
template <int HEAD>
struct Part {
  float most[2];
  float weights[4];
  float sums[HEAD / 2];   // 4 for each 8 columns

  MEMBER void clear() {
    most[0] = most[1] = NEGATIVE_INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < HEAD / 2; ++i) sums[i] = 0.0f;
  }

  MEMBER void scale(int half, float by) {
#pragma unroll
    for (int i = half * 2; i < half * 2 + 2; ++i) {
      weights[i] *= by;
#pragma unroll
      for (int column = 0; column < HEAD / 8; ++column) sums[column * 4 + i] *= by;
    }
  }

  MEMBER void add(const Part& other, float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float mine, theirs;
      most[half] = merge_most(most[half], other.most[half], scale, mine, theirs);
#pragma unroll
      for (int i = half * 2; i < half * 2 + 2; ++i) {
        weights[i] = merge(weights[i], mine, other.weights[i], theirs);
#pragma unroll
        for (int column = 0; column < HEAD / 8; ++column) {
          float& sum = sums[column * 4 + i];
          sum = merge(sum, mine, other.sums[column * 4 + i], theirs);
        }
      }
    }
  }
};

// Scores of a tile to weights; the part so far goes to the new maximum.
template <int HEAD>
DEV void weigh(float (&scores)[8][4], Part<HEAD>& part, const int (&ends)[2], int key0,
               const Attend& p) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    hide(scores, half, ends[half], key0, p.rope.behind);
    float most = part.most[half];
#pragma unroll
    for (int i = 0; i < 16; ++i) most = fmaxf(most, scores[i / 2][half * 2 + i % 2]);
    most = fmaxf(most, __shfl_xor_sync(FULL, most, 1));
    most = fmaxf(most, __shfl_xor_sync(FULL, most, 2));
    float base = base_of(most, p.scale_log2);
    part.scale(half, shrink(part.most[half], most, p.scale_log2));
    part.most[half] = most;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float& value = scores[i / 2][half * 2 + i % 2];
      value = weight_of(value, p.scale_log2, base);
    }
  }
}

// Keys that the lane's rows see.
DEV void find_ends(int (&ends)[2], const Attend& p, uint2 span, int warp) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int row = warp * 16 + half * 8 + threadIdx.x % WARP / 4;
    ends[half] = row < span.y * p.group ? p.rope.positions[span.x + row / p.group] + 1 : 0;
  }
}

// The block's rows, 128 packed ones, this warp's 16.
template <int HEAD>
DEV void store_rows(const Attend& p, const Part<HEAD>& total, uint2 span, int kv_head, int warp) {
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int row = warp * 16 + half * 8 + lane / 4;
    if (span.y * p.group <= row) continue;
#pragma unroll
    for (int column = 0; column < HEAD / 8; ++column) {
      const float* pair = &total.sums[column * 4 + half * 2];
      float weights = total.weights[half * 2];
      bf16* out = out_of<HEAD>(p, span.x, kv_head, row, column * 8 + lane % 4 * 2);
      *(u32*)out = pack_bf16(divide(pair[0], weights), divide(pair[1], weights));
    }
  }
}
