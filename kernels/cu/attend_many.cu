// Attention of a run of rows of one sequence over its pages: prompts.
//
// A block takes 128 packed rows (row, query head) that share a kv head; a warp takes 16 of them
// and all of head_dim. Queries, keys and values were turned by `rope`. The arithmetic is that of
// `attend_few`, see attend.cuh.
#include "attend_many.cuh"

#define THREADS 256
#define STAGES 2

template <int HEAD>
struct Shared {
  bf16 k[STAGES][KEYS * HEAD];
  bf16 v[STAGES][KEYS * HEAD];
  bf16 q[8 * 16 * HEAD];
};

template <int HEAD>
DEV void score(float (&scores)[8][4], Shared<HEAD>& s, int stage) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
  for (int i = 0; i < 32; ++i) scores[i / 4][i % 4] = 0.0f;
#pragma unroll
  for (int step = 0; step < HEAD / 16; ++step) {
    u32 a[4];
    load_tiles(a, chunk_at<HEAD>(s.q, warp * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      u32 b[4];
      int key = pair * 16 + lane / 16 * 8 + lane % 8;
      load_tiles(b, chunk_at<HEAD>(s.k[stage], key, step * 2 + lane / 8 % 2));
      mma(scores[pair * 2], a, b[0], b[1]);
      mma(scores[pair * 2 + 1], a, b[2], b[3]);
    }
  }
}

template <int HEAD>
DEV void add_values(const float (&weights)[8][4], Part<HEAD>& part, Shared<HEAD>& s, int stage) {
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int step = 0; step < KEYS / 16; ++step) {
    const float* low = weights[step * 2];
    const float* high = weights[step * 2 + 1];
    u32 a[4] = {pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]),
                pack_bf16(high[0], high[1]), pack_bf16(high[2], high[3])};
    mma(part.weights, a, ONES, ONES);
#pragma unroll
    for (int pair = 0; pair < HEAD / 16; ++pair) {
      u32 b[4];
      int key = step * 16 + lane / 8 % 2 * 8 + lane % 8;
      load_tiles_transposed(b, chunk_at<HEAD>(s.v[stage], key, pair * 2 + lane / 16));
      mma(&part.sums[pair * 8], a, b[0], b[1]);
      mma(&part.sums[pair * 8 + 4], a, b[2], b[3]);
    }
  }
}

// grid: (blocks of rows, kv heads); block: 256; shared: Shared. span.y * group <= 128.
template <int HEAD>
DEV void attend_many(const Attend& p) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared<HEAD>& s = *(Shared<HEAD>*)memory;
  const int warp = threadIdx.x / WARP, kv_head = blockIdx.y;
  wait_for_previous();
  let_next_start();
  const uint2 span = p.spans[blockIdx.x];
  const int keys = p.rope.positions[span.x + span.y - 1] + 1, rows = span.y * p.group;
  const u32* pages = p.rope.pages + (size_t)p.rope.lanes[span.x] * p.rope.pages_max;
  for (int i = threadIdx.x; i < 8 * 16 * (HEAD / 8); i += THREADS) {
    int row = i / (HEAD / 8), chunk = i % (HEAD / 8);
    bool take = row < rows;
    size_t line = (size_t)(span.x + row / p.group) * p.rope.heads + kv_head * p.group;
    size_t from = take ? (line + row % p.group) * HEAD + chunk * 8 : 0;
    copy_async(chunk_at<HEAD>(s.q, row, chunk), p.rope.q + from, take);
  }
  copy_keys<HEAD, THREADS>(s.k[0], p, pages, kv_head, 0, 0, keys);
  copy_keys<HEAD, THREADS>(s.v[0], p, pages, kv_head, 1, 0, keys);
  copies_commit();
  int ends[2];
  find_ends(ends, p, span, warp);
  Part<HEAD> part, total;
  part.clear();
  total.clear();
  int stage = 0;
  for (int key = 0; key < keys; key += KEYS) {
    copies_wait<0>();
    __syncthreads();
    copy_keys<HEAD, THREADS>(s.k[stage ^ 1], p, pages, kv_head, 0, key + KEYS, keys);
    copy_keys<HEAD, THREADS>(s.v[stage ^ 1], p, pages, kv_head, 1, key + KEYS, keys);
    copies_commit();
    float scores[8][4];
    score(scores, s, stage);
    weigh(scores, part, ends, key, p);
    add_values(scores, part, s, stage);
    if ((key + KEYS) % CHUNK == 0 || keys <= key + KEYS) {
      total.add(part, p.scale_log2);
      part.clear();
    }
    stage ^= 1;
  }
  store_rows(p, total, span, kv_head, warp);
}

KERNEL __launch_bounds__(THREADS, 1) attend_many_64(const Attend p) { attend_many<64>(p); }
KERNEL __launch_bounds__(THREADS, 1) attend_many_128(const Attend p) { attend_many<128>(p); }
