// What blocks of `matmul_ahead` leave for each other in memory: sums of slices, squares of rows.
//
// A word is absent until it is there, and absent again once it was read, so that it needs no mark
// beside it and no fence. Blocks wait for each other: all of them must have a place at once.
#pragma once
#include "matmul.cuh"

#define ABSENT 0xffffffffu   // not a number that arithmetic gives; see `present`
#define MULTIPLIERS 256

DEV bool is_absent(float v) { return __float_as_uint(v) == ABSENT; }
DEV float present(float v) { return is_absent(v) ? __uint_as_float(0x7fffffff) : v; }

DEV void put(float4* at, float4 v) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(v.x),
               "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
DEV float4 look(const float4* at) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(at)
               : "memory");
  return v;
}
DEV void put(float* at, float v) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(at), "f"(v) : "memory");
}
DEV float look(const float* at) {
  float v;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(at) : "memory");
  return v;
}

// ---- jobs: 128 outputs and a slice of the sum

DEV int jobs_of(const Matmul& p) { return (p.tiles + 7) / 8 * p.slices; }
DEV int tile_of(const Matmul& p, int job) { return job / p.slices * 8; }
// Its units: from the first up to `end_unit`.
DEV int first_unit(const Matmul& p, int job) {
  return slice_start(job % p.slices, p.slices, p.inputs / 64);
}
DEV int end_unit(const Matmul& p, int job) {
  return slice_start(job % p.slices + 1, p.slices, p.inputs / 64);
}

// Where a job's sums are left: ROWS / 8 float4 for each thread that multiplies.
template <int ROWS> DEV float4* sums_of(const Matmul& p, int job) {
  return (float4*)p.sums + (size_t)job * (ROWS / 8 * MULTIPLIERS) + threadIdx.x - 128;
}
// And, behind the sums, what a job is told of a slice: squares of rows.
template <int ROWS> DEV float* squares_of(const Matmul& p, int job, int slice) {
  return p.sums + (size_t)jobs_of(p) * (ROWS * 128) + ((size_t)job * 8 + slice) * ROWS;
}

// ---- sums

template <int ROWS> DEV void leave(const Matmul& p, int job, const float (&sums)[ROWS / 2]) {
  float4* to = sums_of<ROWS>(p, job);
#pragma unroll
  for (int i = 0; i < ROWS / 8; ++i) {
    put(to + i * MULTIPLIERS, make_float4(present(sums[i * 4]), present(sums[i * 4 + 1]),
                                          present(sums[i * 4 + 2]), present(sums[i * 4 + 3])));
  }
}

// Rows of which a block adds up all slices, at most.
template <int ROWS> struct Own {
  static const int ROWS_MAX = ROWS == 8 ? 8 : ROWS / 2;
};

// All slices of this job's share of the columns of 8 rows, from `first` on.
template <int ROWS, int SLICES>
DEV void join(const Matmul& p, int job, float (&totals)[Own<ROWS>::ROWS_MAX / 2], int first) {
  const int count = ROWS / 8 < SLICES ? 1 : ROWS / 8 / SLICES;
  float4* from = sums_of<ROWS>(p, job - job % SLICES) + first * MULTIPLIERS;
  const int of_slice = ROWS / 8 * MULTIPLIERS;
  const float absent = __uint_as_float(ABSENT);
  float4 parts[count][SLICES];
  bool waits;
  do {
    waits = false;
#pragma unroll
    for (int i = 0; i < count; ++i)
#pragma unroll
      for (int slice = 0; slice < SLICES; ++slice) {
        parts[i][slice] = look(from + slice * of_slice + i * MULTIPLIERS);
      }
#pragma unroll
    for (int i = 0; i < count; ++i)
#pragma unroll
      for (int slice = 0; slice < SLICES; ++slice) {
        const float4 v = parts[i][slice];
        waits |= is_absent(v.x) || is_absent(v.y) || is_absent(v.z) || is_absent(v.w);
      }
  } while (waits);
#pragma unroll
  for (int i = 0; i < count; ++i) {
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
      put(from + slice * of_slice + i * MULTIPLIERS, make_float4(absent, absent, absent, absent));
      add(total, parts[i][slice]);
    }
    *(float4*)&totals[i * 4] = total;
  }
}

// ---- squares of rows

// From the squares of a slice, of row lane / 4 of each of a warp's columns, to the scales: those of
// all slices, added up in the order of `norm_scales`. `row(i)`: which it is of all rows.
template <int ROWS, int COLUMNS, class Row>
DEV void join_squares(const Matmul& p, int job, const float (&squares)[COLUMNS], float* scales,
                      Row row) {
  const int lane = threadIdx.x % WARP, own = job % p.slices, first = lane % 4;
  float parts[COLUMNS][2];   // of the slices lane % 4 and 4 on
#pragma unroll
  for (int i = 0; i < COLUMNS; ++i) {
    parts[i][0] = squares[i], parts[i][1] = 0.0f;
    if (p.slices == 1 || ROWS <= row(i)) continue;
    for (int slice = first; slice < p.slices; slice += 4) {
      put(squares_of<ROWS>(p, job - own + slice, own) + row(i), present(squares[i]));
    }
  }
  bool waits = 1 < p.slices;
  while (waits) {
    waits = false;
#pragma unroll
    for (int at = 0; at < 2 * COLUMNS; ++at) {
      const int i = at / 2, slice = first + at % 2 * 4;
      if (ROWS <= row(i) || p.slices <= slice) continue;
      parts[i][at % 2] = look(squares_of<ROWS>(p, job, slice) + row(i));
    }
#pragma unroll
    for (int at = 0; at < 2 * COLUMNS; ++at) {
      const int i = at / 2, slice = first + at % 2 * 4;
      if (row(i) < ROWS && slice < p.slices) waits |= is_absent(parts[i][at % 2]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < COLUMNS; ++i) {
    float sum = 0.0f;
#pragma unroll
    for (int slice = 0; slice < 8; ++slice) {
      const float part = __shfl_sync(FULL, parts[i][slice / 4], lane / 4 * 4 + slice % 4);
      if (p.slices <= slice) continue;
      sum = __fadd_rn(sum, part);
      if (p.slices == 1 || slice % 4 != first || ROWS <= row(i)) continue;
      put(squares_of<ROWS>(p, job, slice) + row(i), __uint_as_float(ABSENT));
    }
    if (row(i) < ROWS && first == 0) scales[row(i)] = norm_scale(sum, p.inputs, p.eps);
  }
}
