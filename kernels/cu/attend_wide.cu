// Attention of a run of rows of one sequence over its pages, on Hopper: prompts.
//
// A block takes 128 packed rows (row, query head) that share a kv head: two groups of four warps
// multiply 64 each, queries and weights in registers, one of which may be a tile ahead. Tiles come
// by bulk copies of 64 values of a page's 16 tokens, which lie there as the tensor cores want them.
// The arithmetic is that of `attend_many`, and so are the bits.
#include "attend_many.cuh"
#include "wgmma.cuh"

#define STAGES 3
#define THREADS 256

#ifdef HOPPER

template <int HEAD>
struct Shared {
  bf16 k[STAGES][KEYS * HEAD];   // 64 values of all keys, then the next 64
  bf16 v[STAGES][KEYS * HEAD];
  u64 k_full[STAGES];
  u64 v_full[STAGES];
  u64 free[STAGES];
};

// 64 lines of 128 bytes, their chunks of 16 turned by the line: eight lines after eight. `halves`
// is how far apart two blocks of 64 columns are where b lies along the columns.
DEV u64 lines_at(const void* b, int halves) {
  return (u64)((shared_address(b) & 0x3ffff) >> 4) | (u64)(halves >> 4) << 16 |
         (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// A lane's queries of its two rows as the tensor cores take them; zeros for rows that are not.
template <int HEAD>
DEV void load_queries(uint4 (&q)[HEAD / 16], const Attend& p, uint2 span, int kv_head, int warp) {
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + half * 8 + lane / 4;
    const bool take = row < span.y * p.group;
    size_t line = (size_t)(span.x + row / p.group) * p.rope.heads + kv_head * p.group;
    const u32* from = (const u32*)(p.rope.q + (line + row % p.group) * HEAD) + lane % 4;
#pragma unroll
    for (int step = 0; step < HEAD / 16; ++step) {
      (half ? q[step].y : q[step].x) = take ? from[step * 8] : 0;
      (half ? q[step].w : q[step].z) = take ? from[step * 8 + 4] : 0;
    }
  }
}

// Asks for the tile at `key`, if there is one: each page of it that has keys. A warp calls it.
template <int HEAD>
DEV void fetch(Shared<HEAD>& s, const Attend& p, const u32* pages, int kv_head, int key, int keys,
               Stage<STAGES> stage) {
  const int lane = threadIdx.x, halves = HEAD / 64, run = PAGE * 64;
  const int within = lane % 4, half = lane / 4 % halves, is_v = lane / 4 / halves;
  const int count = min((keys - key + PAGE - 1) / PAGE, KEYS / PAGE);
  if (count <= 0) return;
  const bool takes = within < count && is_v < 2;
  const u32 page = takes ? pages[key / PAGE + within] : 0;
  // The first round of a stage is free at once.
  barrier_wait(&s.free[stage.at], stage.round ^ 1);
  if (lane < 2) {
    u64* full = lane == 0 ? &s.k_full[stage.at] : &s.v_full[stage.at];
    barrier_expect(full, count * PAGE * HEAD * sizeof(bf16));
  }
  __syncwarp();
  if (!takes) return;
  bf16* to = (is_v ? s.v : s.k)[stage.at] + half * KEYS * 64 + within * run;
  const bf16* from = p.rope.layer + slot_of(p.rope, page, is_v, kv_head, 0, HEAD) + half * run;
  copy_bulk(to, from, run * sizeof(bf16), is_v ? &s.v_full[stage.at] : &s.k_full[stage.at]);
}

// Zeros in place of values behind the last key of the last tile: weights of zero do not make
// nothing of what is not a number. Every thread calls it.
template <int HEAD>
DEV void clear_values(bf16* v, int there) {
  for (int i = threadIdx.x; i < (KEYS - there) * (HEAD / 8); i += THREADS) {
    int chunk = i % (HEAD / 8), key = there + i / (HEAD / 8);
    *(uint4*)(v + (chunk / 8 * KEYS + key) * 64 + chunk % 8 * 8) = make_uint4(0, 0, 0, 0);
  }
  bulk_fence();
  __syncthreads();
}

template <int HEAD>
DEV void score(float (&scores)[8][4], const uint4 (&q)[HEAD / 16], const bf16* k) {
  float(&d)[32] = *(float(*)[32])scores;
  hold(d);
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < HEAD / 16; ++step) {
    const bf16* from = k + step / 4 * KEYS * 64 + step % 4 * 16;
    wgmma(d, q[step], lines_at(from, 16), step != 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  hold(d);
}

template <int HEAD>
DEV void add_values(const float (&weights)[8][4], Part<HEAD>& part, const bf16* v) {
  uint4 a[KEYS / 16];
#pragma unroll
  for (int step = 0; step < KEYS / 16; ++step) {
    const float* low = weights[step * 2];
    const float* high = weights[step * 2 + 1];
    a[step] = make_uint4(pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]),
                         pack_bf16(high[0], high[1]), pack_bf16(high[2], high[3]));
  }
  hold(part.sums);
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < KEYS / 16; ++step) {
    wgmma<1>(part.sums, a[step], lines_at(v + step * 16 * 64, KEYS * 128), 1);
  }
  wgmma_commit();
