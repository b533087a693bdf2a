// out[r, n] = sum_k weights[n, k] x[r, k], for more rows than `matmul_wide` takes, on Hopper.
//
// The same tiles, slices and order. A job is a slice of the sums of 128 outputs x ROWS rows. One
// block a multiprocessor takes one job after the other: one thread fills stages of shared memory
// and runs ahead into the next job, two groups of four warps multiply 64 outputs each. Where there
// are several slices the sums of each job are left in memory, and `matmul_join` adds them up.
#include "ends.cuh"
#include "wgmma.cuh"

#define THREADS 384   // the first 128 fill, the others multiply
#define STEPS 4       // of a unit: 64 inputs, one stage
#define MULTIPLIERS 256

#ifdef HOPPER

// Stages of weights, which are free again once they are in registers, and of x.
template <class FORMAT, int ROWS> struct Shared {
  static const bool HALF = FORMAT::LOADS < STEPS;
  static const int AS = HALF ? 8 : ROWS == 256 ? 6 : 7;
  static const int XS = ROWS == 256 ? (HALF ? 5 : 4) : HALF ? 10 : 7;
  static const int A_BYTES = 8 * FORMAT::LOADS * 512;   // of a stage
  uint4 a[AS][8 * FORMAT::LOADS * WARP];
  bf16 x[XS][ROWS * 64];
  u64 a_full[AS], a_empty[AS];
  u64 x_full[XS], x_empty[XS];
};

// The jobs of a block: `first`, `first + stride`, ...; of the same outputs, slice after slice, each
// for all tiles of rows. From `halves` on they have half as many rows: what is left for the last
// turn is shared by twice as many blocks, where there are so many.
struct Share {
  int units, slices, row_tiles, first, stride, halves, jobs;
};
struct Job {
  int tile, row_tile, slice, start, end;   // units `start..end` of the sums of 128 outputs
  int row0, rows;
};

template <int ROWS> DEV Share share_of(const Matmul& p) {
  Share of;
  of.units = p.inputs / 64, of.slices = p.slices;
  of.row_tiles = (p.rows + ROWS - 1) / ROWS;
  of.first = blockIdx.x, of.stride = gridDim.x;
  of.jobs = (p.tiles + 7) / 8 * of.slices * of.row_tiles, of.halves = of.jobs;
  const int last = of.jobs % of.stride;
  const bool halves = ROWS == 256 && of.slices == 1 && of.stride < of.jobs && 2 * last <= of.stride;
  if (halves) of.halves -= last, of.jobs += last;
  return of;
}
template <int ROWS> DEV Job job_of(const Share& of, int at) {
  Job job;
  const int half = max(at - of.halves, 0);
  const bool is_half = of.halves <= at;
  at -= (half + 1) / 2;
  job.row_tile = at % of.row_tiles;
  job.tile = at / of.row_tiles / of.slices, job.slice = at / of.row_tiles % of.slices;
  job.start = slice_start(job.slice, of.slices, of.units);
  job.end = slice_start(job.slice + 1, of.slices, of.units);
  job.rows = is_half ? ROWS / 2 : ROWS, job.row0 = job.row_tile * ROWS + half % 2 * (ROWS / 2);
  return job;
}

// A stage of a ring and how often it was come by, odd or even.
template <int STAGES> struct Ring {
  int stage, parity;
  MEMBER void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  MEMBER int before() const { return stage == 0 ? STAGES - 1 : stage - 1; }
};

