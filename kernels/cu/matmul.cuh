// What the matrix products share: arguments, the order of the sums, what comes at the end.
#pragma once
#include "base.cuh"

// One matrix product. The kernels take it by value; `ops/matmul.rs` has its twin.
struct Matmul {
  const u32* weights;    // tiles, see `weights_at`
  const bf16* x;         // (rows, inputs) in blocks
  float* out;            // (rows, outputs); PLAIN
  bf16* rounded;         // in blocks: GATED (rows, outputs / 2), RESIDUAL (rows, outputs)
  float* stream;         // (rows, outputs), added to; RESIDUAL
  bf16* captured;        // a third place for the sum, in blocks, if not null; RESIDUAL
  float* sums;           // scratch of matmul_many, matmul_wide, matmul_broad and matmul_tall; of
                         // matmul_ahead another, see ahead.cuh
  u32* arrivals;         // scratch: matmul_many's, zero between launches; `meet`'s, another
  const float* scales;   // of each row, for matmul_many with a norm
  const float* channels; // of each output, of Fp8: its scale times 2^120
  int rows;
  int inputs;
  int outputs;
  int tiles;             // of 16 outputs
  int slices;
  int captured_at;       // its first column
  int gated;             // for matmul_wide, which is told apart from what it is given
  float eps;
  int early;             // matmul_few: whether the next kernel may start before this one ends
  int norm;              // matmul_ahead: whether there is a norm before it
};

// PLAIN:    out = sum * scale
// GATED:    of a tile's 16 outputs the first 8 are gates: out = silu(gate) * up
// RESIDUAL: stream += sum
enum Epilogue { PLAIN, GATED, RESIDUAL };

// ---- weights: how they lie in memory, and how they become the tensor cores' bf16
//
// A lane takes LOADS times 16 bytes of each unit (64 inputs, 4 steps) of a tile (16 outputs).

struct Bf16 {
  static const int LOADS = 4;
  static const bool SCALED = false;
  // One step of a load, as `mma` takes it.
  MEMBER static uint4 step(uint4 load, int at) { return load; }
};

// e4m3 with a scale for each output. Seven bits, exponent and mantissa, four places up are a bf16
// of 2^-120 times the value, those below the normal ones too: bits are moved, nothing is computed.
// Sums are therefore 2^-120 times what they should be, which `channels` makes up for.
struct Fp8 {
  static const int LOADS = 2;
  static const bool SCALED = true;
  // Four weights are a word, in which the first two stand where bf16 has them. The others fill the
  // gaps: sign and exponent four places up in a circle, the mantissa four places down.
  MEMBER static u32 first(u32 word) { return word & 0x87f087f0; }
  MEMBER static u32 second(u32 word) {
    return (__funnelshift_r(word, word, 4) & 0x87808780) | (word << 4 & 0x00700070);
  }
  MEMBER static uint4 step(uint4 load, int at) {
    const u32 low = at == 0 ? load.x : load.z, high = at == 0 ? load.y : load.w;
    return make_uint4(first(low), second(low), first(high), second(high));
  }
};

// Step `at` of those that are in `loads`.
template <class FORMAT, int COUNT> DEV uint4 step_of(const uint4 (&loads)[COUNT], int at) {
  const int steps = 4 / FORMAT::LOADS;
  return FORMAT::step(loads[at / steps], at % steps);
}

// What lane 0 takes first of a tile's unit. 128 outputs x 64 inputs are one run of memory.
template <class FORMAT> DEV const uint4* weights_at(const Matmul& p, int tile, int unit) {
  const size_t word = tile_place(tile, unit * 4, p.inputs / 64);
  return (const uint4*)(p.weights + word * FORMAT::LOADS / 4);
}

// The scales of a lane's outputs of a tile, lane / 4 and 8 on. Asked for early, for the end.
template <class FORMAT> DEV float2 channels_of(const Matmul& p, int tile) {
  float2 v = make_float2(1.0f, 1.0f);
  if (!FORMAT::SCALED) return v;
  const float* at = p.channels + tile * 16 + threadIdx.x % WARP / 4;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v.x) : "l"(at));
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v.y) : "l"(at + 8));
  return v;
}
template <class FORMAT> DEV float4 scaled(float4 sum, float2 channels) {
  if (!FORMAT::SCALED) return sum;
  return make_float4(__fmul_rn(sum.x, channels.x), __fmul_rn(sum.y, channels.x),
                     __fmul_rn(sum.z, channels.y), __fmul_rn(sum.w, channels.y));
}

// First unit (64 inputs) of a slice of the sum over inputs.
DEV int slice_start(int slice, int slices, int units) { return units * slice / slices; }

// ---- RMSNorm, its weight folded into the matrix: the scale of a row multiplies the sum.

