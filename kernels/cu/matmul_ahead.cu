// out[r, n] = sum_k weights[n, k] x[r, k], for up to 64 rows on Hopper: the weights of a product
// are on their way while the product before ends.
//
// The same tiles, slices and order as in `matmul_few` and `matmul_wide`. A block takes jobs of 128
// outputs and one slice of the sum: one thread fills a ring of weights and one of x by bulk copies,
// three warps add up the squares of x for a norm, and two groups of four warps make 64 outputs
// each. Slices meet in memory: each block leaves what it has, and adds up all slices of some rows.
//
// A multiprocessor has room for a block that adds to the stream and for one that does not, never
// for two of a kind: the ones take more than half of its shared memory, the others more than half
// of its registers. So a product can let the next one in as soon as it begins: the blocks of that
// one come one to a multiprocessor, fill their rings with weights and wait there.
#include "ahead.cuh"
#include "ends.cuh"
#include "wgmma.cuh"

#define STEPS 4       // of a unit: 64 inputs
#define SCALERS 96
#define SCALED_BY 352 // those and all that multiply

#ifdef HOPPER

// Registers of a thread that fills and of one that multiplies: together those of a block that is
// launched with 80 (what adds to the stream) or 88 a thread.
template <bool STREAM> struct Registers {
  static const int FILLER = STREAM ? 32 : 40;
  static const int MULTIPLIER = STREAM ? 104 : 112;
};

// Units of weights and of x under way: 112 KiB.
template <class FORMAT, int ROWS> struct Fit {
  static const bool WHOLE = FORMAT::LOADS == STEPS;
  static const int WEIGHTS = WHOLE ? (ROWS == 64 ? 5 : 6) : ROWS == 64 ? 8 : ROWS == 32 ? 10 : 12;
  static const int X = WHOLE ? (32 <= ROWS ? 4 : 6) : ROWS == 64 ? 6 : 8;
  static const int BYTES = 8 * FORMAT::LOADS * 512;   // of a unit of weights
};

template <class FORMAT, int ROWS> struct Shared {
  typedef Fit<FORMAT, ROWS> F;
  uint4 a[F::WEIGHTS][8 * FORMAT::LOADS * WARP];
  bf16 x[F::X][ROWS * 64];
  u64 full[F::WEIGHTS];
  u64 empty[F::WEIGHTS];    // a unit is multiplied: its places in both rings are free
  u64 full_x[F::X];
  u64 squared[F::X];        // its squares are taken, of the first job
  float scales[ROWS];
};

// A unit of a block's jobs, one after the other.
struct Cursor {
  int job, unit, end, tile, jobs;

  MEMBER Cursor(const Matmul& p) : jobs(jobs_of(p)) { begin(p, blockIdx.x); }
  MEMBER void begin(const Matmul& p, int at) {
    job = at, unit = first_unit(p, at), end = end_unit(p, at), tile = tile_of(p, at);
  }
  MEMBER bool is_there() const { return job < jobs; }
  MEMBER void next(const Matmul& p) {
    if (++unit == end) begin(p, job + gridDim.x);
  }
};

// One thread: weights as far ahead as there is room for, then x as soon as it is there.
template <class FORMAT, int ROWS>
DEV void fill(Shared<FORMAT, ROWS>& s, const Matmul& p) {
  typedef Fit<FORMAT, ROWS> F;
  const int block_rows = block_rows_of(p.rows), bytes = block_rows * 1024;
  const u64 once = read_once();
  Cursor a(p), x(p);
  Stage<F::WEIGHTS> a_at, used;
  Stage<F::X> x_at;
  auto fill_a = [&] {
    u64* full = &s.full[a_at.at];
    barrier_expect(full, F::BYTES);
    copy_bulk(s.a[a_at.at], weights_at<FORMAT>(p, a.tile, a.unit), F::BYTES, full, once);
    a_at.next(), a.next(p);
  };
  auto fill_x = [&] {
    u64* full = &s.full_x[x_at.at];
    barrier_expect(full, bytes);
    copy_bulk(s.x[x_at.at], p.x + (size_t)x.unit * block_rows * 512, bytes, full);
    x_at.next(), x.next(p);
  };
  for (int i = 0; i < F::WEIGHTS && a.is_there(); ++i) fill_a();
  wait_for_previous();
  // Attention, which follows plain sums, reads before it waits what kernels earlier than the last
  // one wrote.
  if (p.out != 0) let_next_start();
  for (int i = 0; i < F::X && x.is_there(); ++i) fill_x();
  int squared = p.norm ? end_unit(p, blockIdx.x) - first_unit(p, blockIdx.x) : 0;
  while (a.is_there() || x.is_there()) {
    barrier_wait(&s.empty[used.at], used.round);
    used.next();
    if (a.is_there()) fill_a();
    if (!x.is_there()) continue;
    // The place is that of the unit that was just multiplied.
    if (0 < squared--) barrier_wait(&s.squared[x_at.at], x_at.round ^ 1);
    fill_x();
  }
}

