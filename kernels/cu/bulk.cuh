// Barriers in shared memory, and bulk copies that arrive at them: Hopper and later.
#pragma once
#include "base.cuh"

#if __CUDA_ARCH__ >= 900
#define BULK 1

DEV void barrier_init(u64* barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(count)
               : "memory");
}
DEV void barrier_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEV void barrier_arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
DEV void barrier_expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
// Whether the phase of this parity is over; waits a little for it.
DEV u32 barrier_try(u64* barrier, u32 parity) {
  u32 done = 0;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done;
}
DEV void barrier_wait(u64* barrier, u32 parity) {
  while (!barrier_try(barrier, parity)) {
  }
}

// A place in a ring of COUNT, and whether it is come by for an odd time: the parity to wait for.
template <int COUNT> struct Stage {
  int at = 0;
  u32 round = 0;

  MEMBER void next() {
    at = at == COUNT - 1 ? 0 : at + 1;
    round ^= at == 0;
  }
};

DEV void copy_bulk(void* to, const void* from, u32 bytes, u64* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
// The same with a policy of the second-level cache, such as `read_once`.
DEV void copy_bulk(void* to, const void* from, u32 bytes, u64* barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
// What is read once leaves the second-level cache before what is read again.
DEV u64 read_once() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
DEV u64 read_again() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// Without a branch.
DEV void copy_bulk_if(bool take, void* to, const void* from, u32 bytes, u64* barrier) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %4, 0; "
      "@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3]; "
      "}" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "r"((u32)take)
      : "memory");
}
// What this thread wrote to shared memory comes before bulk copies that are asked for later.
DEV void bulk_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif
