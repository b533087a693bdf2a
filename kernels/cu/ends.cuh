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

// 8 outputs of 8 rows, of which a lane holds two rows of output lane / 4. It gets two outputs of
// row lane / 4.
DEV float2 turned(float one, float two) {
  const u32 a = __float_as_uint(one), b = __float_as_uint(two);
  const u32 lows = transposed(__byte_perm(a, b, 0x5410));
  const u32 highs = transposed(__byte_perm(a, b, 0x7632));
  return make_float2(__uint_as_float(__byte_perm(lows, highs, 0x5410)),
                     __uint_as_float(__byte_perm(lows, highs, 0x7632)));
}

// What a lane stores of its warp's 16 outputs, for columns of 8 rows one after the other.
template <int EPILOGUE> struct End {
  int left_out, left_rounded;   // rows that are there from the lane's first one on
  bool low, high;               // whether its outputs are there
  float* out;                   // PLAIN: where output lane / 4 of row lane % 4 * 2 stands
                                // RESIDUAL: outputs lane % 4 * 2 and 1 more of row lane / 4
  const float* read;            // RESIDUAL: the same of the column that is read next
  bf16* rounded;                // GATED, RESIDUAL: outputs lane % 4 * 2 and 1 more of row lane / 4
  bf16* captured;
  int captured_high;            // from output lane % 4 * 2 there to the one 8 on
  const float* scales;
  int width;

  MEMBER End(const Matmul& p, int tile, int row0, int rows, const float* scales_of_rows) {
    const int lane = threadIdx.x % WARP, pair = lane % 4 * 2, row = row0 + lane / 4;
    const int output = tile * 16 + lane / 4, block_rows = block_rows_of(p.rows);
    const int left = min(p.rows - row0, rows);
    left_out = left - pair, left_rounded = left - lane / 4;
    low = output < p.outputs, high = output + 8 < p.outputs;
    width = p.outputs;
    scales = scales_of_rows == 0 ? 0 : scales_of_rows + row0 + pair;
    if (EPILOGUE == PLAIN) out = p.out + (size_t)(row0 + pair) * width + output;
    if (EPILOGUE == RESIDUAL) {
      out = p.stream + (size_t)row * width + tile * 16 + pair, read = out;
      // The compiler is not to know that these are one: it would keep each address in between.
      asm volatile("" : "+l"(read));
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

  // Scales of two rows, of the lane / 4th of each eight columns; see `scales_of`.
  MEMBER float2 some_scales(int eight) const {
    const int column = eight * 8 + threadIdx.x % WARP / 4;
    const bool are_there = EPILOGUE != RESIDUAL && scales != 0 && column * 8 < left_out;
    return are_there ? *(const float2*)(scales + column * 8) : make_float2(1.0f, 1.0f);
  }
  // What is added to, of one column after the other, read ahead: no read waits for a store.
  MEMBER float4 before(int column) {
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (EPILOGUE != RESIDUAL) return v;
    const bool is_row = column * 8 < left_rounded;
    if (is_row && low) *(float2*)&v.x = *(const float2*)read;
    if (is_row && high) *(float2*)&v.z = *(const float2*)(read + 8);
    read += (size_t)8 * width;
    return v;
  }

  MEMBER void store(int column, float4 sum, float2 scale, float4 before) {
    if (EPILOGUE != RESIDUAL) {
      sum.x = __fmul_rn(sum.x, scale.x), sum.y = __fmul_rn(sum.y, scale.y);
      sum.z = __fmul_rn(sum.z, scale.x), sum.w = __fmul_rn(sum.w, scale.y);
    }
    const bool is_row = column * 8 < left_rounded;
    if (EPILOGUE == GATED) {
      u32 pair = transposed(pack_bf16(gated(sum.x, sum.z), gated(sum.y, sum.w)));
      if (is_row && low) *(u32*)(rounded + column * 512) = pair;
      return;
    }
    float* at = out + (size_t)column * 8 * width;
    if (EPILOGUE == PLAIN) {
      const bool one = column * 8 < left_out, two = column * 8 + 1 < left_out;
      if (one && low) at[0] = sum.x;
      if (two && low) at[width] = sum.y;
      if (one && high) at[8] = sum.z;
      if (two && high) at[width + 8] = sum.w;
      return;
    }
    // Whether eight outputs are there is the same for all lanes.
    const float2 lows = turned(sum.x, sum.y), highs = turned(sum.z, sum.w);
    add(before, make_float4(lows.x, lows.y, highs.x, highs.y));
    const bool is_low = is_row && low, is_high = is_row && high, kept = captured != 0;
    if (is_low) *(float2*)at = make_float2(before.x, before.y);
    if (is_high) *(float2*)(at + 8) = make_float2(before.z, before.w);
    const u32 one = pack_bf16(before.x, before.y), two = pack_bf16(before.z, before.w);
    if (is_low) *(u32*)(rounded + column * 512) = one;
    if (is_high) *(u32*)(rounded + column * 512 + 64) = two;
    if (is_low && kept) *(u32*)(captured + column * 512) = one;
    if (is_high && kept) *(u32*)(captured + column * 512 + captured_high) = two;
  }
};

// Those of a column, from the lane that has them.
template <int EIGHTS> DEV float2 scales_of(const float2 (&some)[EIGHTS], int column) {
  const int lane = column % 8 * 4 + threadIdx.x % 4;
  return make_float2(__shfl_sync(FULL, some[column / 8].x, lane),
                     __shfl_sync(FULL, some[column / 8].y, lane));
}

// Columns that are read ahead of an end: as many as registers leave room for beside the sums.
template <int ROWS> DEV constexpr int ahead_of() { return ROWS == 64 ? 4 : ROWS == 256 ? 6 : 8; }

// The first `count` columns of 8 rows; `channels` as `channels_of` gives them. `scales_of_rows`: of
// all rows, if there are any.
template <class FORMAT, int EPILOGUE, int ROWS, int MOST = ahead_of<ROWS>()>
DEV void store_all(const Matmul& p, int tile, int row0, const float (&sums)[ROWS / 2], int count,
                   float2 channels, const float* scales_of_rows) {
  const int columns = ROWS / 8, eights = (columns + 7) / 8;
  const int ahead = EPILOGUE != RESIDUAL ? 0 : columns < MOST ? columns : MOST;
  End<EPILOGUE> end(p, tile, row0, count * 8, scales_of_rows);
  float2 scales[eights];
  float4 before[columns];
#pragma unroll
  for (int i = 0; i < eights; ++i) scales[i] = end.some_scales(i);
#pragma unroll
  for (int i = 0; i < columns + ahead; ++i) {
    if (i < columns) before[i] = end.before(i);
    const int column = i - ahead;
    if (column < 0) continue;
    if (min(p.rows - row0, count * 8) <= column * 8) return;
    const float4 sum = scaled<FORMAT>(*(const float4*)&sums[column * 4], channels);
    // A product that is added to the stream has no norm before it, see `multiply_on`.
    const float2 scale = EPILOGUE == RESIDUAL ? scales[0] : scales_of(scales, column);
    end.store(column, sum, scale, before[column]);
  }
}

// The same, of the end that the arguments ask for.
template <class FORMAT, int ROWS, int MOST = ahead_of<ROWS>()>
DEV void store_ends(const Matmul& p, int tile, int row0, const float (&sums)[ROWS / 2], int count,
                    float2 channels) {
  if (p.gated) {
    store_all<FORMAT, GATED, ROWS, MOST>(p, tile, row0, sums, count, channels, p.scales);
  } else if (p.stream != 0) {
    store_all<FORMAT, RESIDUAL, ROWS, MOST>(p, tile, row0, sums, count, channels, p.scales);
  } else {
    store_all<FORMAT, PLAIN, ROWS, MOST>(p, tile, row0, sums, count, channels, p.scales);
  }
}