// One thread. Weights do not wait for the kernel before.
template <class FORMAT, int ROWS> DEV void fill(Shared<FORMAT, ROWS>& s, const Matmul& p) {
  typedef Shared<FORMAT, ROWS> S;
  const Share of = share_of<ROWS>(p);
  const int block_rows = block_rows_of(p.rows);
  Ring<S::AS> a = {0, 0};
  Ring<S::XS> x = {0, 0};
  bool waits = true;
  for (int at = of.first; at < of.jobs; at += of.stride) {
    const Job job = job_of<ROWS>(of, at);
    const int first = job.row0 / 8, there = min(block_rows - first, job.rows / 8);
    if (there <= 0) continue;
    for (int unit = job.start; unit < job.end; ++unit) {
      barrier_wait(&s.a_empty[a.stage], a.parity ^ 1);
      barrier_expect(&s.a_full[a.stage], S::A_BYTES);
      const uint4* weights = weights_at<FORMAT>(p, job.tile * 8, unit);
      copy_bulk(s.a[a.stage], weights, S::A_BYTES, &s.a_full[a.stage]);
      a.advance();
      if (waits) wait_for_x(p), waits = false;
      barrier_wait(&s.x_empty[x.stage], x.parity ^ 1);
      barrier_expect(&s.x_full[x.stage], there * 1024);
      const bf16* from = p.x + ((size_t)unit * block_rows + first) * 512;
      copy_bulk(s.x[x.stage], from, there * 1024, &s.x_full[x.stage]);
      x.advance();
    }
  }
}

// Stores a whole sum; leaves that of one slice of several in memory, ROWS / 8 float4 a thread.
template <class FORMAT, int ROWS>
DEV void finish(const Matmul& p, const Share& of, const Job& job, const float (&sums)[ROWS / 2],
                float2 channels) {
  if (1 < of.slices) {
    const size_t at = (size_t)(job.tile * of.row_tiles + job.row_tile) * of.slices + job.slice;
    float4* to = (float4*)p.sums + at * (ROWS / 8 * MULTIPLIERS) + threadIdx.x - 128;
#pragma unroll
    for (int i = 0; i < ROWS / 8; ++i) __stcg(to + i * MULTIPLIERS, *(const float4*)&sums[i * 4]);
    return;
  }
  const int tile = job.tile * 8 + threadIdx.x / WARP - 4;
  store_ends<FORMAT, ROWS>(p, tile, job.row0, sums, job.rows / 8, channels);
}

// sums += a unit of weights times N rows of x.
template <int N>
DEV void multiply_unit(float (&sums)[N / 2], const uint4 (&weights)[STEPS], const bf16* x) {
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < STEPS; ++step) wgmma(sums, weights[step], blocks_at(x + step * 128), 1);
  wgmma_commit();
}

// Adds up a job. The upper half of the rows is left out where nobody needs it.
template <class FORMAT, int ROWS>
DEV void sum_up(Shared<FORMAT, ROWS>& s, const Job& job, bool is_narrow, float (&sums)[ROWS / 2],
                Ring<Shared<FORMAT, ROWS>::AS>& a, Ring<Shared<FORMAT, ROWS>::XS>& x) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP - 4;
  const int narrow = ROWS == 256 ? 128 : ROWS;
  float(&lower)[narrow / 2] = *(float(*)[narrow / 2])&sums;
  uint4 read[FORMAT::LOADS], weights[2][STEPS];
  for (int base = job.start; base < job.end; base += 2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int unit = base + i;
      if (job.end <= unit) continue;
      barrier_wait(&s.a_full[a.stage], a.parity);
#pragma unroll
      for (int load = 0; load < FORMAT::LOADS; ++load) {
        read[load] = s.a[a.stage][(warp * FORMAT::LOADS + load) * WARP + lane];
      }
#pragma unroll
      for (int step = 0; step < STEPS; ++step) weights[i][step] = step_of<FORMAT>(read, step);
      barrier_wait(&s.x_full[x.stage], x.parity);
      const bf16* rows = s.x[x.stage];
      if (narrow < ROWS && is_narrow) multiply_unit<narrow>(lower, weights[i], rows);
      else multiply_unit<ROWS>(sums, weights[i], rows);
      barrier_arrive(&s.a_empty[a.stage]);
      a.advance();
      // The unit before is done: its stage is free.
      wgmma_wait<1>();
      if (job.start < unit) barrier_arrive(&s.x_empty[x.before()]);
      x.advance();
    }
  }
  wgmma_wait<0>();
  hold(sums);
  barrier_arrive(&s.x_empty[x.before()]);
}

