// out[r, n] = sum_k weights[n, k] x[r, k], for more than 32 rows, on Hopper.
//
// The same tiles, slices and order. A job is a slice of the sums of 128 outputs x ROWS rows. One
// block a multiprocessor takes one job after the other: one thread fills stages of shared memory
// and runs ahead into the next job, two groups of four warps multiply 64 outputs each. Where there
// are several slices each block has one of them, and those of a tile add them up together; or a
// job is all slices, or two of four for each of a pair of blocks, and what a block has of the sum
// so far it keeps.
#include "broad.cuh"

#define THREADS 384
#define MULTIPLIERS 256

#ifdef HOPPER

// Where a block adds up all slices: what it has so far of so many columns of 8 rows.
template <int COLUMNS> struct Kept {
  float4 kept[COLUMNS][MULTIPLIERS];
};
template <> struct Kept<0> {};

// Stages of weights, which are free again once they are in registers, and of x. PARTS: how many
// blocks add up the slices of a tile, 0 if a job is one. They keep KEPT columns here, and MORE in
// registers.
template <class FORMAT, int ROWS, int PARTS> struct Shared : Kept<0 < PARTS ? 24 : 0> {
  static const bool HALF = FORMAT::LOADS < STEPS, KEEPS = 0 < PARTS;
  static const int WHOLE_XS = ROWS == 256 ? 4 : ROWS == 192 ? 5 : 7;
  static const int HALF_XS = ROWS == 256 ? 5 : ROWS == 192 ? 6 : 10;
  static const int AS = KEEPS ? (HALF ? 4 : 2) : HALF ? 8 : ROWS == 128 ? 7 : 6;
  static const int XS = KEEPS ? 3 : HALF ? HALF_XS : WHOLE_XS;
  static const int A_BYTES = 8 * FORMAT::LOADS * 512;   // of a stage
  static const int KEPT = KEEPS ? 24 : 0, MORE = ROWS / 8 - KEPT;
  uint4 a[AS][8 * FORMAT::LOADS * WARP];
  bf16 x[XS][ROWS * 64];
  u64 a_full[AS], a_empty[AS];
  u64 x_full[XS], x_empty[XS];
};

// The jobs of a block: `first`, `first + stride`, ...; of the same outputs, tile after tile of
// rows, slice after slice. From `halves` on they have half as many rows: what is left for the last
// turn is shared by twice as many blocks, where there are so many.
struct Share {
  int units, slices, row_tiles, first, stride, halves, jobs;
};
struct Job {
  int tile, row_tile, slice, start, end;   // units `start..end` of the sums of 128 outputs
  int row0, rows;
};

template <int ROWS, int PARTS> DEV Share share_of(const Matmul& p) {
  Share of;
  of.units = p.inputs / 64, of.slices = 0 < PARTS ? 1 : p.slices;
  of.row_tiles = (p.rows + ROWS - 1) / ROWS;
  of.first = blockIdx.x, of.stride = gridDim.x;
  of.jobs = (p.tiles + 7) / 8 * of.slices * of.row_tiles, of.halves = of.jobs;
  const int last = of.jobs % of.stride;
  const bool halves = ROWS == 256 && of.slices == 1 && of.stride < of.jobs && 2 * last <= of.stride;
  if (halves) of.halves -= last, of.jobs += last;
  return of;
}
template <int ROWS, int PARTS> DEV Job job_of(const Share& of, int at) {
  Job job;
  const int half = max(at - of.halves, 0);
  const bool is_half = of.halves <= at;
  at -= (half + 1) / 2;
  job.slice = at % of.slices, at /= of.slices;
  job.row_tile = at % of.row_tiles, job.tile = at / of.row_tiles;
  const int parts = 0 < PARTS ? PARTS : of.slices;
  const int part = PARTS == 2 ? blockIdx.z : job.slice;
  job.start = slice_start(part, parts, of.units);
  job.end = slice_start(part + 1, parts, of.units);
  job.rows = is_half ? ROWS / 2 : ROWS, job.row0 = job.row_tile * ROWS + half % 2 * (ROWS / 2);
  return job;
}

