// out[r, n] = sum_k weights[n, k] x[r, k], for many rows, on Hopper: `wgmma` gives the bits of mma.
//
// The same tiles, slices and order as in `matmul_few` and `matmul_many`. A block makes 128 outputs
// x ROWS rows: one thread fills stages of shared memory with a unit of weights and of x each, by
// bulk copies, and two groups of four warps make 64 outputs each.
#include "matmul.cuh"
#include "wgmma.cuh"

#define THREADS 384   // the first 128 fill, the others multiply
#define STEPS 4       // of a unit: 64 inputs, one stage
#define MULTIPLIERS 256

// How the slices of a sum are added: there is one; a block adds all, one after the other; blocks
// leave each for the one that ends last.
enum Mode { ONE, LOOP, SPLIT };

#ifdef HOPPER

// Blocks on a multiprocessor, registers of a thread that multiplies, stages. Registers: those of a
// block that is launched with 80 or 168 a thread, less 24 for each thread that fills; with one more
// it would wait forever.
template <int ROWS, Mode MODE> struct Fit {
  static const int BLOCKS = ROWS == 64 && MODE != LOOP ? 2 : 1;
  static const int REGISTERS = BLOCKS == 2 ? 104 : 240;
  static const int STAGES = ROWS == 64 ? 8 / BLOCKS : ROWS == 128 ? 6 : ROWS == 192 ? 5 : 4;
};

template <int ROWS, int STAGES> struct Shared {
  uint4 a[STAGES][8 * STEPS * WARP];
  bf16 x[STAGES][ROWS * 64];
  u64 full[STAGES];
  u64 empty[STAGES];
  bool is_last;
};

#define A_BYTES (8 * STEPS * 512)

// Barrier of the threads that multiply.
DEV void multipliers_sync() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// One thread: fills a stage for each of the units `start..end`. Weights do not wait for the kernel
// before.
template <int ROWS, int STAGES>
DEV void fill(Shared<ROWS, STAGES>& s, const Matmul& p, int start, int end) {
  const int stages = STAGES, units = p.inputs / 64;
  const int block_rows = block_rows_of(p.rows), first = blockIdx.x * (ROWS / 8);
  const u32 x_bytes = min(block_rows - first, ROWS / 8) * 1024;
  auto fill_a = [&](int unit, int stage) {
    barrier_expect(&s.full[stage], A_BYTES + x_bytes);
    const u32* from = p.weights + tile_place(blockIdx.y * 8, unit * STEPS, units);
    copy_bulk(s.a[stage], from, A_BYTES, &s.full[stage]);
  };
  auto fill_x = [&](int unit, int stage) {
    const bf16* from = p.x + ((size_t)unit * block_rows + first) * 512;
    copy_bulk(s.x[stage], from, x_bytes, &s.full[stage]);
  };
  const int early = min(end - start, stages);
  for (int i = 0; i < early; ++i) fill_a(start + i, i);
  wait_for_previous();
  for (int i = 0; i < early; ++i) fill_x(start + i, i);
  for (int i = stages; i < end - start; ++i) {
    barrier_wait(&s.empty[i % stages], (i / stages - 1) & 1);
    fill_a(start + i, i % stages);
    fill_x(start + i, i % stages);
  }
}

// Where one slice's sums of this block wait.
template <int ROWS>
DEV float4* place(const Matmul& p, int slice) {
  size_t block = blockIdx.y * gridDim.x + blockIdx.x, thread = threadIdx.x - 128;
  return (float4*)p.sums + (block * p.slices + slice) * (ROWS / 8) * MULTIPLIERS + thread;
}

template <int ROWS>
DEV void leave_slice(const Matmul& p, const float (&sums)[ROWS / 2], int slice) {
  float4* to = place<ROWS>(p, slice);
#pragma unroll
  for (int i = 0; i < ROWS / 8; ++i) __stcg(to + i * MULTIPLIERS, *(const float4*)&sums[i * 4]);
}

// True in the block that ends last: it has the sums of all slices, added in order.
template <int ROWS, int STAGES>
DEV bool join_slices(const Matmul& p, float (&sums)[ROWS / 2], Shared<ROWS, STAGES>& s) {
  __threadfence();
  multipliers_sync();
  if (threadIdx.x == 128) {
    u32* count = p.arrivals + blockIdx.y * gridDim.x + blockIdx.x;
    s.is_last = atomicAdd(count, 1) == gridDim.z - 1;
    if (s.is_last) *count = 0;
  }
  multipliers_sync();
  if (!s.is_last) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < ROWS / 2; ++i) sums[i] = 0.0f;
  for (int slice = 0; slice < p.slices; ++slice) {
    const float4* from = place<ROWS>(p, slice);
#pragma unroll
    for (int i = 0; i < ROWS / 8; ++i) {
      float4 more = __ldcg(from + i * MULTIPLIERS);
      sums[i * 4] += more.x, sums[i * 4 + 1] += more.y;
      sums[i * 4 + 2] += more.z, sums[i * 4 + 3] += more.w;
    }
  }
  return true;
}

