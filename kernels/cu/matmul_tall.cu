// out[r, n] = sum_k weights[n, k] x[r, k], for more than 64 rows, on Hopper.
//
// The same tiles, slices and order as in `matmul_broad`, for sums in slices whose blocks fill a
// turn better with 192 outputs x 128 rows. Three groups of four warps multiply 64 outputs each. A
// block has some slices, which it leaves for those that have the others; or two of four, of which
// it leaves what the other block adds up; or all of them. What these two have so far stays in
// registers.
#include "broad.cuh"

#define THREADS 512
#define MULTIPLIERS 384
#define TILES 12   // of 16 outputs
#define ROWS 128

#ifdef HOPPER

template <class FORMAT> struct Shared {
  static const bool HALF = FORMAT::LOADS < STEPS;
  static const int AS = HALF ? 8 : 6, XS = HALF ? 8 : 5;
  static const int TILE_BYTES = FORMAT::LOADS * 512;   // of a unit
  uint4 a[AS][TILES * FORMAT::LOADS * WARP];
  bf16 x[XS][ROWS * 64];
  u64 a_full[AS], a_empty[AS];
  u64 x_full[XS], x_empty[XS];
};

// Some slices of the sums of a tile, `first` and so many more.
struct Job {
  int at;            // its tile, of all that there are
  int tile, row0;    // its first 16 outputs, its first row
  int first, count;
};

// The blocks that have the slices of a tile follow each other, so that they run at the same time.
DEV int part_of_block() { return blockIdx.x; }
DEV int parts_of_sum() { return gridDim.x; }
DEV int row_tiles_of(const Matmul& p) { return (p.rows + ROWS - 1) / ROWS; }
DEV int jobs_of(const Matmul& p) { return (p.tiles + TILES - 1) / TILES * row_tiles_of(p); }

DEV Job job_of(const Matmul& p, int at) {
  const int row_tiles = row_tiles_of(p);
  Job job;
  job.at = at, job.tile = at / row_tiles * TILES, job.row0 = at % row_tiles * ROWS;
  job.count = p.slices / parts_of_sum(), job.first = part_of_block() * job.count;
  return job;
}

// One thread. Weights lie in runs of 8 tiles: of two runs a job has one and half of the other.
template <class FORMAT> DEV void fill(Shared<FORMAT>& s, const Matmul& p) {
  typedef Shared<FORMAT> S;
  const int block_rows = block_rows_of(p.rows), units = p.inputs / 64, runs = (p.tiles + 7) / 8;
  Ring<S::AS> a = {0, 0};
  Ring<S::XS> x = {0, 0};
  bool waits = true;
  for (int at = blockIdx.y; at < jobs_of(p); at += gridDim.y) {
    const Job job = job_of(p, at);
    const int start = slice_start(job.first, p.slices, units);
    const int end = slice_start(job.first + job.count, p.slices, units);
    const int run = job.tile / 8, lower = (8 - job.tile % 8) * S::TILE_BYTES;
    const int upper = run + 1 < runs ? TILES * S::TILE_BYTES - lower : 0;
    const uint4* weights = weights_at<FORMAT>(p, job.tile, start);
    const uint4* next = weights_at<FORMAT>(p, (run + 1) * 8, start);
    const int first = job.row0 / 8, bytes = min(block_rows - first, ROWS / 8) * 1024;
    const bf16* rows = p.x + ((size_t)start * block_rows + first) * 512;
    for (int left = end - start; 0 < left; --left) {
      barrier_wait(&s.a_empty[a.stage], a.parity ^ 1);
      barrier_expect(&s.a_full[a.stage], lower + upper);
      copy_bulk(s.a[a.stage], weights, lower, &s.a_full[a.stage]);
      copy_bulk_if(0 < upper, (u8*)s.a[a.stage] + lower, next, upper, &s.a_full[a.stage]);
      weights += 8 * S::TILE_BYTES / sizeof(uint4), next += 8 * S::TILE_BYTES / sizeof(uint4);
      a.advance();
      if (waits) wait_for_x(p), waits = false;
      fill_x(s, x, rows, bytes);
      rows += (size_t)block_rows * 512;
    }
  }
}

