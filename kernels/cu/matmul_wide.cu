// out[r, n] = sum_k weights[n, k] x[r, k], for 9 rows and more, on Hopper: `wgmma` gives the bits
// of mma.
//
// The same tiles, slices and order as in `matmul_few` and `matmul_many`. A block makes items of 128
// outputs x ROWS rows: one thread fills stages of shared memory with a unit of weights and of x
// each, by bulk copies, and runs ahead into the next item; two groups of four warps make 64 outputs
// each. The blocks of a cluster share the slices of a sum, which are added through shared memory.
//
// The next kernel is let in early only after a plain sum, where it is no product: of another
// product some multiprocessors would get two blocks and others none.
#include "ends.cuh"
#include "wgmma.cuh"

#define THREADS 384   // the first 128 fill, the others multiply
#define STEPS 4       // of a unit: 64 inputs, one stage
#define MULTIPLIERS 256

#ifdef HOPPER

// Blocks on a multiprocessor, registers of a thread that fills and of one that multiplies, stages.
// Registers: together those of a block that is launched with 80 or 168 a thread; with one more it
// would wait forever.
template <class FORMAT, int ROWS> struct Fit {
  static const int BLOCKS = ROWS <= 64 ? 2 : 1;
  static const int FILLER = BLOCKS == 2 ? 32 : 40;
  static const int MULTIPLIER = BLOCKS == 2 ? 104 : 232;
  static const int BUFFERS = BLOCKS == 2 ? 1 : 2;   // units of weights in registers
  static const bool HOLDS = ROWS == 128;            // sums of earlier slices in registers
  static const int WHOLE = ROWS == 32 ? 5 : ROWS == 16 || ROWS == 128 ? 6 : 4;
  static const int HALF = ROWS == 16 ? 10 : ROWS == 64 ? 6 : 8;
  static const int STAGES = FORMAT::LOADS == STEPS ? WHOLE : HALF;
  static const int A_BYTES = 8 * FORMAT::LOADS * 512;   // of a stage
};

template <class FORMAT, int ROWS> struct Shared {
  typedef Fit<FORMAT, ROWS> F;
  uint4 a[F::STAGES][8 * FORMAT::LOADS * WARP];
  bf16 x[F::STAGES][ROWS * 64];
  u64 full[F::STAGES];
  u64 empty[F::STAGES];
};

// Blocks that share a sum.
DEV int parts_of_sum() { return gridDim.z; }

// What a block does: the units `start..end` of the items `first`, `first + stride`, ...
struct Share {
  int start, end;
  int row_tiles;   // items of the same outputs
  int first, stride, items;
};

DEV Share share_of(const Matmul& p, int rows) {
  Share of;
  const int units = p.inputs / 64, each = p.slices / parts_of_sum();
  of.start = slice_start(blockIdx.z * each, p.slices, units);
  of.end = slice_start((blockIdx.z + 1) * each, p.slices, units);
  of.row_tiles = (p.rows + rows - 1) / rows;
  of.first = blockIdx.x, of.stride = gridDim.x, of.items = of.row_tiles * ((p.tiles + 7) / 8);
  return of;
}

// A stage and what it is used for: a unit of an item, which has the weights from `tile` on and the
// blocks of 8 rows from `row_block` on. Divisions are made once an item, not once a unit.
struct Use {
  int item, tile, row_block, unit, stage, round;
};
template <int ROWS> DEV void at_item(Use& use, const Share& of, int item) {
  use.item = item, use.unit = of.start;
  use.tile = item / of.row_tiles * 8, use.row_block = item % of.row_tiles * (ROWS / 8);
}
template <int ROWS, int STAGES> DEV void advance(Use& use, const Share& of) {
  if (++use.stage == STAGES) use.stage = 0, ++use.round;
  if (++use.unit == of.end) at_item<ROWS>(use, of, use.item + of.stride);
}

// One thread: fills a stage for each unit of each item. Weights do not wait for the kernel before.
template <class FORMAT, int ROWS>
DEV void fill(Shared<FORMAT, ROWS>& s, const Matmul& p) {
  const int stages = Fit<FORMAT, ROWS>::STAGES, bytes = Fit<FORMAT, ROWS>::A_BYTES;
  const int block_rows = block_rows_of(p.rows);
  const Share of = share_of(p, ROWS);
  int total = (of.items - of.first + of.stride - 1) / of.stride * (of.end - of.start);
  const u64 policy = of.row_tiles == 1 ? read_once() : read_again();
  // Blocks of 8 rows that an item has.
  auto rows_there = [&](int first) { return min(block_rows - first, ROWS / 8); };
  auto fill_a = [&](const Use& to) {
    barrier_expect(&s.full[to.stage], bytes + rows_there(to.row_block) * 1024);
    const uint4* from = weights_at<FORMAT>(p, to.tile, to.unit);
    copy_bulk(s.a[to.stage], from, bytes, &s.full[to.stage], policy);
  };
  auto fill_x = [&](const Use& to) {
    const bf16* from = p.x + ((size_t)to.unit * block_rows + to.row_block) * 512;
    copy_bulk(s.x[to.stage], from, rows_there(to.row_block) * 1024, &s.full[to.stage]);
  };
  Use first = {};
  at_item<ROWS>(first, of, of.first);
  const int early = min(total, stages);
  Use use = first;
  for (int i = 0; i < early; ++i, advance<ROWS, stages>(use, of)) fill_a(use);
  wait_for_x(p);
  use = first;
  for (int i = 0; i < early; ++i, advance<ROWS, stages>(use, of)) fill_x(use);
  for (total -= early; 0 < total; --total, advance<ROWS, stages>(use, of)) {
    barrier_wait(&s.empty[use.stage], (use.round - 1) & 1);
    fill_a(use);
    fill_x(use);
  }
}

