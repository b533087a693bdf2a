// Attention of a few rows of each sequence over its pages, where blocks are few and the time is
// that of one thing waiting for another: a block takes a chunk in one go.
//
// All its keys and values are asked for before the product before has ended. Eight warps score 32
// keys each; the maxima of all tiles are known after one barrier, so weights are made at once, and
// the running softmax of attend.cuh is only the order in which a warp adds up its eighth of
// head_dim. Where several blocks share a sequence, the last one merges; two chunks are not worth
// it.
#include "attend_few.cuh"

#define WARPS 8
#define THREADS (WARPS * WARP)
#define TILE_COUNT (CHUNK / KEYS)
#define ALONE_MAX 2   // chunks that one block takes, whoever else there is

template <int HEAD, int TILES>
struct Shared {
  bf16 k[CHUNK * HEAD];
  bf16 v[CHUNK * HEAD];
  bf16 q[TILES * 16 * HEAD];
  bf16 own[2][ROWS_MAX * HEAD];        // keys and values of the rows themselves
  bf16 weights[TILES * 16 * CHUNK];
  float most[WARPS][TILES * 16];
};

// Copies the chunk's keys, or values, that were there before this step; zeros behind them to the
// end of their tile.
template <int HEAD>
DEV void copy_chunk(bf16* to, const Attend& p, const Text& text, int kv_head, int is_v,
                    int chunk) {
  const int lane = threadIdx.x % WARP, line = HEAD / 8, rows = THREADS / line;
  const int key0 = chunk * CHUNK, there = text.start - key0;
  const int within = threadIdx.x / line, at = threadIdx.x % line;
  const bool has_page = lane < CHUNK / PAGE && lane * PAGE < there;
  const u32 page = has_page ? text.pages[key0 / PAGE + lane] : 0;
  const int end = min(text.keys - key0 + KEYS - 1, CHUNK) / KEYS * KEYS;
#pragma unroll
  for (int first = 0; first < CHUNK; first += rows) {
    if (end <= first) break;
    const int row = first + within;
    const u32 its_page = __shfl_sync(FULL, page, row / PAGE);
    size_t slot = slot_of(p.rope, its_page, is_v, kv_head, row, HEAD);
    const bf16* from = p.rope.layer + slot + within_slot(row, at * 8);
    copy_async(chunk_at<HEAD>(to, row, at), from, row < there);
  }
  copies_commit();
}

// Scores of this warp's 32 keys, minus infinity where a row does not see the key; the largest of
// each row to shared memory.
template <int HEAD, int TILES>
DEV void score(float (&scores)[TILES][4][4], Shared<HEAD, TILES>& s, int key0, const Attend& p,
               const Text& text) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int i = 0; i < 16; ++i) scores[tile][i / 4][i % 4] = 0.0f;
  if (key0 + warp * 32 < text.keys) {
#pragma unroll
    for (int step = 0; step < HEAD / 16; ++step) {
      u32 b[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int key = warp * 32 + half * 16 + lane / 16 * 8 + lane % 8;
        load_tiles(b[half], chunk_at<HEAD>(s.k, key, step * 2 + lane / 8 % 2));
      }
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        u32 a[4];
        load_tiles(a, chunk_at<HEAD>(s.q, tile * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          mma(scores[tile][i], a, b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
        }
      }
    }
  }
  mask(scores, s.most[warp], key0 + warp * 32, p, text);
}

// Scores to weights in shared memory, relative to the largest score up to their tile.
template <int HEAD, int TILES>
DEV void weigh(const float (&scores)[TILES][4][4], Shared<HEAD, TILES>& s, const Attend& p) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int row = tile * 16 + half * 8 + lane / 4;
      float most = NEGATIVE_INFINITY;
#pragma unroll
      for (int other = 0; other < WARPS; ++other) {
        if (other / 2 <= warp / 2) most = fmaxf(most, s.most[other][row]);
      }
      float base = base_of(most, p.scale_log2);
#pragma unroll
      for (int column = 0; column < 4; ++column) {
        const float* pair = &scores[tile][column][half * 2];
        bf16* to = chunk_at<CHUNK>(s.weights, row, warp * 4 + column) + lane % 4 * 2;
        *(u32*)to = pack_bf16(weight_of(pair[0], p.scale_log2, base),
                              weight_of(pair[1], p.scale_log2, base));
      }
    }
}

// Brings the part so far to the largest score up to and with a tile.
template <int HEAD, int TILES>
DEV void raise_to_tile(Part<HEAD, TILES, WARPS>& part, const Shared<HEAD, TILES>& s, int at,
                       const Attend& p) {
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int row = tile * 16 + half * 8 + threadIdx.x % WARP / 4;
      float most = fmaxf(s.most[at * 2][row], s.most[at * 2 + 1][row]);
      part.raise(tile, half, fmaxf(part.most[tile][half], most), p.scale_log2);
    }
}

