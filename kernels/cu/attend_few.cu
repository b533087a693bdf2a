// Attention of a few rows of each sequence over its pages, for many sequences: each page is read
// once for all rows. Tiles of keys come one after the other, several on their way, so that several
// blocks fit a multiprocessor; where blocks are few, `attend_chunk` is faster, and where they are
// many, on Hopper, `attend_ring`.
//
// Older keys are fetched before the product before has ended. A block takes some chunks of one
// sequence and kv head: its four warps share a tile, 16 keys of scores each and then a quarter of
// head_dim each. Where several blocks share a sequence, the last one merges.
#include "attend_few.cuh"

#define WARPS 4
#define THREADS (WARPS * WARP)

template <int HEAD> struct Stages { static const int COUNT = HEAD == 128 ? 2 : 3; };

template <int HEAD, int TILES>
struct Shared {
  bf16 k[Stages<HEAD>::COUNT][KEYS * HEAD];
  bf16 v[Stages<HEAD>::COUNT][KEYS * HEAD];
  bf16 q[TILES * 16 * HEAD];
  bf16 own[2][ROWS_MAX * HEAD];        // keys and values of the rows themselves
  bf16 weights[TILES * 16 * KEYS];
  float most[WARPS][TILES * 16];
};

// Scores of this warp's 16 keys, in units of the softmax's argument before scaling.
template <int HEAD, int TILES>
DEV void score(float (&scores)[TILES][2][4], Shared<HEAD, TILES>& s, int stage) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int i = 0; i < 8; ++i) scores[tile][i / 4][i % 4] = 0.0f;
#pragma unroll
  for (int step = 0; step < HEAD / 16; ++step) {
    u32 b[4];
    int key = warp * 16 + lane / 16 * 8 + lane % 8;
    load_tiles(b, chunk_at<HEAD>(s.k[stage], key, step * 2 + lane / 8 % 2));
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      u32 a[4];
      load_tiles(a, chunk_at<HEAD>(s.q, tile * 16 + lane % 16, step * 2 + lane / 16));
      mma(scores[tile][0], a, b[0], b[1]);
      mma(scores[tile][1], a, b[2], b[3]);
    }
  }
}

// Scores to weights in shared memory; the part so far is scaled to the new maximum.
template <int HEAD, int TILES>
DEV void weigh(float (&scores)[TILES][2][4], Part<HEAD, TILES, WARPS>& part,
               Shared<HEAD, TILES>& s, int key0, const Attend& p, const Text& text) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  mask(scores, s.most[warp], key0 + warp * 16, p, text);
  __syncthreads();
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int row = tile * 16 + half * 8 + lane / 4;
      float most = part.most[tile][half];
#pragma unroll
      for (int other = 0; other < WARPS; ++other) most = fmaxf(most, s.most[other][row]);
      float base = base_of(most, p.scale_log2);
      part.raise(tile, half, most, p.scale_log2);
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        float* pair = &scores[tile][column][half * 2];
        bf16* to = chunk_at<KEYS>(s.weights, row, warp * 2 + column) + lane % 4 * 2;
        *(u32*)to = pack_bf16(weight_of(pair[0], p.scale_log2, base),
                              weight_of(pair[1], p.scale_log2, base));
      }
    }
  __syncthreads();
}

// Adds weights x values, this warp's quarter of head_dim.
template <int HEAD, int TILES>
DEV void add_values(Part<HEAD, TILES, WARPS>& part, Shared<HEAD, TILES>& s, int stage) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
  for (int step = 0; step < KEYS / 16; ++step) {
    u32 b[HEAD / 64][4];
#pragma unroll
    for (int pair = 0; pair < HEAD / 64; ++pair) {
      int key = step * 16 + lane / 8 % 2 * 8 + lane % 8;
      int chunk = warp * (HEAD / 32) + pair * 2 + lane / 16;
      load_tiles_transposed(b[pair], chunk_at<HEAD>(s.v[stage], key, chunk));
    }
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      u32 a[4];
      load_tiles(a, chunk_at<KEYS>(s.weights, tile * 16 + lane % 16, step * 2 + lane / 16));
      mma(part.weights[tile], a, ONES, ONES);
#pragma unroll
      for (int pair = 0; pair < HEAD / 64; ++pair) {
        mma(part.sums[tile][pair * 2], a, b[pair][0], b[pair][1]);
        mma(part.sums[tile][pair * 2 + 1], a, b[pair][2], b[pair][3]);
      }
    }
  }
}