#pragma unroll
  for (int step = 0; step < KEYS / 16; ++step) mma(part.weights, (const u32*)&a[step], ONES, ONES);
  wgmma_wait<0>();
  hold(part.sums);
}

// grid: (blocks of rows, kv heads); block: 256; shared: Shared. span.y * group <= 128.
template <int HEAD>
DEV void attend_wide(const Attend& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<HEAD>& s = *(Shared<HEAD>*)memory;
  const int warp = threadIdx.x / WARP, kv_head = blockIdx.y;
  if (threadIdx.x < STAGES) {
    barrier_init(&s.k_full[threadIdx.x], 1);
    barrier_init(&s.v_full[threadIdx.x], 1);
    barrier_init(&s.free[threadIdx.x], THREADS);
  }
  barrier_fence();
  __syncthreads();
  wait_for_previous();
  let_next_start();
  const uint2 span = p.spans[blockIdx.x];
  const int keys = p.rope.positions[span.x + span.y - 1] + 1;
  const u32* pages = p.rope.pages + (size_t)p.rope.lanes[span.x] * p.rope.pages_max;
  Stage<STAGES> stage, ahead;
  auto ask = [&](int key) {
    if (warp == 0) fetch(s, p, pages, kv_head, key, keys, ahead);
    ahead.next();
  };
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) ask(i * KEYS);
  uint4 q[HEAD / 16];
  load_queries<HEAD>(q, p, span, kv_head, warp);
  int ends[2];
  find_ends(ends, p, span, warp);
  Part<HEAD> part, total;
  part.clear();
  total.clear();
  for (int key = 0; key < keys; key += KEYS) {
    ask(key + (STAGES - 1) * KEYS);
    float scores[8][4];
    barrier_wait(&s.k_full[stage.at], stage.round);
    score<HEAD>(scores, q, s.k[stage.at]);
    weigh(scores, part, ends, key, p);
    barrier_wait(&s.v_full[stage.at], stage.round);
    if (keys < key + KEYS) clear_values<HEAD>(s.v[stage.at], keys - key);
    add_values(scores, part, s.v[stage.at]);
    barrier_arrive(&s.free[stage.at]);
    if ((key + KEYS) % CHUNK == 0 || keys <= key + KEYS) {
      total.add(part, p.scale_log2);
      part.clear();
    }
    stage.next();
  }
  store_rows(p, total, span, kv_head, warp);
}
#else
template <int HEAD> DEV void attend_wide(const Attend& p) {}
#endif

KERNEL __launch_bounds__(THREADS, 1) attend_wide_64(const Attend p) { attend_wide<64>(p); }
KERNEL __launch_bounds__(THREADS, 1) attend_wide_128(const Attend p) { attend_wide<128>(p); }
