// What comes at the end of a product on Hopper: scales, a gate or the residual stream, and stores.
//
// The arithmetic is that of `store` in matmul.cuh. Few instructions: they are issued once for each
// 4 sums of a thread and do not repeat, so each has to be fetched too.
#pragma once
#include "matmul.cuh"

// Scales of rows come from `norm_scales`, the kernel before, which lets this one in once x is
// there: what uses them waits for it, and what reads x need not.
DEV void wait_for_x(const Matmul& p) {
  if (p.scales == 0) wait_for_previous();
}

// What a lane stores of its warp's 16 outputs, for columns of 8 rows one after the other.
template <int EPILOGUE> struct End {
  int left_out, left_rounded;   // rows that are there from the lane's first one on
  bool low, high;               // whether its outputs are there
  float* out;                   // PLAIN, RESIDUAL: where output lane / 4 of row lane % 4 * 2 stands
  bf16* rounded;                // GATED, RESIDUAL: outputs lane % 4 * 2 and 1 more of row lane / 4
  bf16* captured;
  int captured_high;            // from output lane % 4 * 2 there to the one 8 on
  const float* scales;
  int width;

  MEMBER End(const Matmul& p, int tile, int row0, int rows) {
    const int lane = threadIdx.x % WARP, pair = lane % 4 * 2, row = row0 + lane / 4;
    const int output = tile * 16 + lane / 4, block_rows = block_rows_of(p.rows);
    const int left = min(p.rows - row0, rows);
    left_out = left - pair, left_rounded = left - lane / 4;
    low = output < p.outputs, high = output + 8 < p.outputs;
    width = p.outputs;
    scales = p.scales == 0 ? 0 : p.scales + row0 + pair;
    if (EPILOGUE != GATED) {
      out = (EPILOGUE == PLAIN ? p.out : p.stream) + (size_t)(row0 + pair) * width + output;
    }
    if (EPILOGUE != PLAIN) {
      const int column = tile * (EPILOGUE == GATED ? 8 : 16) + pair;
      rounded = p.rounded + block_place(row, column, block_rows);
      captured = 0;
      if (EPILOGUE == RESIDUAL && p.captured != 0) {
        const int at = p.captured_at + column;
        const size_t place = block_place(row, at, block_rows);
        captured = p.captured + place;
        captured_high = (int)(block_place(row, at + 8, block_rows) - place);
      }
    }
  }

  // Scales of two rows, and what is added to, read ahead: no read waits for a store.
  MEMBER float2 scales_of(int column) const {
    if (scales == 0 || left_out <= column * 8) return make_float2(1.0f, 1.0f);
    return *(const float2*)(scales + column * 8);
  }
  MEMBER float4 before(int column) const {
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (EPILOGUE != RESIDUAL) return v;
    const float* at = out + (size_t)column * 8 * width;
    const bool one = column * 8 < left_out, two = column * 8 + 1 < left_out;
    if (one && low) v.x = at[0];
    if (two && low) v.y = at[width];
    if (one && high) v.z = at[8];
    if (two && high) v.w = at[width + 8];
    return v;
  }

  MEMBER void store(int column, float4 sum, float2 scale, float4 before) {
    sum.x = __fmul_rn(sum.x, scale.x), sum.y = __fmul_rn(sum.y, scale.y);
    sum.z = __fmul_rn(sum.z, scale.x), sum.w = __fmul_rn(sum.w, scale.y);
    const bool is_row = column * 8 < left_rounded;
    if (EPILOGUE == GATED) {
      u32 pair = transposed(pack_bf16(gated(sum.x, sum.z), gated(sum.y, sum.w)));
      if (is_row && low) *(u32*)(rounded + column * 512) = pair;
      return;
    }
    if (EPILOGUE == RESIDUAL) add(before, sum), sum = before;
    float* at = out + (size_t)column * 8 * width;
    const bool one = column * 8 < left_out, two = column * 8 + 1 < left_out;
    if (one && low) at[0] = sum.x;
    if (two && low) at[width] = sum.y;
    if (one && high) at[8] = sum.z;
    if (two && high) at[width + 8] = sum.w;
    if (EPILOGUE == PLAIN) return;
    // Whether eight outputs are there is the same for all lanes.
    u32 lows = transposed(pack_bf16(sum.x, sum.y)), highs = transposed(pack_bf16(sum.z, sum.w));
    if (is_row && low) *(u32*)(rounded + column * 512) = lows;
    if (is_row && high) *(u32*)(rounded + column * 512 + 64) = highs;
    const bool kept = is_row && captured != 0;
    if (kept && low) *(u32*)(captured + column * 512) = lows;
    if (kept && high) *(u32*)(captured + column * 512 + captured_high) = highs;
  }
};

// The first `count` columns of 8 rows; `channels` as `channels_of` gives them.
template <class FORMAT, int EPILOGUE, int ROWS>
DEV void store_all(const Matmul& p, int tile, int row0, const float (&sums)[ROWS / 2], int count,
                   float2 channels) {
  const int columns = ROWS / 8, together = ROWS == 64 || ROWS == 256 || columns < 4 ? 2 : 4;
  End<EPILOGUE> end(p, tile, row0, count * 8);
#pragma unroll
  for (int first = 0; first < columns; first += together) {
    if (min(p.rows - row0, count * 8) <= first * 8) return;
    float4 before[together];
    float2 scales[together];
#pragma unroll
    for (int j = 0; j < together; ++j) {
      before[j] = end.before(first + j), scales[j] = end.scales_of(first + j);
    }
#pragma unroll
    for (int j = 0; j < together; ++j) {
      const float4 sum = scaled<FORMAT>(*(const float4*)&sums[(first + j) * 4], channels);
      end.store(first + j, sum, scales[j], before[j]);
    }
  }
}

// The same, of the end that the arguments ask for.
template <class FORMAT, int ROWS>
DEV void store_ends(const Matmul& p, int tile, int row0, const float (&sums)[ROWS / 2], int count,
                    float2 channels) {
  if (p.gated) store_all<FORMAT, GATED, ROWS>(p, tile, row0, sums, count, channels);
  else if (p.stream != 0) store_all<FORMAT, RESIDUAL, ROWS>(p, tile, row0, sums, count, channels);
  else store_all<FORMAT, PLAIN, ROWS>(p, tile, row0, sums, count, channels);
}
