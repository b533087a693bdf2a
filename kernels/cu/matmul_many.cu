// out[r, n] = sum_k weights[n, k] x[r, k], for many rows: a weight that is read serves ROWS rows.
//
// The same tiles of weights, the same slices of the sum and the same order as in `matmul_few`, so
// that a row's result has the same bits. A block makes 128 outputs x ROWS rows; a warp 32 x ROWS.
// Weights go from memory to registers, x through shared memory.
#include "matmul.cuh"

#define STAGES 3    // units of x under way

template <int ROWS> using Sums = float[2][ROWS / 8][4];

// x[row0.., inputs of a unit] to shared memory: blocks of 8 rows x 64 inputs.
template <int ROWS>
DEV void copy_x(bf16* to, const Matmul& p, int row0, int unit, int end) {
  const int block_rows = block_rows_of(p.rows);
  for (int i = threadIdx.x; i < ROWS / 8 * 64; i += 128) {
    int block_row = row0 / 8 + i / 64;
    bool take = block_row < block_rows && unit < end;
    size_t from = take ? ((size_t)unit * block_rows + block_row) * 512 + i % 64 * 8 : 0;
    copy_async(to + i * 8, p.x + from, take);
  }
}

// Half a unit of two tiles of weights.
template <class FORMAT> using Weights = uint4[2][FORMAT::LOADS / 2];

template <class FORMAT>
DEV void load_a(Weights<FORMAT>& a, const uint4* const at[2], int unit, int half, int end) {
  const int loads = FORMAT::LOADS / 2;
#pragma unroll
  for (int i = 0; i < loads; ++i)
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      a[m][i] = make_uint4(0, 0, 0, 0);
      if (end <= unit) continue;
      const size_t of_unit = (size_t)unit * (16 * loads * WARP);
      a[m][i] = load_weights(at[m] + of_unit + (half * loads + i) * WARP);
    }
}

// Two steps: 32 inputs of two tiles of weights times all columns of x.
template <class FORMAT, int ROWS>
DEV void multiply(Sums<ROWS>& sums, const Weights<FORMAT>& a, const bf16* x, int half) {
  const int lane = threadIdx.x % WARP;
  uint4 words[2][2];
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int step = 0; step < 2; ++step) words[m][step] = step_of<FORMAT>(a[m], step);
#pragma unroll
  for (int column = 0; column < ROWS / 8; ++column) {
    u32 b[4];
    load_tiles(b, x + column * 512 + half * 256 + lane * 8);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const uint4 four = words[m][step];
        u32 part[4] = {four.x, four.y, four.z, four.w};
        mma(sums[m][column], part, b[step * 2], b[step * 2 + 1]);
      }
    }
  }
}

template <int ROWS>
DEV void add_and_clear(Sums<ROWS>& totals, Sums<ROWS>& sums) {
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int column = 0; column < ROWS / 8; ++column)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        totals[m][column][i] = __fadd_rn(totals[m][column][i], sums[m][column][i]);
        sums[m][column][i] = 0.0f;
      }
}

// Where one slice's sums of this block wait: ROWS / 4 float4 a thread.
template <int ROWS>
DEV float4* place(const Matmul& p, int slice) {
  size_t block = blockIdx.y * gridDim.x + blockIdx.x;
  return (float4*)p.sums + ((block * p.slices + slice) * (ROWS / 4)) * 128 + threadIdx.x;
}

// Leaves the sums for the block that ends last, which adds all slices in order. False for others.
template <int ROWS>
DEV bool join_slices(const Matmul& p, Sums<ROWS>& sums) {
  __shared__ bool is_last;
  float4* parts = (float4*)sums;
  float4* mine = place<ROWS>(p, blockIdx.z);
#pragma unroll
  for (int i = 0; i < ROWS / 4; ++i) __stcg(mine + i * 128, parts[i]);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    u32* count = p.arrivals + blockIdx.y * gridDim.x + blockIdx.x;
    is_last = atomicAdd(count, 1) == gridDim.z - 1;
    if (is_last) *count = 0;
  }
  __syncthreads();
  if (!is_last) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < ROWS / 4; ++i) parts[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int slice = 0; slice < p.slices; ++slice) {
    const float4* from = place<ROWS>(p, slice);
#pragma unroll
    for (int i = 0; i < ROWS / 4; ++i) {
      add(parts[i], __ldcg(from + i * 128));
    }
  }
  return true;
}

template <class FORMAT, int ROWS, int EPILOGUE>
DEV void store_all(const Matmul& p, int tile, int row0, const Sums<ROWS>& sums) {
  float2 channels[2];
#pragma unroll
  for (int m = 0; m < 2; ++m) channels[m] = channels_of<FORMAT>(p, tile + m);
#pragma unroll
  for (int column = 0; column < ROWS / 8; column += 4) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      float4 parts[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        parts[j] = scaled<FORMAT>(*(const float4*)sums[m][column + j], channels[m]);
      }
      store_group<EPILOGUE>(p, tile + m, row0 + column * 8, parts, 4);
    }
  }
}

