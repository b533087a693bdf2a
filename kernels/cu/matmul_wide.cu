// out[r, n] = sum_k weights[n, k] x[r, k], for many rows, on Hopper: `wgmma` gives the bits of mma.
//
// The same tiles, slices and order as in `matmul_few` and `matmul_many`. A block makes 128 outputs
// x ROWS rows; two groups of four warps make 64 outputs each. Weights go from memory straight to
// the registers that multiply, x through shared memory: bulk copies fill its stages.
#include "matmul.cuh"
#include "wgmma.cuh"

#define THREADS 256
#define STEPS 4      // of a unit: 64 inputs, one stage of x

// How the slices of a sum are added: there is one; a block adds all, one after the other; blocks
// leave each for the one that ends last.
enum Mode { ONE, LOOP, SPLIT };

#ifdef HOPPER

template <int ROWS> struct Sizes {
  static const int STAGES = ROWS == 256 ? 5 : 6;
  static const int AHEAD = STAGES - 2;   // units that are filled before they are needed
};

template <int ROWS> struct Shared {
  bf16 x[Sizes<ROWS>::STAGES][ROWS * STEPS * 16];
  u64 full[Sizes<ROWS>::STAGES];
  u64 empty[Sizes<ROWS>::STAGES];
  bool is_last;
};

// One warp fills the stage of unit `index`, the `count`-th of this block.
template <int ROWS>
DEV void fill(Shared<ROWS>& s, const Matmul& p, int row0, int index, int count) {
  const int stages = Sizes<ROWS>::STAGES, stage = count % stages, lane = threadIdx.x % WARP;
  if (stages <= count) barrier_wait(&s.empty[stage], (count / stages - 1) & 1);
  const int blocks = (min(p.rows - row0, ROWS) + 7) / 8;
  if (lane == 0) barrier_expect(&s.full[stage], blocks * 1024);
  __syncwarp();
  if (lane < blocks) {
    const bf16* from = p.x + (size_t)(row0 / 8 + lane) * (p.inputs * 8) + index * 512;
    copy_bulk(s.x[stage] + lane * 512, from, 1024, &s.full[stage]);
  }
}

DEV void load_unit(uint4 (&a)[STEPS], const uint4* weights, int unit, int end) {
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    if (unit < end) a[step] = load_weights(weights + (size_t)(unit * STEPS + step) * WARP);
  }
}

// Where one slice's sums of this block wait.
template <int ROWS>
DEV float4* place(const Matmul& p, int slice) {
  size_t block = blockIdx.y * gridDim.x + blockIdx.x;
  return (float4*)p.sums + (block * p.slices + slice) * (ROWS / 8) * THREADS + threadIdx.x;
}

template <int ROWS>
DEV void leave_slice(const Matmul& p, const float (&sums)[ROWS / 2], int slice) {
  float4* to = place<ROWS>(p, slice);
#pragma unroll
  for (int i = 0; i < ROWS / 8; ++i) __stcg(to + i * THREADS, *(const float4*)&sums[i * 4]);
}

