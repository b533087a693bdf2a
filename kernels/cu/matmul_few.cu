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

// Tiles in flight: a warp works on one batch while the next is on its way.
#define BATCH 4

template <int COLUMNS>
struct Batch {
  uint4 a[BATCH];
  u32 b[BATCH][COLUMNS][2];
};

template <int COLUMNS>
DEV void load_a(Batch<COLUMNS>& batch, const uint4* a, int step, int end) {
#pragma unroll
  for (int i = 0; i < BATCH; ++i) {
    batch.a[i] = make_uint4(0, 0, 0, 0);
    if (step + i < end) batch.a[i] = load_weights(a + (size_t)(step + i) * WARP);
  }
}

template <int COLUMNS>
DEV void load_b(Batch<COLUMNS>& batch, const bf16* const x[COLUMNS], int step, int end) {
#pragma unroll
  for (int i = 0; i < BATCH; ++i) {
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) {
      batch.b[i][column][0] = 0;
      batch.b[i][column][1] = 0;
      if (x[column] != 0 && step + i < end) {
        const u32* at = (const u32*)(x[column] + (step + i) * 16);
        batch.b[i][column][0] = at[0];
        batch.b[i][column][1] = at[4];
      }
    }
  }
}

template <int COLUMNS, bool NORM>
DEV void multiply(const Batch<COLUMNS>& batch, float (&sums)[COLUMNS][4],
                  float (&squares)[COLUMNS]) {
#pragma unroll
  for (int i = 0; i < BATCH; ++i) {
    u32 a[4] = {batch.a[i].x, batch.a[i].y, batch.a[i].z, batch.a[i].w};
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) {
      u32 b0 = batch.b[i][column][0], b1 = batch.b[i][column][1];
      if (NORM) squares[column] = add_squares(squares[column], b0, b1);
      mma(sums[column], a, b0, b1);
    }
  }
}

// grid: (tiles of outputs / (warps / slices)); block: 256. A warp is (tile, slice).
template <int COLUMNS, bool NORM, int EPILOGUE>
DEV void matmul_few(const Matmul& p) {
  __shared__ float4 partial[8][COLUMNS][WARP];
  __shared__ float partial_squares[8][COLUMNS][8];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int slice = warp % p.slices, first_warp = warp - slice;
  const int tile = blockIdx.x * (8 / p.slices) + warp / p.slices;
  const bool in_range = tile < p.tiles;
  const int steps = p.inputs / 16;
  int step = in_range ? slice_start(slice, p.slices, steps) : 0;
  const int end = in_range ? slice_start(slice + 1, p.slices, steps) : 0;
  const uint4* a = (const uint4*)p.weights + (size_t)(in_range ? tile : 0) * steps * WARP + lane;

  Batch<COLUMNS> now, next;
  load_a(now, a, step, end);
  load_a(next, a, step + BATCH, end);
  wait_for_previous();
  let_next_start();

  const bf16* x[COLUMNS];
#pragma unroll
  for (int column = 0; column < COLUMNS; ++column) {
    int row = column * 8 + lane / 4;
    x[column] = row < p.rows ? p.x + (size_t)row * p.x_stride + lane % 4 * 2 : 0;
  }
  float sums[COLUMNS][4] = {}, squares[COLUMNS] = {};
  load_b(now, x, step, end);
  for (; step < end; step += 2 * BATCH) {
    load_b(next, x, step + BATCH, end);
    multiply<COLUMNS, NORM>(now, sums, squares);
    load_a(now, a, step + 2 * BATCH, end);
    load_b(now, x, step + 2 * BATCH, end);
    multiply<COLUMNS, NORM>(next, sums, squares);
    load_a(next, a, step + 3 * BATCH, end);
  }

#pragma unroll
  for (int column = 0; column < COLUMNS; ++column) {
    partial[warp][column][lane] = *(float4*)sums[column];
    if (NORM) {
      float sum = sum_of_four(squares[column]);
      if (lane % 4 == 0) partial_squares[warp][column][lane / 4] = sum;
    }
  }
  __syncthreads();
  // The slices' warps share the columns among them.
  for (int column = slice; in_range && column < COLUMNS; column += p.slices) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int other = 0; other < p.slices; ++other) {
      float4 more = partial[first_warp + other][column][lane];
      sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
    }
    float scale[2] = {1.0f, 1.0f};
    if (NORM) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float square = 0.0f;
        for (int other = 0; other < p.slices; ++other) {
          square += partial_squares[first_warp + other][column][lane % 4 * 2 + i];
        }
        scale[i] = norm_scale(square, p.inputs, p.eps);
      }
    }
    store<EPILOGUE>(p, tile, column * 8 + lane % 4 * 2, sum, scale);
  }
}

#define FEW(name, norm, epilogue)                                                              \
  KERNEL __launch_bounds__(256, 2) matmul_few8_##name(const Matmul p) {                        \
    matmul_few<1, norm, epilogue>(p);                                                          \
  }                                                                                            \
  KERNEL __launch_bounds__(256, 2) matmul_few16_##name(const Matmul p) {                       \
    matmul_few<2, norm, epilogue>(p);                                                          \
  }

FEW(plain, false, PLAIN)
FEW(norm_plain, true, PLAIN)
FEW(norm_gated, true, GATED)
FEW(residual, false, RESIDUAL)