// Where a block leaves the sums of a slice: ROWS / 8 float4 a thread. Where it adds up all, it
// keeps what it has so far in registers if there are enough, else in the one slot that it has.
template <int ROWS>
DEV float4* place(const Matmul& p, int part, int slot) {
  const int slots = parts_of_sum() == 1 ? 1 : p.slices / parts_of_sum() - 1;
  const size_t at = (size_t)(part * gridDim.x + blockIdx.x) * slots + slot;
  return (float4*)p.sums + at * (ROWS / 8 * MULTIPLIERS) + threadIdx.x - 128;
}

template <int ROWS>
DEV void leave(float4* to, const float (&sums)[ROWS / 2]) {
#pragma unroll
  for (int i = 0; i < ROWS / 8; ++i) __stcg(to + i * MULTIPLIERS, *(const float4*)&sums[i * 4]);
}

// sums = what was left + sums
template <int ROWS>
DEV void add_left(const float4* from, float (&sums)[ROWS / 2]) {
#pragma unroll
  for (int i = 0; i < ROWS / 8; ++i) {
    float4 left = __ldcg(from + i * MULTIPLIERS);
    add(left, *(const float4*)&sums[i * 4]);
    *(float4*)&sums[i * 4] = left;
  }
}

// Each block of those that share a sum adds up all slices of some columns: `count` from `first` on.
template <class FORMAT, int ROWS>
DEV void join(Shared<FORMAT, ROWS>& s, const Matmul& p, float (&sums)[ROWS / 2], int& first,
              int& count) {
  const int columns = ROWS / 8, thread = threadIdx.x - 128;
  float4* mine = (float4*)&s + thread;
  asm volatile("bar.sync 1, 256;" ::: "memory");   // nobody needs the stages any longer
#pragma unroll
  for (int i = 0; i < columns; ++i) mine[i * MULTIPLIERS] = *(const float4*)&sums[i * 4];
  cluster_sync();
  // Where there are more blocks than columns, several share one, by warps.
  const int parts = parts_of_sum(), sharing = max(parts / columns, 1), own = blockIdx.z;
  first = own * columns / parts, count = max(columns / parts, 1);
  if (thread / WARP / (8 / sharing) != own % sharing) count = 0;
  const int left = p.slices / parts - 1;
#pragma unroll
  for (int j = 0; j < (columns + 1) / 2; ++j) {
    if (count <= j) continue;
    const int at = (first + j) * MULTIPLIERS;
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int part = 0; part < parts; part += 2) {
      const float4 one = load_in(address_in(part, mine + at));
      const float4 two = load_in(address_in(part + 1, mine + at));
      for (int slot = 0; slot < left; ++slot) add(total, __ldcg(place<ROWS>(p, part, slot) + at));
      add(total, one);
      for (int slot = 0; slot < left; ++slot) {
        add(total, __ldcg(place<ROWS>(p, part + 1, slot) + at));
      }
      add(total, two);
    }
    *(float4*)&sums[j * 4] = total;
  }
}

