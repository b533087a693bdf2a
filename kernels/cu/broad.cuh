// What the kernels for more than 64 rows share: rings of stages, and slices of a sum that are added
// up by all blocks that have some of them.
//
// In each block the first 128 threads fill stages and the others multiply.
#pragma once
#include "ends.cuh"
#include "wgmma.cuh"

#define STEPS 4   // of a unit: 64 inputs, one stage

#ifdef HOPPER

// A stage of a ring and how often it was come by, odd or even.
template <int STAGES> struct Ring {
  int stage, parity;
  MEMBER void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  MEMBER int before() const { return stage == 0 ? STAGES - 1 : stage - 1; }
};

// Both rings of a block: of weights and of x. `S`: its shared memory.
template <class S> DEV void begin_rings(S& s, int multipliers) {
  for (int i = 0; i < S::AS; ++i) {
    barrier_init(&s.a_full[i], 1);
    barrier_init(&s.a_empty[i], multipliers);
  }
  for (int i = 0; i < S::XS; ++i) {
    barrier_init(&s.x_full[i], 1);
    barrier_init(&s.x_empty[i], multipliers);
  }
  barrier_fence();
}

// The next stage of x, once it is free.
template <class S>
DEV void fill_x(S& s, Ring<S::XS>& x, const bf16* rows, int bytes) {
  barrier_wait(&s.x_empty[x.stage], x.parity ^ 1);
  barrier_expect(&s.x_full[x.stage], bytes);
  copy_bulk(s.x[x.stage], rows, bytes, &s.x_full[x.stage]);
  x.advance();
}

// sums += a unit of weights times N rows of x.
template <int N>
DEV void multiply_unit(float (&sums)[N / 2], const uint4 (&weights)[STEPS], const bf16* x) {
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < STEPS; ++step) wgmma(sums, weights[step], blocks_at(x + step * 128), 1);
  wgmma_commit();
}

// Of the threads that multiply.
template <int THREADS> DEV void multipliers_sync() {
  asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

// Returns when all `count` blocks of a tile have come here: what they left can be read. They follow
// each other in the grid, and blocks begin in order, so that of kernels that share a card each has
// at most one tile that waits for places, and all others go on and make some. All together add half
// of the numbers there are: the highest bit tells one time from the next.
template <int THREADS> DEV void meet(u32* arrivals, bool is_first, int count) {
  __threadfence();
  multipliers_sync<THREADS>();
  if (threadIdx.x == 128) {
    const u32 half = 1u << 31, more = is_first ? half - (count - 1) : 1;
    u32 before, now;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(arrivals), "r"(more)
                 : "memory");
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrivals) : "memory");
    } while (((before ^ now) & half) == 0);
  }
  multipliers_sync<THREADS>();
}

// Where the slices of a tile are left, of ROWS rows times what THREADS threads have.
template <int ROWS, int THREADS> struct Left {
  static const int COLUMNS = ROWS / 8, STEP = COLUMNS * THREADS;
  float4* first;

  MEMBER Left(const Matmul& p, int tile)
      : first((float4*)p.sums + (size_t)tile * p.slices * STEP + threadIdx.x - 128) {}

  MEMBER void leave(int slice, const float (&sums)[ROWS / 2]) const {
    float4* to = first + slice * STEP;
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) __stcg(to + i * THREADS, *(const float4*)&sums[i * 4]);
  }

  // Adds up all slices, one after the other, and stores them: of the rows part `part` of 2, 4 or 8.
  template <class FORMAT>
  MEMBER void join(const Matmul& p, int tile, int row0, int part, int parts,
                   float2 channels) const {
    if (parts == 2) join_some<FORMAT, COLUMNS / 2>(p, tile, row0, part, channels);
    else if (parts == 4) join_some<FORMAT, COLUMNS / 4>(p, tile, row0, part, channels);
    else join_some<FORMAT, COLUMNS / 8>(p, tile, row0, part, channels);
  }

  template <class FORMAT, int COUNT>
  MEMBER void join_some(const Matmul& p, int tile, int row0, int part, float2 channels) const {
    const int column = part * COUNT, row = row0 + column * 8;
    if (p.rows <= row) return;
    float4 total[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) total[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float4* from = first + column * THREADS;
#pragma unroll 4
    for (int slice = 0; slice < p.slices; ++slice, from += STEP) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i) add(total[i], __ldcg(from + i * THREADS));
    }
    const float(&sums)[COUNT * 4] = *(const float(*)[COUNT * 4]) & total;
    store_ends<FORMAT, COUNT * 8, 8>(p, tile, row, sums, COUNT, channels);
  }
};
#endif