// Three warps: scales of rows, from x as it passes by; in the order of `norm_scales`. All jobs have
// the same rows, so the first job's x is enough.
template <class FORMAT, int ROWS>
DEV void make_scales(Shared<FORMAT, ROWS>& s, const Matmul& p) {
  const int columns = ROWS / 8, each = (columns + 2) / 3, job = blockIdx.x;
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP - 1;
  float squares[each][STEPS] = {}, sums[each];
  Stage<Fit<FORMAT, ROWS>::X> x_at;
  for (int left = end_unit(p, job) - first_unit(p, job); 0 < left; --left) {
    barrier_wait(&s.full_x[x_at.at], x_at.round);
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int column = warp + i * 3;
      if (columns <= column) break;
      const u32* x = (const u32*)s.x[x_at.at] + column * 256 + lane;
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        squares[i][step] = add_squares(squares[i][step], x[step * 64], x[step * 64 + 32]);
      }
    }
    barrier_arrive(&s.squared[x_at.at]);
    x_at.next();
  }
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const float* steps = squares[i];
    sums[i] = sum_of_four(sum_of_steps(steps[0], steps[1], steps[2], steps[3]));
  }
  auto row = [&](int i) { return (warp + i * 3) * 8 + lane / 4; };
  join_squares<ROWS>(p, job, sums, s.scales, row);
  __syncwarp();
  asm volatile("bar.arrive 2, %0;" ::"n"(SCALED_BY) : "memory");
}

// The stream's part of a warp's tile has left the cache since the layer before: it is asked for
// while the weights come.
DEV void bring_stream(const Matmul& p, int tile, int first, int count) {
  const int lane = threadIdx.x % WARP, output = tile * 16 + lane % 4 * 8;
  for (int column = first; column < first + count; ++column) {
    const int row = column * 8 + lane / 4;
    if (1 < lane % 4 || p.rows <= row || p.outputs <= output) continue;
    const float* at = p.stream + (size_t)row * p.outputs + output;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
  }
}

// A job's units, one after the other.
template <class FORMAT, int ROWS>
DEV void add_units(Shared<FORMAT, ROWS>& s, int count, float (&sums)[ROWS / 2],
                   Stage<Fit<FORMAT, ROWS>::WEIGHTS>& stage, Stage<Fit<FORMAT, ROWS>::X>& x_at) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP - 4;
  int adds = 0;
  for (int unit = 0; unit < count; ++unit) {
    uint4 read[FORMAT::LOADS], a[STEPS];
    barrier_wait(&s.full[stage.at], stage.round);
    barrier_wait(&s.full_x[x_at.at], x_at.round);
#pragma unroll
    for (int load = 0; load < FORMAT::LOADS; ++load) {
      read[load] = s.a[stage.at][(warp * FORMAT::LOADS + load) * WARP + lane];
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step) a[step] = step_of<FORMAT>(read, step);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      wgmma(sums, a[step], blocks_at(s.x[x_at.at] + step * 128), adds);
      adds = 1;
    }
    wgmma_commit();
    wgmma_wait<0>();
    barrier_arrive(&s.empty[stage.at]);
    stage.next(), x_at.next();
  }
  hold(sums);
}

template <class FORMAT, int ROWS>
DEV void store_others(const Matmul& p, int tile, int row0, const float (&sums)[ROWS / 2],
                      int count, float2 channels, const float* scales) {
  if (p.gated) store_all<FORMAT, GATED, ROWS>(p, tile, row0, sums, count, channels, scales);
  else store_all<FORMAT, PLAIN, ROWS>(p, tile, row0, sums, count, channels, scales);
}