// The threads that multiply.
template <class FORMAT, int ROWS>
DEV void multiply(Shared<FORMAT, ROWS>& s, const Matmul& p) {
  typedef Fit<FORMAT, ROWS> F;
  const int stages = F::STAGES, buffers = F::BUFFERS, units = p.inputs / 64;
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP - 4;
  const Share of = share_of(p, ROWS);
  const bool adds_all = parts_of_sum() == 1;
  float sums[ROWS / 2], totals[F::HOLDS ? ROWS / 2 : 1];
#pragma unroll
  for (int i = 0; i < ROWS / 2; ++i) sums[i] = 0.0f;
  uint4 read[FORMAT::LOADS], a[buffers][STEPS];
  int stage = 0, parity = 0;
  for (int item = of.first; item < of.items; item += of.stride) {
    const int slice_first = blockIdx.z * (p.slices / parts_of_sum());
    int slice = slice_first, boundary = slice_start(slice + 1, p.slices, units), adds = 0;
    const int tile = item / of.row_tiles * 8 + warp;
    const float2 channels = channels_of<FORMAT>(p, tile);
#pragma unroll
    for (int i = 0; i < (F::HOLDS ? ROWS / 2 : 1); ++i) totals[i] = 0.0f;
    for (int base = of.start; base < of.end; base += buffers) {
#pragma unroll
      for (int i = 0; i < buffers; ++i) {
        const int unit = base + i;
        if (unit < of.end) {
          barrier_wait(&s.full[stage], parity);
#pragma unroll
          for (int load = 0; load < FORMAT::LOADS; ++load) {
            read[load] = s.a[stage][(warp * FORMAT::LOADS + load) * WARP + lane];
          }
#pragma unroll
          for (int step = 0; step < STEPS; ++step) a[i][step] = step_of<FORMAT>(read, step);
          wgmma_begin();
#pragma unroll
          for (int step = 0; step < STEPS; ++step) {
            wgmma(sums, a[i][step], blocks_at(s.x[stage] + step * 128), adds);
            adds = 1;
          }
          wgmma_commit();
          // The unit before is done, or this one: its stage is free.
          wgmma_wait<buffers - 1>();
          if (buffers == 1) barrier_arrive(&s.empty[stage]);
          else if (of.start < unit) barrier_arrive(&s.empty[(stage + stages - 1) % stages]);
          if (++stage == stages) stage = 0, parity ^= 1;
          if (unit + 1 == boundary && boundary < of.end) {
            wgmma_wait<0>();
            hold(sums);
            if (F::HOLDS && adds_all) {
#pragma unroll
              for (int j = 0; j < ROWS / 2; ++j) totals[j] = __fadd_rn(totals[j], sums[j]);
            } else {
              if (adds_all && 0 < slice) add_left<ROWS>(place<ROWS>(p, 0, 0), sums);
              const int slot = adds_all ? 0 : slice - slice_first;
              leave<ROWS>(place<ROWS>(p, blockIdx.z, slot), sums);
            }
            ++slice;
            boundary = slice_start(slice + 1, p.slices, units);
            adds = 0;
          }
        }
      }
    }
    wgmma_wait<0>();
    hold(sums);
    if (1 < buffers) barrier_arrive(&s.empty[(stage + stages - 1) % stages]);
    wait_for_previous();
    int first = 0, count = ROWS / 8;
    if (!adds_all) {
      join<FORMAT, ROWS>(s, p, sums, first, count);
    } else if (F::HOLDS) {
#pragma unroll
      for (int j = 0; j < ROWS / 2; ++j) sums[j] = __fadd_rn(totals[j], sums[j]);
    } else if (1 < p.slices) {
      add_left<ROWS>(place<ROWS>(p, 0, 0), sums);
    }
    const int row0 = item % of.row_tiles * ROWS + first * 8;
    store_ends<FORMAT, ROWS>(p, tile, row0, sums, count, channels);
    hold(sums);
  }
}

// grid: (blocks, 1, parts); cluster: (1, 1, parts); block: 384; shared: Shared. Where a sum is
// shared, each cluster makes one item.
template <class FORMAT, int ROWS>
DEV void matmul_wide(const Matmul& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<FORMAT, ROWS>& s = *(Shared<FORMAT, ROWS>*)memory;
  typedef Fit<FORMAT, ROWS> F;
  const bool clustered = 1 < parts_of_sum();
  if (threadIdx.x == 0) {
    for (int i = 0; i < F::STAGES; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], MULTIPLIERS);
    }
    barrier_fence();
  }
  if (clustered) cluster_sync();
  else __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(F::FILLER));
    if (threadIdx.x == 0) {
      fill(s, p);
      if (p.out != 0) let_next_start();
    }
    if (clustered) cluster_sync();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(F::MULTIPLIER));
    wait_for_x(p);
    multiply(s, p);
  }
  // Nobody leaves while others reach into its memory.
  if (clustered) cluster_sync();
}

#define WIDE(rows, name, FORMAT)                                                 \
  KERNEL __launch_bounds__(THREADS, (Fit<FORMAT, rows>::BLOCKS)) name(const Matmul p) { \
    matmul_wide<FORMAT, rows>(p);                                                \
  }
#else
#define WIDE(rows, name, FORMAT) \
  KERNEL name(const Matmul p) {}
#endif

WIDE(16, matmul_wide_16, Bf16)
WIDE(32, matmul_wide_32, Bf16)
WIDE(64, matmul_wide_64, Bf16)
WIDE(128, matmul_wide_128, Bf16)
WIDE(16, matmul_wide_fp8_16, Fp8)
WIDE(32, matmul_wide_fp8_32, Fp8)
WIDE(64, matmul_wide_fp8_64, Fp8)
WIDE(128, matmul_wide_fp8_128, Fp8)