// One thread. Weights do not wait for the kernel before.
template <class FORMAT, int ROWS, int PARTS>
DEV void fill(Shared<FORMAT, ROWS, PARTS>& s, const Matmul& p) {
  typedef Shared<FORMAT, ROWS, PARTS> S;
  const Share of = share_of<ROWS, PARTS>(p);
  const int block_rows = block_rows_of(p.rows);
  Ring<S::AS> a = {0, 0};
  Ring<S::XS> x = {0, 0};
  bool waits = true;
  for (int at = of.first; at < of.jobs; at += of.stride) {
    const Job job = job_of<ROWS, PARTS>(of, at);
    const int first = job.row0 / 8, bytes = min(block_rows - first, job.rows / 8) * 1024;
    if (bytes <= 0) continue;
    const uint4* weights = weights_at<FORMAT>(p, job.tile * 8, job.start);
    const bf16* rows = p.x + ((size_t)job.start * block_rows + first) * 512;
    for (int left = job.end - job.start; 0 < left; --left) {
      barrier_wait(&s.a_empty[a.stage], a.parity ^ 1);
      barrier_expect(&s.a_full[a.stage], S::A_BYTES);
      copy_bulk(s.a[a.stage], weights, S::A_BYTES, &s.a_full[a.stage]);
      weights += S::A_BYTES / sizeof(uint4);
      a.advance();
      if (waits) wait_for_x(p), waits = false;
      fill_x(s, x, rows, bytes);
      rows += (size_t)block_rows * 512;
    }
    if (PARTS == 2) return;   // a pair has one job
  }
}

// Stores a sum; that of one slice of several where all are there.
template <class FORMAT, int ROWS>
DEV void finish(const Matmul& p, const Share& of, const Job& job, const float (&sums)[ROWS / 2],
                float2 channels) {
  const int tile = job.tile * 8 + threadIdx.x / WARP - 4;
  if (of.slices == 1) {
    store_ends<FORMAT, ROWS>(p, tile, job.row0, sums, job.rows / 8, channels);
    return;
  }
  const int at = job.tile * of.row_tiles + job.row_tile;
  const Left<ROWS, MULTIPLIERS> left(p, at);
  left.leave(job.slice, sums);
  meet<MULTIPLIERS>(p.arrivals + at, job.slice == 0, of.slices);
  left.template join<FORMAT>(p, tile, job.row0, job.slice, of.slices, channels);
}

// Adds up a job. The upper half of the rows is left out where nobody needs it.
template <class FORMAT, int ROWS, int PARTS, class S = Shared<FORMAT, ROWS, PARTS>>
DEV void sum_up(S& s, const Job& job, bool is_narrow, float (&sums)[ROWS / 2], Ring<S::AS>& a,
                Ring<S::XS>& x) {
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

// What a thread has kept of a column plus its sum; and where it is kept again.
template <class S, int N>
DEV void add_kept(S& s, float4 (&more)[S::MORE], bool is_first, bool is_last, float (&sums)[N]) {
#pragma unroll
  for (int column = 0; column < N / 4; ++column) {
    float4 sum = *(const float4*)&sums[column * 4], total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4& kept = column < S::KEPT ? s.kept[column][threadIdx.x - 128] : more[column - S::KEPT];
    if (!is_first) total = kept;
    add(total, sum);
    if (!is_last) kept = total, total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    *(float4*)&sums[column * 4] = total;
  }
}

// The first of a pair of blocks has the sum of the first two slices, the second has one more that
// it kept and one that it has not. Each adds up half of the columns, which become its first ones.
template <class S, int N>
DEV void join_pair(S& s, const float4 (&more)[S::MORE], float (&sums)[N]) {
  const int half = N / 8, thread = threadIdx.x - 128;
  float4* box = (float4*)s.x + thread;
  const u32 there = address_in(1 - blockIdx.z, box), kept = address_in(1, &s.kept[0][thread]);
  const int bytes = MULTIPLIERS * sizeof(float4);
  multipliers_sync<MULTIPLIERS>();   // nobody needs the stages any longer
  if (blockIdx.z == 0) {
#pragma unroll
    for (int i = 0; i < half; ++i) box[i * MULTIPLIERS] = *(const float4*)&sums[(half + i) * 4];
    cluster_sync();
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float4 third = load_in(kept + i * bytes), fourth = load_in(there + i * bytes);
      float4 total = *(const float4*)&sums[i * 4];
      add(total, third), add(total, fourth);
      *(float4*)&sums[i * 4] = total;
      if (i % 4 == 3) __syncwarp();   // no more loads on their way than there are registers
    }
  } else {
#pragma unroll
    for (int i = 0; i < half; ++i) box[i * MULTIPLIERS] = *(const float4*)&sums[i * 4];
    cluster_sync();
#pragma unroll
    for (int i = 0; i < half; ++i) {
      float4 total = load_in(there + i * bytes);
      add(total, half + i < S::KEPT ? s.kept[half + i][thread] : more[half + i - S::KEPT]);
      add(total, *(const float4*)&sums[(half + i) * 4]);
      *(float4*)&sums[i * 4] = total;
      if (i % 4 == 3) __syncwarp();   // no more loads on their way than there are registers
    }
  }
}

