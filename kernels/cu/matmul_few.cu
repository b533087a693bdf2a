// out[r, n] = sum_k weights[n, k] x[r, k], for up to 64 rows: the time is that of reading weights
// as long as x, which is read anew for each 16 outputs, is small.
//
// Weights are the tensor cores' 16-row side and the rows of x its 8 columns, so that 8 rows cost
// what one does. A sum over inputs is cut into `slices` runs of units, the same for every number of
// rows; a warp adds up one run, and the runs are added in order. The kernels for many rows do the
// same, so a row's result does not depend on how many others there are.
#include "matmul.cuh"

#define STEPS 4   // of a unit

// Weights of a unit, and rows of x of one, on their way or in use. TILES of 16 outputs share what
// is read of COLUMNS blocks of 8 rows.
template <class FORMAT, int TILES> using Weights = uint4[TILES][FORMAT::LOADS];
template <int COLUMNS> using Columns = u32[STEPS][COLUMNS][2];

template <class FORMAT, int TILES>
DEV void load_a(Weights<FORMAT, TILES>& to, const uint4* const (&a)[TILES], int unit, int end) {
  const int loads = FORMAT::LOADS;
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      to[tile][i] = make_uint4(0, 0, 0, 0);
      if (end <= unit) continue;
      to[tile][i] = load_weights(a[tile] + (size_t)unit * (8 * loads * WARP) + i * WARP);
    }
}

// A line of 8 rows x 8 inputs is 32 words: a lane's place in it is its number. `blocks` are left.
template <int COLUMNS>
DEV void load_b(Columns<COLUMNS>& to, const u32* x, int block_rows, int blocks, int unit, int end) {
#pragma unroll
  for (int i = 0; i < STEPS; ++i)
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) {
      to[i][column][0] = 0;
      to[i][column][1] = 0;
      if (unit < end && column < blocks) {
        const u32* at = x + ((size_t)unit * block_rows + column) * 256 + i * 64;
        to[i][column][0] = at[0];
        to[i][column][1] = at[32];
      }
    }
}

template <class FORMAT, int TILES, int COLUMNS, bool NORM>
DEV void multiply(const Weights<FORMAT, TILES>& weights, const Columns<COLUMNS>& b,
                  float (&sums)[TILES][COLUMNS][4], float (&squares)[COLUMNS][STEPS]) {
#pragma unroll
  for (int i = 0; i < STEPS; ++i) {
    uint4 words[TILES];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) words[tile] = step_of<FORMAT>(weights[tile], i);
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) {
      u32 b0 = b[i][column][0], b1 = b[i][column][1];
      if (NORM) squares[column][i] = add_squares(squares[column][i], b0, b1);
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        u32 a[4] = {words[tile].x, words[tile].y, words[tile].z, words[tile].w};
        mma(sums[tile][column], a, b0, b1);
      }
    }
  }
}

// grid: (tiles of outputs / (TILES * warps / slices), rows / (8 COLUMNS)); block: 256. A warp is
// (tiles, slice); DEPTH units of its weights are under way.
template <class FORMAT, int TILES, int COLUMNS, int DEPTH, int AHEAD, bool NORM, int EPILOGUE>
DEV void matmul_few(const Matmul& p) {
  // Sums of so many tiles at once: shared memory has no room for more.
  const int together = TILES * COLUMNS <= 8 ? TILES : 1;
  __shared__ float4 partial[8][together][COLUMNS][WARP];
  __shared__ float partial_squares[8][COLUMNS][8];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int slice = warp % p.slices, first_warp = warp - slice;
  const int tile = (blockIdx.x * (8 / p.slices) + warp / p.slices) * TILES;
  const int units = p.inputs / 64, block_rows = block_rows_of(p.rows);
  const int start = slice_start(slice, p.slices, units);
  const int end = tile < p.tiles ? slice_start(slice + 1, p.slices, units) : start;
  const uint4* at[TILES];
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    at[i] = weights_at<FORMAT>(p, min(tile + i, p.tiles - 1), 0) + lane;
  }
  Weights<FORMAT, TILES> a[DEPTH];
  Columns<COLUMNS> b[AHEAD];
#pragma unroll
  for (int i = 0; i < DEPTH; ++i) load_a<FORMAT>(a[i], at, start + i, end);
  // Of the tile that this warp stores first.
  const int own = tile + min(slice, TILES * COLUMNS - 1) / COLUMNS;
  float2 channels = channels_of<FORMAT>(p, min(own, p.tiles - 1));
  wait_for_previous();
  // No product follows a plain one: what the next kernel loads is not in the way.
  if (p.early || EPILOGUE == PLAIN) let_next_start();

  const int first = blockIdx.y * COLUMNS, blocks = block_rows - first;
  const u32* x = (const u32*)p.x + first * 256 + lane;
  float sums[TILES][COLUMNS][4] = {}, squares[COLUMNS][STEPS] = {};
#pragma unroll
  for (int i = 0; i + 1 < AHEAD; ++i) load_b(b[i], x, block_rows, blocks, start + i, end);
  for (int base = start; base < end; base += DEPTH) {
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
      const int unit = base + i;
      load_b(b[(i + AHEAD - 1) % AHEAD], x, block_rows, blocks, unit + AHEAD - 1, end);
      multiply<FORMAT, TILES, COLUMNS, NORM>(a[i], b[i % AHEAD], sums, squares);
      load_a<FORMAT>(a[i], at, unit + DEPTH, end);
    }
  }
  // The slices' warps share the finished tiles among them.
  const int row0 = first * 8 + lane % 4 * 2;
  float4 before = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (slice < TILES * COLUMNS) {
    before = read_stream<EPILOGUE>(p, tile + slice / COLUMNS, row0 + slice % COLUMNS * 8);
  }