// True in the block that ends last: it has the sums of all slices, added in order.
template <int ROWS>
DEV bool join_slices(const Matmul& p, float (&sums)[ROWS / 2], Shared<ROWS>& s) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    u32* count = p.arrivals + blockIdx.y * gridDim.x + blockIdx.x;
    s.is_last = atomicAdd(count, 1) == gridDim.z - 1;
    if (s.is_last) *count = 0;
  }
  __syncthreads();
  if (!s.is_last) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < ROWS / 2; ++i) sums[i] = 0.0f;
  for (int slice = 0; slice < p.slices; ++slice) {
    const float4* from = place<ROWS>(p, slice);
#pragma unroll
    for (int i = 0; i < ROWS / 8; ++i) {
      float4 more = __ldcg(from + i * THREADS);
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

// grid: (rows / ROWS, outputs / 128, slices that are cut); block: 256; shared: Shared.
// RING: units of weights under way to a warp's registers.
template <int ROWS, int RING, Mode MODE>
DEV void matmul_wide(const Matmul& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<ROWS>& s = *(Shared<ROWS>*)memory;
  const int stages = Sizes<ROWS>::STAGES, ahead = Sizes<ROWS>::AHEAD;
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int row0 = blockIdx.x * ROWS, tile = blockIdx.y * 8 + warp;
  const int steps = p.inputs / 16, each = p.slices / gridDim.z;
  int slice = blockIdx.z * each;
  const int start = slice_start(slice, p.slices, steps) / STEPS;
  const int end = slice_start(slice + each, p.slices, steps) / STEPS;
  const uint4* weights =
      (const uint4*)p.weights + (size_t)min(tile, p.tiles - 1) * steps * WARP + lane;
  uint4 a[RING][STEPS];
#pragma unroll
  for (int i = 0; i < RING; ++i) load_unit(a[i], weights, start + i, end);
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) barrier_init(&s.full[i], 1), barrier_init(&s.empty[i], 8);
    barrier_fence();
  }
  __syncthreads();
  wait_for_previous();
  EARLY_START();
  if (warp == 0) {
    for (int i = 0; i < ahead && start + i < end; ++i) fill(s, p, row0, start + i, i);
  }

  float sums[ROWS / 2], totals[MODE == LOOP ? ROWS / 2 : 1];
#pragma unroll
  for (int i = 0; i < ROWS / 2; ++i) sums[i] = 0.0f;
#pragma unroll
  for (int i = 0; i < (MODE == LOOP ? ROWS / 2 : 1); ++i) totals[i] = 0.0f;
  int boundary = slice_start(slice + 1, p.slices, steps) / STEPS;
  int adds = 0;
  for (int base = start; base < end; base += RING) {
#pragma unroll
    for (int i = 0; i < RING; ++i) {
      const int unit = base + i, count = unit - start, stage = count % stages;
      if (unit < end) {
        barrier_wait(&s.full[stage], count / stages & 1);
        wgmma_begin();
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
          wgmma(sums, a[i][step], blocks_at(s.x[stage] + step * 128), adds);
          adds = 1;
        }
        wgmma_commit();
        // The unit before is done: its stage and its registers are free.
        wgmma_wait<1>();
        if (start < unit) {
          if (lane == 0) barrier_arrive(&s.empty[(count - 1) % stages]);
          load_unit(a[(i + RING - 1) % RING], weights, unit - 1 + RING, end);
        }
        if (warp == 0 && unit + ahead < end) fill(s, p, row0, unit + ahead, count + ahead);
        if (MODE != ONE && unit + 1 == boundary) {
          wgmma_wait<0>();
          if (MODE == SPLIT) leave_slice<ROWS>(p, sums, slice);
          if (MODE == LOOP) {
#pragma unroll
            for (int j = 0; j < ROWS / 2; ++j) totals[j] = __fadd_rn(totals[j], sums[j]);
          }
          ++slice;
          boundary = slice_start(slice + 1, p.slices, steps) / STEPS;
          adds = 0;
        }
      }
    }
  }
  wgmma_wait<0>();
  LATE_START();
  if constexpr (MODE == SPLIT) {
    if (!join_slices<ROWS>(p, sums, s)) return;
  }
  if constexpr (MODE == LOOP) store_all<ROWS>(p, tile, row0, totals);
  else store_all<ROWS>(p, tile, row0, sums);
}

#define WIDE(name, rows, ring, mode)                                              \
  KERNEL __launch_bounds__(THREADS, 1) matmul_wide_##name(const Matmul p) {       \
    matmul_wide<rows, ring, mode>(p);                                             \
  }
#else
#define WIDE(name, rows, ring, mode) \
  KERNEL matmul_wide_##name(const Matmul p) {}
#endif

WIDE(one_64, 64, 4, ONE)
WIDE(one_128, 128, 3, ONE)
WIDE(one_256, 256, 3, ONE)
WIDE(loop_64, 64, 4, LOOP)
WIDE(loop_128, 128, 3, LOOP)
WIDE(loop_192, 192, 2, LOOP)
WIDE(split_64, 64, 4, SPLIT)
WIDE(split_128, 128, 3, SPLIT)