// Where the next tile of this block begins: tile after tile, every gridDim.x-th chunk.
DEV int next_tile(int key, int keys) {
  int next = key + KEYS;
  bool same_chunk = next % CHUNK != 0 && next < keys;
  return same_chunk ? next : key / CHUNK * CHUNK + gridDim.x * CHUNK;
}

// Copies the tile at `key` into a stage: the keys and values that were there before this step.
template <int HEAD, int TILES>
DEV void copy_tile(Shared<HEAD, TILES>& s, int stage, const Attend& p, const Text& text,
                   int kv_head, int key) {
  copy_keys<HEAD, THREADS>(s.k[stage], p, text.pages, kv_head, 0, key, text.start);
  copy_keys<HEAD, THREADS>(s.v[stage], p, text.pages, kv_head, 1, key, text.start);
  copies_commit();
}

// Everything before the first wait reads what earlier kernels than the last one wrote.
// grid: (blocks a sequence, kv heads, sequences); block: 128; shared: Shared.
template <int HEAD, int TILES>
DEV void attend_few(const Attend& p) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared<HEAD, TILES>& s = *(Shared<HEAD, TILES>*)memory;
  const int stages = Stages<HEAD>::COUNT, kv_head = blockIdx.y;
  const Text text = find_text(p);
  const bool alone = gridDim.x == 1 || text.chunks <= 1;
  int loaded = blockIdx.x * CHUNK;
  if (blockIdx.x < text.chunks) {
#pragma unroll
    for (int stage = 0; stage < stages - 1; ++stage) {
      copy_tile(s, stage, p, text, kv_head, loaded);
      loaded = next_tile(loaded, text.keys);
    }
  }
  clear_queries<HEAD, TILES, WARPS>(s.q, p, text);
  wait_for_previous();
  let_next_start();
  if (text.chunks <= blockIdx.x) return;
  turn_rows<HEAD, WARPS, 3>(s.q, s.own, p, text, kv_head, [&](int position) {
    return position / CHUNK % gridDim.x == blockIdx.x;
  });
  Part<HEAD, TILES, WARPS> part, total;
  part.clear();
  total.clear();
  int stage = 0;
  for (int key = blockIdx.x * CHUNK; key < text.keys;) {
    copies_wait<Stages<HEAD>::COUNT - 2>();
    __syncthreads();
    copy_tile(s, (stage + stages - 1) % stages, p, text, kv_head, loaded);
    loaded = next_tile(loaded, text.keys);
    if (text.start < key + KEYS) {
      patch_keys<HEAD, WARPS, KEYS>(s.k[stage], s.v[stage], s.own, text, key);
      __syncthreads();
    }
    float scores[TILES][2][4];
    score(scores, s, stage);
    weigh(scores, part, s, key, p, text);
    add_values(part, s, stage);
    int next = next_tile(key, text.keys);
    if (next / CHUNK != key / CHUNK) {
      if (alone) total.add(part, p.scale_log2);
      else leave_part(p, part, kv_head, key / CHUNK);
      part.clear();
    }
    key = next;
    stage = (stage + 1) % stages;
  }
  if (alone) {
    store_all(p, total, text.span, kv_head);
  } else if (is_last(p, kv_head, min(gridDim.x, text.chunks))) {
    merge_parts<HEAD, TILES, WARPS>(p, text.span, kv_head, text.chunks);
  }
}

#define FEW(head, tiles)                                                               \
  KERNEL __launch_bounds__(THREADS, 1) attend_few_##head##_##tiles(const Attend p) {      \
    attend_few<head, tiles>(p);                                                        \
  }

FEW(64, 1)
FEW(64, 2)
FEW(64, 4)
FEW(128, 1)
FEW(128, 2)
