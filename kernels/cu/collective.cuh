// What several GPUs (ranks) have parts of, over memory that each can reach: where it is, and how
// they wait for each other.
//
// Nothing is ever reset: what is waited for is a mark that counts up, from launch to launch and so
// in what is recorded too. A rank that waits for another longer than PATIENCE stops its program.
#pragma once
#include "base.cuh"

#define RANKS 8                       // at most
#define PATIENCE 10000000000ull       // ns
#define BLOCKS 128                    // of `reduce_many`, at most
#define FEW_BLOCKS 512                // of `reduce_few`, at most
#define AHEAD 4                       // loads of a thread under way

// The kernels take it by value; `ops/collective.rs` has its twin. Places in the ranks' memory are
// bytes from its start.
struct Collective {
  u64 memory[RANKS];   // of each rank, laid out alike
  u32* counts;         // own: launches that each block had a part in, of `reduce_many`, then of
                       // `reduce_few`, then of what chooses from slices
  float* stream;       // (rows, columns), added to
  bf16* rounded;       // the sum, in blocks
  bf16* captured;      // a third place for it, if not null
  u64 inbox;           // of this turn: what each rank sent, `inbox_values` (value, mark)
  u64 part;            // of this turn: own part of the sum, (rows, columns)
  u64 sums;            // (rows, columns)
  u64 slice;           // own slice, (rows, its columns)
  u64 found;           // (rows, 2, ranks): what each rank found in its slice, with its mark
  u32 starts[RANKS + 1];   // first column of each rank's slice, and the end
  u32 inbox_values;
  u32 ranks, rank;
  u32 rows, columns;
  u32 captured_at;
  u32 early;           // whether the next kernel may start before this one ends
};

// ---- waiting

DEV void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

DEV u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

template <class Ready> DEV void wait_until(Ready is_ready) {
  u64 since = 0;
  for (u32 tries = 1; !is_ready(); ++tries) {
    if (tries % 4096 != 0) continue;
    if (since == 0) since = nanoseconds();
    else if (PATIENCE < nanoseconds() - since) asm volatile("trap;");
  }
}

// Returns when the block of this number has come here on every rank: all it has written, and all
// that the kernels before it wrote, can be read. Every thread must call it.
DEV void meet(const Collective& p, u32 mark) {
  __syncthreads();
  if (threadIdx.x < p.ranks) {
    u32* theirs = (u32*)p.memory[threadIdx.x] + blockIdx.x * RANKS + p.rank;
    const u32* own = (const u32*)p.memory[p.rank] + blockIdx.x * RANKS + threadIdx.x;
    fence();
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(theirs), "r"(mark) : "memory");
    wait_until([&] {
      u32 seen;
      asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(own) : "memory");
      return 0 <= (i32)(seen - mark);   // it may be ahead, and the count goes round
    });
  }
  __syncthreads();
}

// ---- reading and writing

// Of any rank's memory: as it is there, not as some cache has it.
DEV void read_now(float4& to, const float4* at) {
  asm volatile("ld.relaxed.sys.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(to.x), "=f"(to.y), "=f"(to.z), "=f"(to.w) : "l"(at) : "memory");
}
DEV void read_now(float& to, const float* at) {
  asm volatile("ld.relaxed.sys.global.f32 %0, [%1];" : "=f"(to) : "l"(at) : "memory");
}

// Calls `load` for the places `first..end` that are this thread's, some ahead, then `use`: no load
// waits for a store.
template <class T, class Load, class Use>
DEV void stride(u32 first, u32 end, u32 step, Load load, Use use) {
  for (u32 base = first; base < end; base += step * AHEAD) {
    T some[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if (base + i * step < end) load(some[i], base + i * step);
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if (base + i * step < end) use(some[i], base + i * step);
    }
  }
}

// ---- the largest of a row of which each rank has a slice

// The largest of a slice and its column in the whole row, the lowest of equals.
struct Found {
  float value;
  u32 at;
};

// Launches that had this block, which has one row. It waits for the block of the same number
// elsewhere: blocks start in the order of their numbers, so one that all wait for has started.
DEV u32* choosing_count(const Collective& p) {
  return p.counts + BLOCKS + FEW_BLOCKS + blockIdx.x;
}

// Its columns of row `row`.
DEV const float* slice_row(const Collective& p, u32 rank, u32 row) {
  const u32 width = p.starts[rank + 1] - p.starts[rank];
  return (const float*)(p.memory[rank] + p.slice) + (size_t)row * width;
}

DEV u64 found_at(const Collective& p, u32 of, u32 place, u32 from) {
  return p.memory[of] + p.found + ((size_t)place * p.ranks + from) * 16;
}

// Tells every rank what this one found. The first threads of a block must call it.
DEV void tell(const Collective& p, u32 place, u32 mark, Found own) {
  if (p.ranks <= threadIdx.x) return;
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::
               "l"(found_at(p, threadIdx.x, place, p.rank)),
               "r"(__float_as_uint(own.value)), "r"(mark), "r"(own.at) : "memory");
}

// What is the largest of all: the same everywhere, in whatever order it comes.
DEV Found largest_told(const Collective& p, u32 place, u32 mark) {
  Found most = {NEGATIVE_INFINITY, NONE};
  for (u32 rank = 0; rank < p.ranks; ++rank) {
    u32 value, at;
    wait_until([&] {
      u32 one, two;
      asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(value), "=r"(one), "=r"(at), "=r"(two)
                   : "l"(found_at(p, p.rank, place, rank)) : "memory");
      return one == mark && two == mark;
    });
    const float other = __uint_as_float(value);
    if (most.value < other || (most.value == other && at < most.at)) most = {other, at};
  }
  return most;
}

// out = row `row` of all ranks. Every thread must call it, once all ranks have told that theirs is
// there and `fence` is behind.
template <class T> DEV void fetch_row(const Collective& p, u32 row, float* out) {
  for (u32 i = 0; i < p.ranks; ++i) {
    const u32 rank = (p.rank + i) % p.ranks;
    const T* from = (const T*)slice_row(p, rank, row);
    T* to = (T*)(out + p.starts[rank]);
    const u32 count = (p.starts[rank + 1] - p.starts[rank]) * 4 / sizeof(T);
    stride<T>(threadIdx.x, count, blockDim.x, [&](T& it, u32 at) { read_now(it, from + at); },
              [&](T it, u32 at) { to[at] = it; });
  }
}