template <int ROWS>
DEV void store_all(const Matmul& p, int tile, int row0, const float (&sums)[ROWS / 2]) {
#pragma unroll
  for (int column = 0; column < ROWS / 8; ++column) {
    int row = row0 + column * 8 + threadIdx.x % 4 * 2;
    float scale[2] = {1.0f, 1.0f};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (p.scales != 0 && row + i < p.rows) scale[i] = p.scales[row + i];
    }
    float4 sum = *(const float4*)&sums[column * 4];
    if (p.gated) store<GATED>(p, tile, row, sum, scale);
    else if (p.stream != 0) store<RESIDUAL>(p, tile, row, sum, scale);
    else store<PLAIN>(p, tile, row, sum, scale);
  }
}

// The threads that multiply: the units `start..end`, which begin slice `slice`.
template <int ROWS, int STAGES, Mode MODE>
DEV void multiply(Shared<ROWS, STAGES>& s, const Matmul& p, int start, int end, int slice) {
  const int stages = STAGES, units = p.inputs / 64;
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP - 4;
  float sums[ROWS / 2], totals[MODE == LOOP ? ROWS / 2 : 1];
#pragma unroll
  for (int i = 0; i < ROWS / 2; ++i) sums[i] = 0.0f;
#pragma unroll
  for (int i = 0; i < (MODE == LOOP ? ROWS / 2 : 1); ++i) totals[i] = 0.0f;
  int boundary = slice_start(slice + 1, p.slices, units), adds = 0;
  uint4 a[2][STEPS];
  for (int base = start; base < end; base += 2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int unit = base + i, count = unit - start, stage = count % stages;
      if (unit < end) {
        barrier_wait(&s.full[stage], count / stages & 1);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
          a[i][step] = s.a[stage][(warp * STEPS + step) * WARP + lane];
        }
        wgmma_begin();
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
          wgmma(sums, a[i][step], blocks_at(s.x[stage] + step * 128), adds);
          adds = 1;
        }
        wgmma_commit();
        // The unit before is done: its stage is free.
        wgmma_wait<1>();
        if (start < unit) barrier_arrive(&s.empty[(count - 1) % stages]);
        if (MODE != ONE && unit + 1 == boundary) {
          wgmma_wait<0>();
          if (MODE == SPLIT) leave_slice<ROWS>(p, sums, slice);
          if (MODE == LOOP) {
#pragma unroll
            for (int j = 0; j < ROWS / 2; ++j) totals[j] = __fadd_rn(totals[j], sums[j]);
          }
          ++slice;
          boundary = slice_start(slice + 1, p.slices, units);
          adds = 0;
        }
      }
    }
  }
  wgmma_wait<0>();
  // Where blocks wait for each other, those of the next kernel would take their places.
  if (MODE != SPLIT) let_next_start();
  const int tile = blockIdx.y * 8 + warp, row0 = blockIdx.x * ROWS;
  if constexpr (MODE == SPLIT) {
    if (!join_slices(p, sums, s)) return;
  }
  if constexpr (MODE == LOOP) store_all<ROWS>(p, tile, row0, totals);
  else store_all<ROWS>(p, tile, row0, sums);
}

// grid: (rows / ROWS, outputs / 128, parts that the slices are cut into); block: 384;
// shared: Shared.
template <int ROWS, Mode MODE>
DEV void matmul_wide(const Matmul& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  typedef Fit<ROWS, MODE> F;
  Shared<ROWS, F::STAGES>& s = *(Shared<ROWS, F::STAGES>*)memory;
  const int units = p.inputs / 64, each = p.slices / gridDim.z, slice = blockIdx.z * each;
  const int start = slice_start(slice, p.slices, units);
  const int end = slice_start(slice + each, p.slices, units);
  if (threadIdx.x == 0) {
    for (int i = 0; i < F::STAGES; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], MULTIPLIERS);
    }
    barrier_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0) fill(s, p, start, end);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(F::REGISTERS));
  wait_for_previous();
  multiply<ROWS, F::STAGES, MODE>(s, p, start, end, slice);
}

#define WIDE(name, rows, mode)                                           \
  KERNEL __launch_bounds__(THREADS, (Fit<rows, mode>::BLOCKS))           \
      matmul_wide_##name(const Matmul p) {                               \
    matmul_wide<rows, mode>(p);                                          \
  }
#else
#define WIDE(name, rows, mode) \
  KERNEL matmul_wide_##name(const Matmul p) {}
#endif

WIDE(one_64, 64, ONE)
WIDE(one_128, 128, ONE)
WIDE(one_256, 256, ONE)
WIDE(loop_64, 64, LOOP)
WIDE(loop_128, 128, LOOP)
WIDE(loop_192, 192, LOOP)
WIDE(split_64, 64, SPLIT)
WIDE(split_128, 128, SPLIT)
