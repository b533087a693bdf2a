// `wgmma` of Hopper: d[64, N] += a[64, 16] b[16, N], a in registers, b in shared memory.
//
// A warp of the four holds 16 rows of a and d as for `mma`; column tile t is d[4 t ..]. b lies in
// blocks of 8 x 8: the next along the inputs 128 bytes on, the next along the columns 1,024.
#pragma once
#include "bulk.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER 1

DEV u64 blocks_at(const void* b) {
  return (u64)((shared_address(b) & 0x3ffff) >> 4) | (u64)(128 >> 4) << 16 |
         (u64)(1024 >> 4) << 32;
}
DEV void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LATER> DEV void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATER) : "memory");
}

#define F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F8(d, i) F4(d, i), F4(d, i + 4)
#define F16(d, i) F8(d, i), F8(d, i + 8)
#define F32(d, i) F16(d, i), F16(d, i + 16)
#define F64(d, i) F32(d, i), F32(d, i + 32)

// Registers of d, as instructions name them.
#define D0_63                                                                         \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "  \
  "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "  \
  "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "  \
  "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define D64_95                                                                        \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "  \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define D96_127                                                                       \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "  \
  "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, "    \
  "%123, %124, %125, %126, %127"

// `adds`: whether d is added to, or overwritten. TRANSPOSED: b lies along the columns.
DEV void wgmma(float (&d)[4], uint4 a, u64 b, int adds) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %9, 0; "
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1, 0; }"
      : F4(d, 0)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(adds));
}
DEV void wgmma(float (&d)[8], uint4 a, u64 b, int adds) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %13, 0; "
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%8, %9, %10, %11}, %12, p, 1, 1, 0; }"
      : F8(d, 0)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(adds));
}
DEV void wgmma(float (&d)[16], uint4 a, u64 b, int adds) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %21, 0; "
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, p, 1, 1, 0; }"
      : F16(d, 0)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(adds));
}
template <int TRANSPOSED = 0>
DEV void wgmma(float (&d)[32], uint4 a, u64 b, int adds) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %37, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, %38; }"
      : F32(d, 0)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(adds), "n"(TRANSPOSED));
}
template <int TRANSPOSED = 0>
DEV void wgmma(float (&d)[64], uint4 a, u64 b, int adds) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %69, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{" D0_63 "}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, %70; }"
      : F64(d, 0)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(adds), "n"(TRANSPOSED));
}
DEV void wgmma(float (&d)[96], uint4 a, u64 b, int adds) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %101, 0; "
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
      "{" D0_63 ", " D64_95 "}, "
      "{%96, %97, %98, %99}, %100, p, 1, 1, 0; }"
      : F64(d, 0), F32(d, 64)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(adds));
}
DEV void wgmma(float (&d)[128], uint4 a, u64 b, int adds) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %133, 0; "
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{" D0_63 ", " D64_95 ", " D96_127 "}, "
      "{%128, %129, %130, %131}, %132, p, 1, 1, 0; }"
      : F64(d, 0), F64(d, 64)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(adds));
}

// Nothing that reads or writes d is moved to the other side.
template <int N> DEV void hold(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// ---- clusters: blocks that run at the same time and reach each other's shared memory

DEV void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
// Where a block of the cluster has what is at this address here.
DEV u32 address_in(u32 rank, const void* at) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there)
               : "r"(shared_address(at)), "r"(rank));
  return there;
}
DEV float4 load_in(u32 address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
#endif
