// out[r, n] = sum_k weights[n, k] x[r, k], for up to 64 rows: the time is that of reading weights
// as long as x, which is read anew for each 16 outputs, is small.
//
// Weights are the tensor cores' 16-row side and the rows of x its 8 columns, so that 8 rows cost
// what one does. A sum over inputs is cut into `slices` runs of units, the same for every number of
// rows; a warp adds up one run, and the runs are added in order. The kernels for many rows do the
// same, so a row's result does not depend on how many others there are.
#include "matmul.cuh"

#define STEPS 4   // of a unit

// A unit of weights and of x, on its way or in use. TILES of 16 outputs share what is read of
// COLUMNS blocks of 8 rows.
template <int TILES, int COLUMNS>
struct Unit {
  uint4 a[TILES][STEPS];
  u32 b[STEPS][COLUMNS][2];
};

template <int TILES, int COLUMNS>
DEV void load_a(Unit<TILES, COLUMNS>& to, const uint4* const (&a)[TILES], int unit, int end) {
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      to.a[tile][i] = make_uint4(0, 0, 0, 0);
      if (end <= unit) continue;
      to.a[tile][i] = load_weights(a[tile] + (size_t)unit * (8 * STEPS * WARP) + i * WARP);
    }
}

// A line of 8 rows x 8 inputs is 32 words: a lane's place in it is its number. `blocks` are left.
template <int TILES, int COLUMNS>
DEV void load_b(Unit<TILES, COLUMNS>& to, const u32* x, int block_rows, int blocks, int unit,
                int end) {
#pragma unroll
  for (int i = 0; i < STEPS; ++i)
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) {
      to.b[i][column][0] = 0;
      to.b[i][column][1] = 0;
      if (unit < end && column < blocks) {
        const u32* at = x + ((size_t)unit * block_rows + column) * 256 + i * 64;
        to.b[i][column][0] = at[0];
        to.b[i][column][1] = at[32];
      }
    }
}

template <int TILES, int COLUMNS, bool NORM>
DEV void multiply(const Unit<TILES, COLUMNS>& of, float (&sums)[TILES][COLUMNS][4],
                  float (&squares)[COLUMNS]) {
#pragma unroll
  for (int i = 0; i < STEPS; ++i)
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) {
      u32 b0 = of.b[i][column][0], b1 = of.b[i][column][1];
      if (NORM) squares[column] = add_squares(squares[column], b0, b1);
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        uint4 words = of.a[tile][i];
        u32 a[4] = {words.x, words.y, words.z, words.w};
        mma(sums[tile][column], a, b0, b1);
      }
    }
}

// grid: (tiles of outputs / (TILES * warps / slices), rows / (8 COLUMNS)); block: 256. A warp is
// (tiles, slice).
template <int TILES, int COLUMNS, bool NORM, int EPILOGUE>
DEV void matmul_few(const Matmul& p) {
  __shared__ float4 partial[8][TILES][COLUMNS][WARP];
  __shared__ float partial_squares[8][COLUMNS][8];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int slice = warp % p.slices, first_warp = warp - slice;
  const int tile = (blockIdx.x * (8 / p.slices) + warp / p.slices) * TILES;
  const int units = p.inputs / 64, block_rows = block_rows_of(p.rows);
  const int start = slice_start(slice, p.slices, units);
  const int end = tile < p.tiles ? slice_start(slice + 1, p.slices, units) : start;
  const uint4* a[TILES];
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    a[i] = (const uint4*)(p.weights + tile_place(min(tile + i, p.tiles - 1), 0, units)) + lane;
  }
  Unit<TILES, COLUMNS> now, next;
  load_a(now, a, start, end);
  load_a(next, a, start + 1, end);
  wait_for_previous();
  // No product follows a plain one: what the next kernel loads is not in the way.
  if (p.early || EPILOGUE == PLAIN) let_next_start();

  const int first = blockIdx.y * COLUMNS, blocks = block_rows - first;
  const u32* x = (const u32*)p.x + first * 256 + lane;
  float sums[TILES][COLUMNS][4] = {}, squares[COLUMNS] = {};
  load_b(now, x, block_rows, blocks, start, end);
  for (int unit = start; unit < end; unit += 2) {
    load_b(next, x, block_rows, blocks, unit + 1, end);
    multiply<TILES, COLUMNS, NORM>(now, sums, squares);
    load_a(now, a, unit + 2, end);
    load_b(now, x, block_rows, blocks, unit + 2, end);
    multiply<TILES, COLUMNS, NORM>(next, sums, squares);
    load_a(next, a, unit + 3, end);
  }
  let_next_start();

#pragma unroll
  for (int column = 0; column < COLUMNS; ++column) {
#pragma unroll
    for (int i = 0; i < TILES; ++i) partial[warp][i][column][lane] = *(float4*)sums[i][column];
    if (NORM) {
      float sum = sum_of_four(squares[column]);
      if (lane % 4 == 0) partial_squares[warp][column][lane / 4] = sum;
    }
  }
  __syncthreads();
  // The slices' warps share the finished tiles among them.
  for (int part = slice; part < TILES * COLUMNS; part += p.slices) {
    const int column = part % COLUMNS, i = part / COLUMNS;
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
      store<EPILOGUE>(p, tile + i, (first + column) * 8 + lane % 4 * 2, sum, scale);
    }
  }
}

// `blocks` of up to 8 rows share a multiprocessor: projections of queries, keys and values are a
// little more than two make at once.
#define FEW(rows, blocks, tiles, columns, name, norm, epilogue)                          \
  KERNEL __launch_bounds__(256, blocks) matmul_few##rows##_##name(const Matmul p) {      \
    matmul_few<tiles, columns, norm, epilogue>(p);                                       \
  }
#define ALL(name, blocks, norm, epilogue)           \
  FEW(8, blocks, 1, 1, name, norm, epilogue)        \
  FEW(16, 1, 1, 2, name, norm, epilogue)            \
  FEW(16x2, 1, 2, 2, name, norm, epilogue)          \
  FEW(32, 1, 1, 4, name, norm, epilogue)            \
  FEW(64, 1, 1, 8, name, norm, epilogue)

ALL(plain, 3, false, PLAIN)
ALL(norm_plain, 3, true, PLAIN)
ALL(norm_gated, 1, true, GATED)
ALL(residual, 1, false, RESIDUAL)