// The threads that multiply.
template <class FORMAT, int ROWS, int PARTS>
DEV void multiply(Shared<FORMAT, ROWS, PARTS>& s, const Matmul& p) {
  typedef Shared<FORMAT, ROWS, PARTS> S;
  const Share of = share_of<ROWS, PARTS>(p);
  Ring<S::AS> a = {0, 0};
  Ring<S::XS> x = {0, 0};
  for (int at = of.first; at < of.jobs; at += of.stride) {
    Job job = job_of<ROWS, PARTS>(of, at);
    const int rows = min(p.rows - job.row0, job.rows);
    if (rows <= 0) continue;
    const float2 channels = channels_of<FORMAT>(p, job.tile * 8 + threadIdx.x / WARP - 4);
    float sums[ROWS / 2];
#pragma unroll
    for (int i = 0; i < ROWS / 2; ++i) sums[i] = 0.0f;
    hold(sums);
    if constexpr (0 < PARTS) {
      float4 more[S::MORE];
      const int each = PARTS == 2 ? 2 : p.slices, first = PARTS == 2 ? blockIdx.z * 2 : 0;
#pragma unroll 1
      for (int slice = first; slice < first + each; ++slice) {
        job.start = slice_start(slice, p.slices, of.units);
        job.end = slice_start(slice + 1, p.slices, of.units);
        sum_up<FORMAT, ROWS, PARTS>(s, job, rows <= ROWS / 2, sums, a, x);
        const bool is_last = slice + 1 == first + each;
        const bool stays = PARTS == 2 && is_last && blockIdx.z == 1;   // see `join_pair`
        if (!stays) add_kept(s, more, slice == first, is_last, sums);
        hold(sums);
      }
      if constexpr (PARTS == 2) {
        join_pair<S>(s, more, sums);
        job.rows = ROWS / 2, job.row0 += blockIdx.z * (ROWS / 2);
      }
    } else {
      sum_up<FORMAT, ROWS, PARTS>(s, job, rows <= ROWS / 2, sums, a, x);
    }
    wait_for_previous();
    finish<FORMAT, ROWS>(p, of, job, sums, channels);
    if (PARTS == 2) return;   // a pair has one job
  }
}

// grid: (blocks, 1, max(PARTS, 1)); cluster: (1, 1, max(PARTS, 1)); block: 384; shared: Shared.
template <class FORMAT, int ROWS, int PARTS> DEV void matmul_broad(const Matmul& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  typedef Shared<FORMAT, ROWS, PARTS> S;
  S& s = *(S*)memory;
  if (threadIdx.x == 0) begin_rings(s, MULTIPLIERS);
  if (PARTS == 2) cluster_sync();
  else __syncthreads();
  if (threadIdx.x < 128) {
    // Registers: together those of a block that is launched with 168 a thread.
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(0 < PARTS ? 24 : 40));
    if (threadIdx.x == 0) {
      fill<FORMAT, ROWS, PARTS>(s, p);
      // Before attention; of another product some multiprocessors would get two blocks and others
      // none.
      if (p.out != 0) let_next_start();
    }
    if (PARTS == 2) cluster_sync();   // that of `join_pair`
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(0 < PARTS ? 240 : 232));
    wait_for_x(p);
    multiply<FORMAT, ROWS, PARTS>(s, p);
  }
  // Nobody leaves while the other reaches into its memory.
  if (PARTS == 2) cluster_sync();
}

#define BROAD(rows, name, FORMAT, PARTS)                           \
  KERNEL __launch_bounds__(THREADS, 1) name(const Matmul p) {      \
    matmul_broad<FORMAT, rows, PARTS>(p);                          \
  }
#else
#define BROAD(rows, name, FORMAT, PARTS) \
  KERNEL name(const Matmul p) {}
#endif

BROAD(128, matmul_broad_128, Bf16, 0)
BROAD(192, matmul_broad_192, Bf16, 0)
BROAD(256, matmul_broad_256, Bf16, 0)
BROAD(256, matmul_broad_all, Bf16, 1)
BROAD(256, matmul_broad_pair, Bf16, 2)
BROAD(128, matmul_broad_fp8_128, Fp8, 0)
BROAD(192, matmul_broad_fp8_192, Fp8, 0)
BROAD(256, matmul_broad_fp8_256, Fp8, 0)
BROAD(256, matmul_broad_fp8_all, Fp8, 1)
BROAD(256, matmul_broad_fp8_pair, Fp8, 2)
