// out[r, n] = sum_k weights[n, k] x[r, k], for up to 16 rows: the time is that of reading weights.
//
// Weights are tiles of 16 outputs x 16 inputs, 512 bytes each in the order in which a warp's
// lanes hold them (see `mma`), input after input, output after output. They are the tensor
// cores' 16-row side and the rows of x its 8 columns, so that 8 rows cost what one does.
//
// A sum over k is cut into `slices` runs of tiles, the same for every number of rows; a warp adds
// up one run, and the runs are added in order. `matmul_many` does the same, so a row's result
// does not depend on how many others there are.
#include "matmul.cuh"

// Steps in flight: a warp works on one batch while the next is on its way.
#define BATCH 4

// TILES of 16 outputs share what is read of COLUMNS blocks of 8 rows.
template <int TILES, int COLUMNS>
struct Batch {
  uint4 a[BATCH][TILES];
  u32 b[BATCH][COLUMNS][2];
};

template <int TILES, int COLUMNS>
DEV void load_a(Batch<TILES, COLUMNS>& batch, const uint4* const (&a)[TILES], int step, int end) {
#pragma unroll
  for (int i = 0; i < BATCH; ++i)
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      batch.a[i][tile] = make_uint4(0, 0, 0, 0);
      if (step + i < end) batch.a[i][tile] = load_weights(a[tile] + (size_t)(step + i) * WARP);
    }
}

// Blocks are 32 words: a lane's place in one is its number.
template <int TILES, int COLUMNS>
DEV void load_b(Batch<TILES, COLUMNS>& batch, const u32* x, size_t block_row, int step, int end) {
#pragma unroll
  for (int i = 0; i < BATCH; ++i)
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) {
      batch.b[i][column][0] = 0;
      batch.b[i][column][1] = 0;
      if (step + i < end) {
        const u32* at = x + column * block_row + (step + i) * 64;
        batch.b[i][column][0] = at[0];
        batch.b[i][column][1] = at[32];
      }
    }
}

template <int TILES, int COLUMNS, bool NORM>
DEV void multiply(const Batch<TILES, COLUMNS>& batch, float (&sums)[TILES][COLUMNS][4],
                  float (&squares)[COLUMNS]) {
#pragma unroll
  for (int i = 0; i < BATCH; ++i)
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) {
      u32 b0 = batch.b[i][column][0], b1 = batch.b[i][column][1];
      if (NORM) squares[column] = add_squares(squares[column], b0, b1);
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        uint4 words = batch.a[i][tile];
        u32 a[4] = {words.x, words.y, words.z, words.w};
        mma(sums[tile][column], a, b0, b1);
      }
    }
}

// grid: tiles of outputs / (TILES * warps / slices); block: 256. A warp is (tiles, slice).
template <int TILES, int COLUMNS, bool NORM, int EPILOGUE>
DEV void matmul_few(const Matmul& p) {
  __shared__ float4 partial[8][TILES][COLUMNS][WARP];
  __shared__ float partial_squares[8][COLUMNS][8];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int slice = warp % p.slices, first_warp = warp - slice;
  const int tile = (blockIdx.x * (8 / p.slices) + warp / p.slices) * TILES;
  const int steps = p.inputs / 16;
  const int start = slice_start(slice, p.slices, steps);
  const int end = tile < p.tiles ? slice_start(slice + 1, p.slices, steps) : start;
  const uint4* a[TILES];
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    a[i] = (const uint4*)p.weights + (size_t)min(tile + i, p.tiles - 1) * steps * WARP + lane;
  }
  Batch<TILES, COLUMNS> now, next;
  load_a(now, a, start, end);
  load_a(next, a, start + BATCH, end);
  wait_for_previous();
  EARLY_START();

  const u32* x = (const u32*)p.x + lane;
  const size_t block_row = p.inputs / 8 * 32;
  float sums[TILES][COLUMNS][4] = {}, squares[COLUMNS] = {};
  load_b(now, x, block_row, start, end);
  for (int step = start; step < end; step += 2 * BATCH) {
    load_b(next, x, block_row, step + BATCH, end);
    multiply<TILES, COLUMNS, NORM>(now, sums, squares);
    load_a(now, a, step + 2 * BATCH, end);
    load_b(now, x, block_row, step + 2 * BATCH, end);
    multiply<TILES, COLUMNS, NORM>(next, sums, squares);
    load_a(next, a, step + 3 * BATCH, end);
  }
  LATE_START();

#pragma unroll
  for (int column = 0; column < COLUMNS; ++column) {
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      partial[warp][i][column][lane] = *(float4*)sums[i][column];
    }
    if (NORM) {
      float sum = sum_of_four(squares[column]);
      if (lane % 4 == 0) partial_squares[warp][column][lane / 4] = sum;
    }
  }
  __syncthreads();
  // The slices' warps share the finished tiles among them.
  for (int part = slice; part < TILES * COLUMNS; part += p.slices) {
    int column = part % COLUMNS, i = part / COLUMNS;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int other = 0; other < p.slices; ++other) {
      float4 more = partial[first_warp + other][i][column][lane];
      sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
    }
    float scale[2] = {1.0f, 1.0f};
    if (NORM) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float square = 0.0f;
        for (int other = 0; other < p.slices; ++other) {
          square += partial_squares[first_warp + other][column][lane % 4 * 2 + half];
        }
        scale[half] = norm_scale(square, p.inputs, p.eps);
      }
    }
    if (tile + i < p.tiles) {
      store<EPILOGUE>(p, tile + i, column * 8 + lane % 4 * 2, sum, scale);
    }
  }
}

#define FEW(tiles, columns, rows, name, norm, epilogue)                                \
  KERNEL __launch_bounds__(256, 1) matmul_few##rows##x##tiles##_##name(const Matmul p) {  \
    matmul_few<tiles, columns, norm, epilogue>(p);                                     \
  }
#define ALL(name, norm, epilogue)       \
  FEW(1, 1, 8, name, norm, epilogue)    \
  FEW(1, 2, 16, name, norm, epilogue)   \
  FEW(2, 1, 8, name, norm, epilogue)    \
  FEW(2, 2, 16, name, norm, epilogue)

ALL(plain, false, PLAIN)
ALL(norm_plain, true, PLAIN)
ALL(norm_gated, true, GATED)
ALL(residual, false, RESIDUAL)