// The threads that multiply.
template <class FORMAT, int ROWS, bool STREAM>
DEV void multiply(Shared<FORMAT, ROWS>& s, const Matmul& p) {
  typedef Fit<FORMAT, ROWS> F;
  const int warp = threadIdx.x / WARP - 4, columns = ROWS / 8, slices = p.slices;
  const int most = Own<ROWS>::ROWS_MAX / 8;
  const float* scales = !STREAM && p.norm ? s.scales : 0;
  Stage<F::WEIGHTS> stage;
  Stage<F::X> x_at;
  for (int job = blockIdx.x; job < jobs_of(p); job += gridDim.x) {
    const int tile = tile_of(p, job) + warp;
    const float2 channels = channels_of<FORMAT>(p, tile);
    // Where there are more slices than columns, several blocks share one, by warps.
    const int sharing = max(slices / columns, 1), own = job % slices;
    const int first = own * columns / slices;
    const int count = warp / (8 / sharing) == own % sharing ? max(columns / slices, 1) : 0;
    if (STREAM) bring_stream(p, tile, first, count);
    // They are zero for the compiler, which would else keep what the last job left.
    float sums[ROWS / 2] = {};
    add_units(s, end_unit(p, job) - first_unit(p, job), sums, stage, x_at);
    if (1 < slices) leave<ROWS>(p, job, sums);
    if (scales != 0 && job == blockIdx.x) {
      asm volatile("bar.sync 2, %0;" ::"n"(SCALED_BY) : "memory");
    }
    if (slices == 1) {
      if (STREAM) store_all<FORMAT, RESIDUAL, ROWS>(p, tile, 0, sums, columns, channels, scales);
      else store_others<FORMAT, ROWS>(p, tile, 0, sums, columns, channels, scales);
      continue;
    }
    if (count == 0) continue;
    float4 before[most];
    End<RESIDUAL> end(p, tile, first * 8, count * 8, 0);
#pragma unroll
    for (int i = 0; i < most; ++i) {
      if (STREAM) before[i] = end.before(i);
    }
    float totals[most * 4];
    if (slices == 2) join<ROWS, 2>(p, job, totals, first);
    if (slices == 4) join<ROWS, 4>(p, job, totals, first);
    if (slices == 8) join<ROWS, 8>(p, job, totals, first);
    if (!STREAM) {
      store_others<FORMAT, most * 8>(p, tile, first * 8, totals, count, channels, scales);
    }
#pragma unroll
    for (int i = 0; i < most; ++i) {
      if (!STREAM || count <= i) continue;
      const float4 sum = scaled<FORMAT>(*(const float4*)&totals[i * 4], channels);
      end.store(i, sum, make_float2(1.0f, 1.0f), before[i]);
    }
  }
}

// grid: as many blocks as there are jobs, or a multiple of the slices: at most one a
// multiprocessor; block: 384; shared: Shared, or more.
template <class FORMAT, int ROWS, bool STREAM>
DEV void matmul_ahead(const Matmul& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<FORMAT, ROWS>& s = *(Shared<FORMAT, ROWS>*)memory;
  typedef Fit<FORMAT, ROWS> F;
  static_assert(sizeof(s) <= 115584, "what `matmul/path.rs` has for it");
  if (threadIdx.x == 0) {
    if (p.out == 0) let_next_start();
    for (int i = 0; i < F::WEIGHTS; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], MULTIPLIERS);
    }
    for (int i = 0; i < F::X; ++i) {
      barrier_init(&s.full_x[i], 1);
      barrier_init(&s.squared[i], SCALERS);
    }
    barrier_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers<STREAM>::FILLER));
    if (threadIdx.x == 0) fill(s, p);
    if (!STREAM && p.norm && WARP <= threadIdx.x) {
      wait_for_previous();
      make_scales(s, p);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers<STREAM>::MULTIPLIER));
    wait_for_previous();
    multiply<FORMAT, ROWS, STREAM>(s, p);
  }
}

// With 80 and 88 registers a thread: see above.
#define AHEAD(rows, name, FORMAT)                                        \
  KERNEL __maxnreg__(88) matmul_ahead##name(const Matmul p) {            \
    matmul_ahead<FORMAT, rows, false>(p);                                \
  }                                                                      \
  KERNEL __launch_bounds__(384, 2) matmul_stream##name(const Matmul p) { \
    matmul_ahead<FORMAT, rows, true>(p);                                 \
  }
#else
#define AHEAD(rows, name, FORMAT)              \
  KERNEL matmul_ahead##name(const Matmul p) {} \
  KERNEL matmul_stream##name(const Matmul p) {}
#endif

AHEAD(8, _8, Bf16)
AHEAD(16, _16, Bf16)
AHEAD(32, _32, Bf16)
AHEAD(64, _64, Bf16)
AHEAD(8, _fp8_8, Fp8)
AHEAD(16, _fp8_16, Fp8)
AHEAD(32, _fp8_32, Fp8)
AHEAD(64, _fp8_64, Fp8)