DEV float add_squares(float sum, u32 b0, u32 b1) {
  sum = __fmaf_rn(low_bf16(b0), low_bf16(b0), sum);
  sum = __fmaf_rn(high_bf16(b0), high_bf16(b0), sum);
  sum = __fmaf_rn(low_bf16(b1), low_bf16(b1), sum);
  return __fmaf_rn(high_bf16(b1), high_bf16(b1), sum);
}
// Squares are summed apart for each step of a unit, so that no sum waits for another.
DEV float sum_of_steps(float a, float b, float c, float d) {
  return __fadd_rn(__fadd_rn(a, b), __fadd_rn(c, d));
}
DEV float sum_of_four(float v) {
  v += __shfl_xor_sync(FULL, v, 1);
  return v + __shfl_xor_sync(FULL, v, 2);
}
DEV float norm_scale(float squares, int inputs, float eps) {
  return __frsqrt_rn(__fadd_rn(__fdiv_rn(squares, (float)inputs), eps));
}

// Explicit roundings: the same numbers whichever kernel this is inlined in.
DEV float gated(float gate, float up) {
  float sigmoid = reciprocal_fast(__fadd_rn(1.0f, exp2_fast(__fmul_rn(-1.44269504f, gate))));
  return __fmul_rn(__fmul_rn(gate, sigmoid), up);
}

// A lane's part of a tile: outputs lane / 4 and 8 on, rows (of x) `row` and the next. What it is
// added to is read apart and ahead, so that no read waits for another.
template <int EPILOGUE>
DEV float4 read_stream(const Matmul& p, int tile, int row) {
  float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (EPILOGUE != RESIDUAL) return v;
  const int output = tile * 16 + threadIdx.x % WARP / 4;
  const float* at = p.stream + (size_t)row * p.outputs + output;
  const bool low = output < p.outputs, high = output + 8 < p.outputs;
  if (row < p.rows && low) v.x = at[0];
  if (row + 1 < p.rows && low) v.y = at[p.outputs];
  if (row < p.rows && high) v.z = at[8];
  if (row + 1 < p.rows && high) v.w = at[p.outputs + 8];
  return v;
}

template <int EPILOGUE>
DEV void store_one(const Matmul& p, int output, int row, float sum, float before) {
  if (row >= p.rows || output >= p.outputs) return;
  size_t at = (size_t)row * p.outputs + output;
  if (EPILOGUE == PLAIN) {
    p.out[at] = sum;
  } else {
    sum = __fadd_rn(before, sum);
    bf16 rounded = to_bf16(sum);
    p.stream[at] = sum;
    p.rounded[block_place(row, output, block_rows_of(p.rows))] = rounded;
    if (p.captured != 0) {
      p.captured[block_place(row, p.captured_at + output, block_rows_of(p.rows))] = rounded;
    }
  }
}

// A lane's part of a finished tile, with the scales of its two rows.
template <int EPILOGUE>
DEV void store(const Matmul& p, int tile, int row, float4 sum, const float scale[2],
               float4 before) {
  int output = tile * 16 + threadIdx.x % WARP / 4;
  float low[2] = {__fmul_rn(sum.x, scale[0]), __fmul_rn(sum.y, scale[1])};
  float high[2] = {__fmul_rn(sum.z, scale[0]), __fmul_rn(sum.w, scale[1])};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (EPILOGUE == GATED) {
      int at = tile * 8 + threadIdx.x % WARP / 4;
      if (row + i < p.rows && at < p.outputs / 2) {
        bf16 value = to_bf16(gated(low[i], high[i]));
        p.rounded[block_place(row + i, at, block_rows_of(p.rows))] = value;
      }
    } else {
      store_one<EPILOGUE>(p, output, row + i, low[i], i == 0 ? before.x : before.y);
      store_one<EPILOGUE>(p, output + 8, row + i, high[i], i == 0 ? before.z : before.w);
    }
  }
}

// COUNT parts of tiles, of rows that are 8 apart; the first `count` are there. The scales of rows
// are those that were made before, if any.
template <int EPILOGUE, int COUNT>
DEV void store_group(const Matmul& p, int tile, int first, const float4 (&sums)[COUNT],
                     int count) {
  if (p.rows <= first) return;
  float4 before[COUNT];
  float scales[COUNT][2];
  const int row0 = first + threadIdx.x % 4 * 2;
#pragma unroll
  for (int j = 0; j < COUNT; ++j) {
    const int row = row0 + j * 8;
    if (j < count) before[j] = read_stream<EPILOGUE>(p, tile, row);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scales[j][i] = 1.0f;
      if (p.scales != 0 && j < count && row + i < p.rows) scales[j][i] = p.scales[row + i];
    }
  }
#pragma unroll
  for (int j = 0; j < COUNT; ++j) {
    if (j < count) store<EPILOGUE>(p, tile, row0 + j * 8, sums[j], scales[j], before[j]);
  }
}

DEV void add(float4& to, float4 more) {
  to.x = __fadd_rn(to.x, more.x), to.y = __fadd_rn(to.y, more.y);
  to.z = __fadd_rn(to.z, more.z), to.w = __fadd_rn(to.w, more.w);
}