// grid: (rows / ROWS, outputs / 128, slices or 1); block: 128.
// SPLIT: a block adds up one slice. Else it adds up all, one after the other.
template <class FORMAT, int ROWS, bool SPLIT, int EPILOGUE>
DEV void matmul_many(const Matmul& p) {
  __shared__ __align__(128) bf16 x[STAGES][ROWS * 64];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int row0 = blockIdx.x * ROWS, tile = blockIdx.y * 8 + warp * 2;
  const int units = p.inputs / 64;
  const int start = SPLIT ? slice_start(blockIdx.z, gridDim.z, units) : 0;
  const int end = SPLIT ? slice_start(blockIdx.z + 1, gridDim.z, units) : units;
  const uint4* at[2];
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    at[m] = weights_at<FORMAT>(p, min(tile + m, p.tiles - 1), 0) + lane;
  }
  Weights<FORMAT> a[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) load_a<FORMAT>(a[half], at, start, half, end);
  wait_for_previous();
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    copy_x<ROWS>(x[stage], p, row0, start + stage, end);
    copies_commit();
  }
  Sums<ROWS> sums = {}, totals = {};
  int slice = 1, stage = 0;
  for (int unit = start; unit < end; ++unit) {
    copies_wait<STAGES - 2>();
    __syncthreads();
    copy_x<ROWS>(x[(stage + STAGES - 1) % STAGES], p, row0, unit + STAGES - 1, end);
    copies_commit();
    if (!SPLIT && unit == slice_start(slice, p.slices, units)) {
      add_and_clear<ROWS>(totals, sums);
      ++slice;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      multiply<FORMAT, ROWS>(sums, a[half], x[stage], half);
      load_a<FORMAT>(a[half], at, unit + 1, half, end);
    }
    stage = (stage + 1) % STAGES;
  }
  // Where blocks wait for each other, those of the next kernel would take their places.
  if (!SPLIT || p.slices == 1) let_next_start();
  if (!SPLIT) add_and_clear<ROWS>(totals, sums);
  if (SPLIT && p.slices > 1 && !join_slices<ROWS>(p, sums)) return;
  store_all<FORMAT, ROWS, EPILOGUE>(p, tile, row0, SPLIT ? sums : totals);
}

#define MANY(rows, blocks, name, epilogue)                                                \
  KERNEL __launch_bounds__(128, blocks) matmul_many##rows##_##name(const Matmul p) {      \
    matmul_many<Bf16, rows, false, epilogue>(p);                                          \
  }                                                                                       \
  KERNEL __launch_bounds__(128, blocks) matmul_split##rows##_##name(const Matmul p) {     \
    matmul_many<Bf16, rows, true, epilogue>(p);                                           \
  }                                                                                       \
  KERNEL __launch_bounds__(128, blocks) matmul_many##rows##_fp8_##name(const Matmul p) {  \
    matmul_many<Fp8, rows, false, epilogue>(p);                                           \
  }                                                                                       \
  KERNEL __launch_bounds__(128, blocks) matmul_split##rows##_fp8_##name(const Matmul p) { \
    matmul_many<Fp8, rows, true, epilogue>(p);                                            \
  }

MANY(32, 3, plain, PLAIN)
MANY(32, 3, gated, GATED)
MANY(32, 3, residual, RESIDUAL)
MANY(64, 2, plain, PLAIN)
MANY(64, 2, gated, GATED)
MANY(64, 2, residual, RESIDUAL)

// scales[r] = 1 / rms(x[r, :]), summed as `matmul_few` does. A block makes 8 rows, a warp one step
// of each unit of one slice. grid: rows / 8; block: 128 slices.
KERNEL __launch_bounds__(1024, 1) norm_scales(const Matmul p, float* scales) {
  __shared__ float partial[8][4][WARP];
  wait_for_previous();
  let_next_start();   // x is there: see `wait_for_x`
  const int lane = threadIdx.x % WARP, step = threadIdx.x / WARP % 4, slice = threadIdx.x / 128;
  const int units = p.inputs / 64, end = slice_start(slice + 1, p.slices, units);
  const size_t unit_words = (size_t)block_rows_of(p.rows) * 256;
  const u32* x = (const u32*)p.x + blockIdx.x * 256 + step * 64 + lane;
  float squares = 0.0f;
#pragma unroll 8
  for (int unit = slice_start(slice, p.slices, units); unit < end; ++unit) {
    const u32* at = x + unit * unit_words;
    squares = add_squares(squares, at[0], at[32]);
  }
  partial[slice][step][lane] = squares;
  __syncthreads();
  if (threadIdx.x >= WARP) return;
  float sum = 0.0f;
  for (int other = 0; other < p.slices; ++other) {
    const float (&steps)[4][WARP] = partial[other];
    sum += sum_of_four(sum_of_steps(steps[0][lane], steps[1][lane], steps[2][lane],
                                    steps[3][lane]));
  }
  const int row = blockIdx.x * 8 + lane / 4;
  if (lane % 4 == 0 && row < p.rows) scales[row] = norm_scale(sum, p.inputs, p.eps);
}
