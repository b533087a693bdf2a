// The largest of a row of which each block of a cluster looks at a slice. Where there are no
// clusters a block is one by itself, and has the whole row.
#pragma once
#include "collective.cuh"
#include "wgmma.cuh"

#define BLOCKS_MAX 8   // of a cluster

// What the blocks of a cluster told this one.
struct __align__(8) Told {
  Found found[BLOCKS_MAX];
};

#ifdef HOPPER
DEV u32 cluster_blocks() {
  u32 blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
DEV u32 cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All blocks of the cluster have started: each may be told something from now on.
DEV void meet_cluster() {
  if (1 < cluster_blocks()) cluster_sync();
}

// The largest of what the blocks found, the lowest of equals, in every thread of all of them. Every
// thread must call it, with what its block found, and with another `told` each time.
DEV Found largest_of_cluster(Told& told, Found own) {
  const u32 blocks = cluster_blocks();
  if (blocks == 1) return own;
  if (threadIdx.x < blocks) {
    asm volatile("st.shared::cluster.v2.u32 [%0], {%1, %2};" ::
                 "r"(address_in(threadIdx.x, told.found + cluster_rank())),
                 "r"(__float_as_uint(own.value)), "r"(own.at) : "memory");
  }
  cluster_sync();
  Found most = told.found[0];
  for (u32 i = 1; i < blocks; ++i) {
    const Found other = told.found[i];
    if (most.value < other.value || (most.value == other.value && other.at < most.at)) most = other;
  }
  return most;
}
#else
DEV u32 cluster_blocks() { return 1; }
DEV u32 cluster_rank() { return 0; }
DEV void meet_cluster() {}
DEV Found largest_of_cluster(Told& told, Found own) { return own; }
#endif

// This block's part of a row, in whole fours.
struct Slice {
  u32 first;
  u32 count;

  MEMBER explicit Slice(u32 of) {
    const u32 fours = (of + 3) / 4, blocks = cluster_blocks();
    const u32 each = (fours + blocks - 1) / blocks * 4;
    first = min(each * cluster_rank(), of), count = min(each, of - first);
  }
};