// A slice, with so many units of weights in registers.
template <class FORMAT, int BUFFERS, class S = Shared<FORMAT>>
DEV void sum_up(S& s, int units, float (&sums)[ROWS / 2], Ring<S::AS>& a, Ring<S::XS>& x) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP - 4;
  uint4 read[FORMAT::LOADS], weights[BUFFERS][STEPS];
#pragma unroll
  for (int i = 0; i < ROWS / 2; ++i) sums[i] = 0.0f;
  hold(sums);
  for (int base = 0; base < units; base += BUFFERS) {
#pragma unroll
    for (int i = 0; i < BUFFERS; ++i) {
      const int unit = base + i;
      if (units <= unit) continue;
      barrier_wait(&s.a_full[a.stage], a.parity);
      // The unit before is done: its stage is free, and its weights' registers.
      if (BUFFERS == 1) wgmma_wait<0>();
      if (BUFFERS == 1 && 0 < unit) barrier_arrive(&s.x_empty[x.before()]);
#pragma unroll
      for (int load = 0; load < FORMAT::LOADS; ++load) {
        read[load] = s.a[a.stage][(warp * FORMAT::LOADS + load) * WARP + lane];
      }
#pragma unroll
      for (int step = 0; step < STEPS; ++step) weights[i][step] = step_of<FORMAT>(read, step);
      barrier_wait(&s.x_full[x.stage], x.parity);
      multiply_unit<ROWS>(sums, weights[i], s.x[x.stage]);
      barrier_arrive(&s.a_empty[a.stage]);
      a.advance();
      if (BUFFERS != 1) wgmma_wait<1>();
      if (BUFFERS != 1 && 0 < unit) barrier_arrive(&s.x_empty[x.before()]);
      x.advance();
    }
  }
  wgmma_wait<0>();
  hold(sums);
  barrier_arrive(&s.x_empty[x.before()]);
}

// Of the two blocks of a tile the first one has the sum of two slices, `total`, and the second one
// two more apart. Each adds up half of the rows, and leaves what it has of the others.
template <class FORMAT>
DEV void join_halves(const Matmul& p, const Job& job, float (&total)[ROWS / 2],
                     float (&sums)[ROWS / 2], float2 channels) {
  const int half = ROWS / 16, tile = job.tile + threadIdx.x / WARP - 4;
  const bool is_first = part_of_block() == 0;
  float4* left = (float4*)p.sums + (size_t)job.at * (3 * half * MULTIPLIERS) + threadIdx.x - 128;
  float4 *third = left + half * MULTIPLIERS, *fourth = third + half * MULTIPLIERS;
  float4(&some)[2 * half] = *(float4(*)[2 * half]) & total;
  const float4(&last)[2 * half] = *(const float4(*)[2 * half]) & sums;
#pragma unroll
  for (int i = 0; i < half; ++i) {
    if (is_first) __stcg(left + i * MULTIPLIERS, some[half + i]);
    else __stcg(third + i * MULTIPLIERS, some[i]), __stcg(fourth + i * MULTIPLIERS, last[i]);
  }
  meet<MULTIPLIERS>(p.arrivals + job.at, is_first, 2);
#pragma unroll
  for (int i = 0; i < half; ++i) {
    if (is_first) {
      const float4 one = __ldcg(third + i * MULTIPLIERS), two = __ldcg(fourth + i * MULTIPLIERS);
      add(some[i], one), add(some[i], two);
    } else {
      float4 all = __ldcg(left + i * MULTIPLIERS);
      add(all, some[half + i]), add(all, last[half + i]);
      some[i] = all;
    }
    if (i % 4 == 3) __syncwarp();   // no more loads on their way than there are registers
  }
  const int row0 = job.row0 + part_of_block() * (ROWS / 2);
  if (p.rows <= row0) return;
  const float(&lower)[ROWS / 4] = *(const float(*)[ROWS / 4]) & total;
  store_ends<FORMAT, ROWS / 2, 8>(p, tile, row0, lower, half, channels);
}