#pragma unroll
  for (int column = 0; column < COLUMNS; ++column) {
    if (!NORM) break;
    const float* steps = squares[column];
    float sum = sum_of_four(sum_of_steps(steps[0], steps[1], steps[2], steps[3]));
    if (lane % 4 == 0) partial_squares[warp][column][lane / 4] = sum;
  }
#pragma unroll
  for (int base = 0; base < TILES; base += together) {
    if (0 < base) __syncthreads();
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) {
#pragma unroll
      for (int i = 0; i < together; ++i) {
        partial[warp][i][column][lane] = *(float4*)sums[base + i][column];
      }
    }
    __syncthreads();
    for (int part = slice; part < together * COLUMNS; part += p.slices) {
      const int column = part % COLUMNS, i = part / COLUMNS, row = row0 + column * 8;
      const int its_tile = tile + base + i;
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (int other = 0; other < p.slices; ++other) {
        add(sum, partial[first_warp + other][i][column][lane]);
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
      if (0 < base || part != slice) {
        before = read_stream<EPILOGUE>(p, its_tile, row);
        if (1 < TILES) channels = channels_of<FORMAT>(p, min(its_tile, p.tiles - 1));
      }
      sum = scaled<FORMAT>(sum, channels);
      if (its_tile < p.tiles) store<EPILOGUE>(p, its_tile, row, sum, scale, before);
    }
  }
}

// `blocks` of up to 8 rows share a multiprocessor: projections of queries, keys and values are a
// little more than two make at once.
#define FEW(rows, blocks, tiles, columns, depth, name, norm, epilogue)                      \
  KERNEL __launch_bounds__(256, blocks) matmul_few##rows##_##name(const Matmul p) {         \
    matmul_few<Bf16, tiles, columns, depth, 2, norm, epilogue>(p);                          \
  }
#define FP8(rows, blocks, tiles, columns, depth, ahead, name, norm, epilogue)               \
  KERNEL __launch_bounds__(256, blocks) matmul_few##rows##_fp8_##name(const Matmul p) {     \
    matmul_few<Fp8, tiles, columns, depth, ahead, norm, epilogue>(p);                       \
  }
// With squares 64 rows have no registers left to read x ahead, nor 16 to have more weights under
// way, which half as many bytes would like.
#define ALL(name, norm, epilogue)                               \
  FEW(16, 1, 1, 2, 2, name, norm, epilogue)                     \
  FEW(16x2, 1, 2, 2, 2, name, norm, epilogue)                   \
  FEW(32, 1, 1, 4, 2, name, norm, epilogue)                     \
  FEW(64, 1, 1, 8, 2, name, norm, epilogue)                     \
  FP8(16, 1, 1, 2, (norm ? 2 : 4), 2, name, norm, epilogue)     \
  FP8(16x2, 1, 2, 2, 2, 2, name, norm, epilogue)                \
  FP8(32, 1, 1, 4, 2, 2, name, norm, epilogue)                  \
  FP8(64, 1, 1, 8, 2, (norm ? 1 : 2), name, norm, epilogue)

ALL(plain, false, PLAIN)
ALL(norm_plain, true, PLAIN)
ALL(norm_gated, true, GATED)
ALL(residual, false, RESIDUAL)
FEW(8, 3, 1, 1, 2, plain, false, PLAIN)
FEW(8, 3, 1, 1, 2, norm_plain, true, PLAIN)
FEW(8, 1, 1, 1, 2, norm_gated, true, GATED)
FEW(8, 1, 1, 1, 2, residual, false, RESIDUAL)
FP8(8, 3, 1, 1, 2, 2, plain, false, PLAIN)
FP8(8, 3, 1, 1, 2, 2, norm_plain, true, PLAIN)
FP8(8, 3, 1, 1, 2, 2, norm_gated, true, GATED)
FP8(8, 2, 1, 1, 4, 2, residual, false, RESIDUAL)
// For small matrices, so that no block waits for a place: two tiles a warp, or two blocks a
// multiprocessor.
FEW(32x2, 1, 2, 4, 2, norm_gated, true, GATED)
KERNEL __launch_bounds__(256, 1) matmul_few64x2_norm_gated(const Matmul p) {
  matmul_few<Bf16, 2, 8, 1, 1, true, GATED>(p);
}
KERNEL __launch_bounds__(256, 2) matmul_few32dense_residual(const Matmul p) {
  matmul_few<Bf16, 1, 4, 2, 1, false, RESIDUAL>(p);
}
// Few warps with much to do each: more weights are under way.
FEW(8deep, 1, 1, 1, 4, residual, false, RESIDUAL)
FEW(8deep, 1, 1, 1, 4, norm_gated, true, GATED)
FP8(8deep, 2, 1, 1, 4, 2, plain, false, PLAIN)
FP8(8deep, 2, 1, 1, 4, 2, norm_plain, true, PLAIN)
FP8(8deep, 2, 1, 1, 4, 2, norm_gated, true, GATED)
FP8(8deep, 1, 1, 1, 8, 2, residual, false, RESIDUAL)
