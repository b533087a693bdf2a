// What every kernel shares: number formats, warp sums, tensor-core tiles, copies, launch order.
//
// Needs no header of the toolkit, so that the run-time compiler can build it alone.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef u16 bf16;   // the upper half of a float

#define DEV static __device__ __forceinline__
#define MEMBER __device__ __forceinline__
#define KERNEL extern "C" __global__ void
#define FULL 0xffffffffu
#define NONE 0xffffffffu   // no row, no lane, no token
#define WARP 32
#define PAGE 16            // tokens of a page
#define NEGATIVE_INFINITY __int_as_float(0xff800000)

// ---- numbers

DEV float from_bf16(bf16 v) { return __uint_as_float((u32)v << 16); }
DEV float low_bf16(u32 v) { return __uint_as_float(v << 16); }
DEV float high_bf16(u32 v) { return __uint_as_float(v & 0xffff0000u); }

// Two floats, rounded to nearest even, the first in the lower half.
DEV u32 pack_bf16(float low, float high) {
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
DEV bf16 to_bf16(float v) { return (bf16)pack_bf16(v, 0.0f); }

// Activations lie in blocks of 8 rows x 64 columns, 1,024 bytes: block after block along the rows,
// then along the columns; a block is 8 lines of 8 rows x 8 columns, what the tensor cores take in
// one go. So neighbouring rows, 64 columns of them, are one run of memory.
DEV size_t block_place(int row, int column, int block_rows) {
  return ((size_t)(column / 64) * block_rows + row / 8) * 512 + column % 64 / 8 * 64 +
         row % 8 * 8 + column % 8;
}
DEV int block_rows_of(int rows) { return (rows + 7) / 8; }

// Weights lie in tiles of 16 outputs x 16 inputs, 512 bytes, each in the order in which the lanes
// of a warp hold it (see `mma`): 4 tiles along the inputs (a unit), then 8 along the outputs, then
// on along the inputs. So 128 outputs x 64 inputs are one run of memory. Gives words.
DEV size_t tile_place(int tile, int step, int units) {
  return ((((size_t)(tile / 8) * units + step / 4) * 8 + tile % 8) * 4 + step % 4) * 128;
}
// The word of a matrix that holds element (output, 2 pair) and the next.
DEV size_t weight_place(u32 output, int pair, int units) {
  u32 within = pair % 8, lane = output % 8 * 4 + within % 4;
  u32 part = output / 8 % 2 + within / 4 * 2;
  return tile_place(output / 16, pair / 8, units) + lane * 4 + part;
}

DEV float exp2_fast(float v) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v));
  return power;
}

DEV float reciprocal_fast(float v) {
  float one_by;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(one_by) : "f"(v));
  return one_by;
}

// An 8 x 8 matrix of bf16, of which a lane holds two of a row, with rows and columns exchanged.
DEV u32 transposed(u32 pair) {
  u32 other;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(other) : "r"(pair));
  return other;
}

// The thread of the block. In a kernel that says so it is read anew each time, so that what is
// reckoned from it in a loop is not kept in registers all through the loop.
DEV u32 thread() {
#ifdef THREAD_ANEW
  u32 thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
#else
  return threadIdx.x;
#endif
}

// ---- launch order: a kernel may start while the one before it ends

// Returns when everything the kernels before wrote can be read.
DEV void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel's blocks in as soon as all of ours have said so.
DEV void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- sums and maxima

DEV float warp_sum(float v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(FULL, v, step);
  return v;
}
DEV float warp_max(float v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(FULL, v, step));
  return v;
}

// The same sum in every thread; `partial` has a place for each warp. Every thread must call it.
DEV float block_sum(float v, float* partial) {
  v = warp_sum(v);
  __syncthreads();
  if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = v;
  __syncthreads();
  float sum = 0.0f;
  for (u32 warp = 0; warp < blockDim.x / WARP; ++warp) sum += partial[warp];
  return sum;
}
DEV float block_max(float v, float* partial) {
  v = warp_max(v);
  __syncthreads();
  if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = v;
  __syncthreads();
  float most = partial[0];
  for (u32 warp = 1; warp < blockDim.x / WARP; ++warp) most = fmaxf(most, partial[warp]);
  return most;
}

// The largest value and the lowest index it has, in every thread. `most` and `where` have a place
// for each warp. What is not a number is never the largest.
DEV void argmax_block(float& best, u32& at, float* most, u32* where) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    float value = __shfl_xor_sync(FULL, best, step);
    u32 index = __shfl_xor_sync(FULL, at, step);
    if (best < value || (best == value && index < at)) best = value, at = index;
  }
  __syncthreads();
  if (threadIdx.x % WARP == 0) most[threadIdx.x / WARP] = best, where[threadIdx.x / WARP] = at;
  __syncthreads();
  for (u32 warp = 0; warp < blockDim.x / WARP; ++warp) {
    if (best < most[warp] || (best == most[warp] && where[warp] < at)) {
      best = most[warp], at = where[warp];
    }
  }
}

// Calls `take` for each (value, index) of a row that is this thread's, in order. So many loads of
// four are on their way at once.
template <int LOADS, class Take> DEV void scan(const float* row, u32 count, Take take) {
  u32 done = 0;
  if (((size_t)row & 15) == 0) {
    done = count / 4 * 4;
    const float4* fours = (const float4*)row;
    for (u32 first = threadIdx.x; first < count / 4; first += blockDim.x * LOADS) {
      float4 some[LOADS];
#pragma unroll
      for (int i = 0; i < LOADS; ++i) {
        u32 place = first + i * blockDim.x;
        if (place < count / 4) some[i] = __ldcg(fours + place);
      }
#pragma unroll
      for (int i = 0; i < LOADS; ++i) {
        u32 place = first + i * blockDim.x;
        if (count / 4 <= place) break;
        take(some[i].x, place * 4), take(some[i].y, place * 4 + 1);
        take(some[i].z, place * 4 + 2), take(some[i].w, place * 4 + 3);
      }
    }
  }
  for (u32 i = done + threadIdx.x; i < count; i += blockDim.x) take(row[i], i);
}

// The largest of a row and the lowest index it has, as far as this thread looks, minus infinity
// where there is none. `of` is applied to each.
template <class Of>
DEV void scan_largest(const float* row, u32 count, Of of, float& best, u32& at) {
  best = NEGATIVE_INFINITY, at = NONE;
  scan<8>(row, count, [&](float value, u32 index) {
    value = of(value);
    if (best < value) best = value, at = index;
  });
}

// ---- tensor cores: d[16, 8] += a[16, 16] b[16, 8], bf16 to f32
//
// Lane l holds of d the rows l/4 and l/4 + 8, columns 2(l%4) and the next: d0 d1, d2 d3.
// Of a: the same rows, columns 2(l%4).. (a0, a1) and 8 + 2(l%4).. (a2, a3).
// Of b: rows 2(l%4).. (b0) and 8 + 2(l%4).. (b1), column l/4.
DEV void mma(float d[4], const u32 a[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEV u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// Four 8 x 8 tiles; lane l names row l%8 of tile l/8 and receives, of each tile, row l/4,
// columns 2(l%4) and the next.
DEV void load_tiles(u32 r[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
DEV void load_tiles_transposed(u32 r[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// ---- copies

// 16 bytes to shared memory in the background; zeros when `take` is false.
DEV void copy_async(void* to, const void* from, bool take) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
               "l"(from), "r"(take ? 16 : 0)
               : "memory");
}
DEV void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATER> DEV void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}

// Weights are read once: they need no place in the first-level cache.
DEV uint4 load_weights(const uint4* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}