// The threads that multiply.
template <class FORMAT, int ROWS> DEV void multiply(Shared<FORMAT, ROWS>& s, const Matmul& p) {
  const Share of = share_of<ROWS>(p);
  Ring<Shared<FORMAT, ROWS>::AS> a = {0, 0};
  Ring<Shared<FORMAT, ROWS>::XS> x = {0, 0};
  for (int at = of.first; at < of.jobs; at += of.stride) {
    const Job job = job_of<ROWS>(of, at);
    const int rows = min(p.rows - job.row0, job.rows);
    if (rows <= 0) continue;
    const float2 channels = channels_of<FORMAT>(p, job.tile * 8 + threadIdx.x / WARP - 4);
    float sums[ROWS / 2];
#pragma unroll
    for (int i = 0; i < ROWS / 2; ++i) sums[i] = 0.0f;
    hold(sums);
    sum_up<FORMAT, ROWS>(s, job, rows <= ROWS / 2, sums, a, x);
    wait_for_previous();
    finish<FORMAT, ROWS>(p, of, job, sums, channels);
  }
}

// grid: (blocks, 1, 1); block: 384; shared: Shared.
template <class FORMAT, int ROWS> DEV void matmul_broad(const Matmul& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  typedef Shared<FORMAT, ROWS> S;
  S& s = *(S*)memory;
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::AS; ++i) {
      barrier_init(&s.a_full[i], 1);
      barrier_init(&s.a_empty[i], MULTIPLIERS);
    }
    for (int i = 0; i < S::XS; ++i) {
      barrier_init(&s.x_full[i], 1);
      barrier_init(&s.x_empty[i], MULTIPLIERS);
    }
    barrier_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
      fill(s, p);
      // Before attention, or `matmul_join`; of another product some multiprocessors would get two
      // blocks and others none.
      if (p.out != 0 || 1 < p.slices) let_next_start();
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    wait_for_x(p);
    multiply(s, p);
  }
}

// Adds up the slices, one after the other, of 128 outputs x 32 rows: one warp for 16 outputs.
// grid: (tiles of outputs x of rows, ROWS / 32, 1); block: 256.
template <class FORMAT> DEV void matmul_join(const Matmul& p) {
  wait_for_previous();
  if (p.out != 0) let_next_start();
  const int columns = gridDim.y * 4, row_tiles = (p.rows + columns * 8 - 1) / (columns * 8);
  const int tile = blockIdx.x / row_tiles * 8 + threadIdx.x / WARP;
  const float2 channels = channels_of<FORMAT>(p, tile);
  const int row0 = (blockIdx.x % row_tiles * columns + blockIdx.y * 4) * 8;
  if (p.rows <= row0) return;
  float4 total[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) total[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const float4* from =
      (const float4*)p.sums + ((size_t)blockIdx.x * p.slices * columns + blockIdx.y * 4) * 256;
#pragma unroll 4
  for (int slice = 0; slice < p.slices; ++slice) {
    const float4* at = from + (size_t)slice * columns * 256 + threadIdx.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) add(total[i], __ldcg(at + i * 256));
  }
  const float(&sums)[16] = *(const float(*)[16]) & total;
  store_ends<FORMAT, 32>(p, tile, row0, sums, 4, channels);
}

#define BROAD(rows, name, FORMAT)                                  \
  KERNEL __launch_bounds__(THREADS, 1) name(const Matmul p) {      \
    matmul_broad<FORMAT, rows>(p);                                 \
  }
#define JOIN(name, FORMAT) \
  KERNEL __launch_bounds__(256, 2) name(const Matmul p) { matmul_join<FORMAT>(p); }
#else
#define BROAD(rows, name, FORMAT) \
  KERNEL name(const Matmul p) {}
#define JOIN(name, FORMAT) BROAD(0, name, FORMAT)
#endif

BROAD(128, matmul_broad_128, Bf16)
BROAD(256, matmul_broad_256, Bf16)
JOIN(matmul_join, Bf16)
BROAD(128, matmul_broad_fp8_128, Fp8)
BROAD(256, matmul_broad_fp8_256, Fp8)
JOIN(matmul_join_fp8, Fp8)