// Weights x values of one tile of keys, this warp's eighth of head_dim.
template <int HEAD, int TILES>
DEV void add_values(Part<HEAD, TILES, WARPS>& part, Shared<HEAD, TILES>& s, int at) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int columns = Part<HEAD, TILES, WARPS>::COLUMNS;
#pragma unroll
  for (int two = 0; two < KEYS / 32; ++two) {
    // Of 32 keys, 8 columns of values in one go: two steps of the tensor cores.
    u32 b[columns][4];
#pragma unroll
    for (int column = 0; column < columns; ++column) {
      int key = at * KEYS + two * 32 + lane;
      load_tiles_transposed(b[column], chunk_at<HEAD>(s.v, key, warp * columns + column));
    }
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        u32 a[4];
        int chunk = at * (KEYS / 8) + two * 4 + step * 2 + lane / 16;
        load_tiles(a, chunk_at<CHUNK>(s.weights, tile * 16 + lane % 16, chunk));
        mma(part.weights[tile], a, ONES, ONES);
#pragma unroll
        for (int column = 0; column < columns; ++column) {
          mma(part.sums[tile][column], a, b[column][step * 2], b[column][step * 2 + 1]);
        }
      }
  }
}

// Everything before the first wait reads what earlier kernels than the last one wrote.
// grid: (blocks a sequence, kv heads, sequences); block: 256; shared: Shared.
template <int HEAD, int TILES>
DEV void attend_chunk(const Attend& p) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared<HEAD, TILES>& s = *(Shared<HEAD, TILES>*)memory;
  const int kv_head = blockIdx.y;
  const Text text = find_text(p);
  const int blocks = text.chunks <= ALONE_MAX ? 1 : min(gridDim.x, text.chunks);
  const bool works = blockIdx.x < blocks && 0 < text.chunks;
  if (works) {
    copy_chunk<HEAD>(s.k, p, text, kv_head, 0, blockIdx.x);
    copy_chunk<HEAD>(s.v, p, text, kv_head, 1, blockIdx.x);
    clear_queries<HEAD, TILES, WARPS>(s.q, p, text);
  }
  wait_for_previous();
  let_next_start();
  if (!works) return;
  turn_rows<HEAD, WARPS>(s.q, s.own, p, text, kv_head, [&](int position) {
    return position / CHUNK % blocks == blockIdx.x;
  });
  Part<HEAD, TILES, WARPS> total;
  total.clear();
  for (int chunk = blockIdx.x; chunk < text.chunks; chunk += blocks) {
    const int key0 = chunk * CHUNK, next = chunk + blocks;
    const bool has_own = text.start < key0 + CHUNK;
    // The keys are there; the values may still be on their way.
    copies_wait<1>();
    if (has_own) copies_wait<0>();
    __syncthreads();
    if (has_own) {
      patch_keys<HEAD, WARPS, CHUNK>(s.k, s.v, s.own, text, key0);
      __syncthreads();
    }
    float scores[TILES][4][4];
    score(scores, s, key0, p, text);
    __syncthreads();
    if (next < text.chunks) copy_chunk<HEAD>(s.k, p, text, kv_head, 0, next);
    else copies_commit();
    weigh(scores, s, p);
    copies_wait<1>();
    __syncthreads();
    Part<HEAD, TILES, WARPS> part;
    part.clear();
    for (int at = 0; at < TILE_COUNT && key0 + at * KEYS < text.keys; ++at) {
      raise_to_tile(part, s, at, p);
      add_values(part, s, at);
    }
    if (blocks == 1) total.add(part, p.scale_log2);
    else leave_part(p, part, kv_head, chunk);
    if (next < text.chunks) {
      __syncthreads();
      copy_chunk<HEAD>(s.v, p, text, kv_head, 1, next);
    }
  }
  if (blocks == 1) {
    store_all(p, total, text.span, kv_head);
  } else if (is_last(p, kv_head, blocks)) {
    merge_parts<HEAD, TILES, WARPS>(p, text.span, kv_head, text.chunks);
  }
}

#define CHUNKED(head, tiles)                                                           \
  KERNEL __launch_bounds__(THREADS, 1) attend_chunk_##head##_##tiles(const Attend p) {    \
    attend_chunk<head, tiles>(p);                                                      \
  }

CHUNKED(64, 1)
CHUNKED(64, 2)
CHUNKED(64, 4)
CHUNKED(128, 1)
CHUNKED(128, 2)