// The threads that multiply, of a block that has two of four slices. It has one job.
template <class FORMAT> DEV void multiply_half(Shared<FORMAT>& s, const Matmul& p) {
  typedef Shared<FORMAT> S;
  Ring<S::AS> a = {0, 0};
  Ring<S::XS> x = {0, 0};
  const Job job = job_of(p, blockIdx.y);
  const int tile = job.tile + threadIdx.x / WARP - 4, units = p.inputs / 64;
  const float2 channels = channels_of<FORMAT>(p, tile < p.tiles ? tile : 0);
  float sums[ROWS / 2], total[ROWS / 2];
#pragma unroll
  for (int i = 0; i < ROWS / 2; ++i) total[i] = 0.0f;
#pragma unroll 1
  for (int slice = job.first; slice < job.first + 2; ++slice) {
    const int start = slice_start(slice, p.slices, units);
    const int end = slice_start(slice + 1, p.slices, units);
    sum_up<FORMAT, 1>(s, end - start, sums, a, x);
    if (slice == 3) break;   // the last one stays apart
#pragma unroll
    for (int i = 0; i < ROWS / 2; ++i) total[i] = __fadd_rn(total[i], sums[i]);
    hold(total);
  }
  wait_for_previous();
  join_halves<FORMAT>(p, job, total, sums, channels);
}

// What a block has of a sum: some slices, each of which it leaves; two of four; or all.
enum Share { SOME, HALF, ALL };

// The threads that multiply.
template <class FORMAT, Share SHARE> DEV void multiply(Shared<FORMAT>& s, const Matmul& p) {
  typedef Shared<FORMAT> S;
  const bool KEEPS = SHARE == ALL;
  Ring<S::AS> a = {0, 0};
  Ring<S::XS> x = {0, 0};
  const int units = p.inputs / 64;
  for (int at = blockIdx.y; at < jobs_of(p); at += gridDim.y) {
    const Job job = job_of(p, at);
    const int tile = job.tile + threadIdx.x / WARP - 4;
    const float2 channels = channels_of<FORMAT>(p, tile < p.tiles ? tile : 0);
    const Left<ROWS, MULTIPLIERS> left(p, job.at);
    float sums[ROWS / 2], total[ROWS / 2];
#pragma unroll
    for (int i = 0; i < ROWS / 2; ++i) total[i] = 0.0f;
#pragma unroll 1
    for (int slice = job.first; slice < job.first + job.count; ++slice) {
      const int start = slice_start(slice, p.slices, units);
      const int end = slice_start(slice + 1, p.slices, units);
      sum_up<FORMAT, KEEPS ? 1 : 2>(s, end - start, sums, a, x);
      if (KEEPS) {
#pragma unroll
        for (int i = 0; i < ROWS / 2; ++i) total[i] = __fadd_rn(total[i], sums[i]);
        hold(total);
      } else {
        if (slice == job.first) wait_for_previous();
        left.leave(slice, sums);
      }
    }
    if constexpr (KEEPS) {
      wait_for_previous();
      store_ends<FORMAT, ROWS>(p, tile, job.row0, total, ROWS / 8, channels);
    } else {
      meet<MULTIPLIERS>(p.arrivals + job.at, part_of_block() == 0, parts_of_sum());
      left.template join<FORMAT>(p, tile, job.row0, part_of_block(), parts_of_sum(), channels);
    }
  }
}

// grid: (parts, tiles or, where there is one part, blocks, 1); block: 512; shared: Shared.
template <class FORMAT, Share SHARE> DEV void matmul_tall(const Matmul& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  typedef Shared<FORMAT> S;
  S& s = *(S*)memory;
  if (threadIdx.x == 0) begin_rings(s, MULTIPLIERS);
  __syncthreads();
  if (threadIdx.x < 128) {
    // Registers: together those of a block that is launched with 128 a thread.
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(32));
    if (threadIdx.x == 0) {
      fill<FORMAT>(s, p);
      // Before attention; of another product some multiprocessors would get two blocks and others
      // none.
      if (p.out != 0) let_next_start();
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(160));
    wait_for_x(p);
    if constexpr (SHARE == HALF) multiply_half<FORMAT>(s, p);
    else multiply<FORMAT, SHARE>(s, p);
  }
}

#define TALL(name, FORMAT, SHARE) \
  KERNEL __launch_bounds__(THREADS, 1) name(const Matmul p) { matmul_tall<FORMAT, SHARE>(p); }
#else
#define TALL(name, FORMAT, SHARE) \
  KERNEL name(const Matmul p) {}
#endif

TALL(matmul_tall, Bf16, SOME)
TALL(matmul_tall_half, Bf16, HALF)
TALL(matmul_tall_all, Bf16, ALL)
TALL(matmul_tall_fp8, Fp8, SOME)
TALL(matmul_tall_fp8_all, Fp8, ALL)
