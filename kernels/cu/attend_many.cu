// Attention of a run of rows of one sequence over its pages: prompts.
//
// A block takes 128 packed rows (row, query head) that share a kv head; a warp takes 16 of them
// and all of head_dim. Queries, keys and values were turned by `rope`. The arithmetic is that of
// `attend_few`, see attend.cuh.
#include "attend.cuh"

#define THREADS 256
#define STAGES 2

template <int HEAD>
struct Shared {
  bf16 k[STAGES][KEYS * HEAD];
  bf16 v[STAGES][KEYS * HEAD];
  bf16 q[8 * 16 * HEAD];
};

// What a lane knows of its rows, l/4 and l/4 + 8 of the warp's 16.
template <int HEAD>
struct Part {
  float most[2];
  float weights[4];
  float sums[HEAD / 8][4];

  MEMBER void clear() {
    most[0] = most[1] = NEGATIVE_INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[i] = 0.0f;
#pragma unroll
    for (int column = 0; column < HEAD / 8; ++column)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[column][i] = 0.0f;
  }

  MEMBER void scale(int half, float by) {
#pragma unroll
    for (int i = half * 2; i < half * 2 + 2; ++i) {
      weights[i] *= by;
#pragma unroll
      for (int column = 0; column < HEAD / 8; ++column) sums[column][i] *= by;
    }
  }

  MEMBER void add(const Part& other, float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float mine, theirs;
      most[half] = merge_most(most[half], other.most[half], scale, mine, theirs);
#pragma unroll
      for (int i = half * 2; i < half * 2 + 2; ++i) {
        weights[i] = merge(weights[i], mine, other.weights[i], theirs);
#pragma unroll
        for (int column = 0; column < HEAD / 8; ++column) {
          sums[column][i] = merge(sums[column][i], mine, other.sums[column][i], theirs);
        }
      }
    }
  }
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
DEV void weigh(float (&scores)[8][4], Part<HEAD>& part, const int (&ends)[2], int key0,
               const Attend& p) {
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = part.most[half];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      int key = key0 + i / 2 * 8 + lane % 4 * 2 + i % 2;
      float& value = scores[i / 2][half * 2 + i % 2];
      if (key < p.rope.behind || ends[half] <= key) value = NEGATIVE_INFINITY;
      most = fmaxf(most, value);
    }
    most = fmaxf(most, __shfl_xor_sync(FULL, most, 1));
    most = fmaxf(most, __shfl_xor_sync(FULL, most, 2));
    float base = base_of(most, p.scale_log2);
    part.scale(half, shrink(part.most[half], most, p.scale_log2));
    part.most[half] = most;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float& value = scores[i / 2][half * 2 + i % 2];
      value = weight_of(value, p.scale_log2, base);
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
      mma(part.sums[pair * 2], a, b[0], b[1]);
      mma(part.sums[pair * 2 + 1], a, b[2], b[3]);
    }
  }
}

// grid: (blocks of rows, kv heads); block: 256; shared: Shared. span.y * group <= 128.
template <int HEAD>
DEV void attend_many(const Attend& p) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared<HEAD>& s = *(Shared<HEAD>*)memory;
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, kv_head = blockIdx.y;
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
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int row = warp * 16 + half * 8 + lane / 4;
    ends[half] = row < rows ? p.rope.positions[span.x + row / p.group] + 1 : 0;
  }
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
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int row = warp * 16 + half * 8 + lane / 4;
    if (rows <= row) continue;
#pragma unroll
    for (int column = 0; column < HEAD / 8; ++column) {
      const float* pair = &total.sums[column][half * 2];
      float weights = total.weights[half * 2];
      bf16* out = out_of<HEAD>(p, span.x, kv_head, row, column * 8 + lane % 4 * 2);
      *(u32*)out = pack_bf16(divide(pair[0], weights), divide(pair[1], weights));
    }
  }
}

KERNEL __launch_bounds__(THREADS, 1) attend_many_64(const Attend p) { attend_many<64>(p); }
KERNEL __launch_bounds__(THREADS, 1) attend_many_128(const Attend p) { attend_many<128>(p); }
