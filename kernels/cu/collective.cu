// Sums of which several GPUs (ranks) have a part each, over memory that each can reach:
// stream[r, n] += part of rank 0 + part of rank 1 + ..., in this order, so that all get the same
// bits.
#include "collective.cuh"

#define THREADS_FEW 256
#define THREADS_MANY 256

// ---- writing

DEV void add(float4& to, float4 more) {
  to.x = __fadd_rn(to.x, more.x), to.y = __fadd_rn(to.y, more.y);
  to.z = __fadd_rn(to.z, more.z), to.w = __fadd_rn(to.w, more.w);
}

// Two values of the stream, from place `at` on.
DEV void store_two(const Collective& p, u32 at, float2 before, float2 sum) {
  sum.x = __fadd_rn(before.x, sum.x), sum.y = __fadd_rn(before.y, sum.y);
  const int row = at / p.columns, column = at % p.columns, block_rows = block_rows_of(p.rows);
  const u32 both = pack_bf16(sum.x, sum.y);
  *(float2*)(p.stream + at) = sum;
  *(u32*)(p.rounded + block_place(row, column, block_rows)) = both;
  if (p.captured != 0) {
    *(u32*)(p.captured + block_place(row, p.captured_at + column, block_rows)) = both;
  }
}

// ---- few rows: each value is sent with its mark, and is there when the mark is

// grid: values / 512; block: 256, two values a thread.
KERNEL __launch_bounds__(THREADS_FEW) reduce_few(const Collective p) {
  const u32 at = (blockIdx.x * THREADS_FEW + threadIdx.x) * 2;
  u32* count = p.counts + BLOCKS + blockIdx.x;
  wait_for_previous();
  if (p.early) let_next_start();
  const u32 mark = *count + 1;
  const bool is_there = at < p.rows * p.columns;
  const float2 own = __ldcg((const float2*)(p.memory[p.rank] + p.part) + at / 2);
  float2 before = make_float2(0.0f, 0.0f);
  if (is_there) before = *(const float2*)(p.stream + at);
  auto inbox = [&](u32 of, u32 from) {
    return (u32*)(p.memory[of] + p.inbox + ((size_t)from * p.inbox_values + at) * 8);
  };
  for (u32 i = 1; i < p.ranks; ++i) {
    const u32 peer = (p.rank + i) % p.ranks;
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(inbox(peer, p.rank)),
                 "r"(__float_as_uint(own.x)), "r"(mark), "r"(__float_as_uint(own.y)) : "memory");
  }
  float2 sum;
  for (u32 rank = 0; rank < p.ranks; ++rank) {
    float2 part = own;
    if (rank != p.rank) {
      const u32* from = inbox(p.rank, rank);
      u32 x, y;
      wait_until([&] {
        u32 one, two;
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x), "=r"(one), "=r"(y), "=r"(two) : "l"(from) : "memory");
        return one == mark && two == mark;
      });
      part = make_float2(__uint_as_float(x), __uint_as_float(y));
    }
    if (rank == 0) sum = part;
    else sum.x = __fadd_rn(sum.x, part.x), sum.y = __fadd_rn(sum.y, part.y);
  }
  if (is_there) store_two(p, at, before, sum);
  __syncthreads();
  if (threadIdx.x == 0) *count = mark;
}

// ---- many rows: a rank sums a share of the values, then all fetch the shares of all

struct Both {
  float4 sum, before;
};

// grid: up to BLOCKS; block: 256. A block takes the same values on every rank.
KERNEL __launch_bounds__(THREADS_MANY, 1) reduce_many(const Collective p) {
  wait_for_previous();
  const u32 mark = p.counts[blockIdx.x];
  const u64 fours = (u64)p.rows * p.columns / 4;
  const u32 first = fours * blockIdx.x / gridDim.x;
  const u32 count = fours * (blockIdx.x + 1) / gridDim.x - first;
  auto share = [&](u32 rank) { return first + count * rank / p.ranks; };
  meet(p, mark + 1);
  float4* own = (float4*)(p.memory[p.rank] + p.sums);
  auto sum = [&](float4& to, u32 at) {
    read_now(to, (const float4*)(p.memory[0] + p.part) + at);
    for (u32 rank = 1; rank < p.ranks; ++rank) {
      float4 part;
      read_now(part, (const float4*)(p.memory[rank] + p.part) + at);
      add(to, part);
    }
  };
  stride<float4>(share(p.rank) + threadIdx.x, share(p.rank + 1), THREADS_MANY, sum,
                 [&](float4 sum, u32 at) { own[at] = sum; });
  meet(p, mark + 2);
  for (u32 i = 0; i < p.ranks; ++i) {
    const u32 rank = (p.rank + i) % p.ranks;   // its own first, while the others get ready
    const float4* sums = (const float4*)(p.memory[rank] + p.sums);
    auto load = [&](Both& to, u32 at) {
      read_now(to.sum, sums + at);
      to.before = ((const float4*)p.stream)[at];
    };
    auto use = [&](const Both& of, u32 at) {
      store_two(p, at * 4, make_float2(of.before.x, of.before.y), make_float2(of.sum.x, of.sum.y));
      store_two(p, at * 4 + 2, make_float2(of.before.z, of.before.w),
                make_float2(of.sum.z, of.sum.w));
    };
    stride<Both>(share(rank) + threadIdx.x, share(rank + 1), THREADS_MANY, load, use);
  }
  if (threadIdx.x == 0) p.counts[blockIdx.x] = mark + 2;
}
