// What attends to a whole chunk in one go, eight warps together: its shared memory, scores,
// weights, and what a warp adds up.
//
// Eight warps score 32 keys each; the maxima of all tiles are known after one barrier, so weights
// are made at once, and the running softmax of attend.cuh is only the order in which a warp adds up
// its eighth of head_dim.
#pragma once
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
  const int lane = thread() % WARP, line = HEAD / 8, rows = THREADS / line;
  const int key0 = chunk * CHUNK, there = text.start - key0;
  const int within = thread() / line, at = thread() % line;
  const bool has_page = lane < CHUNK / PAGE && lane * PAGE < there;
  const u32 page = has_page ? text.pages[key0 / PAGE + lane] : 0;
  const int end = min(text.keys - key0 + KEYS - 1, CHUNK) / KEYS * KEYS;
#pragma unroll 4
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
template <int HEAD, int TILES, class Rows>
DEV void score(float (&scores)[TILES][4][4], Shared<HEAD, TILES>& s, int key0, const Attend& p,
               const Rows& text, int halves = 2) {
  const int lane = thread() % WARP, warp = thread() / WARP;
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
  mask(scores, s.most[warp], key0 + warp * 32, p, text, halves);
}

// Scores to weights in shared memory, relative to the largest score up to their tile.
template <int TILES, class Memory>
DEV void weigh(const float (&scores)[TILES][4][4], Memory& s, const Attend& p, int halves = 2) {
  const int lane = thread() % WARP, warp = thread() / WARP;
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (halves <= half) break;
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
template <int HEAD, int TILES, class Memory>
DEV void raise_to_tile(Part<HEAD, TILES, WARPS>& part, const Memory& s, int at, const Attend& p,
                       int halves = 2) {
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (halves <= half) break;
      int row = tile * 16 + half * 8 + thread() % WARP / 4;
      float most = fmaxf(s.most[at * 2][row], s.most[at * 2 + 1][row]);
      part.raise(tile, half, fmaxf(part.most[tile][half], most), p.scale_log2);
    }
}

// Weights x values of one tile of keys, this warp's eighth of head_dim.
template <int HEAD, int TILES>
DEV void add_values(Part<HEAD, TILES, WARPS>& part, Shared<HEAD, TILES>& s, int at) {
  const int lane = thread() % WARP, warp = thread() / WARP;
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

// Stores the rows of the sequence, if this is the block that has them or merges them.
template <int HEAD, int TILES, class Args>
DEV void finish_rows(const Part<HEAD, TILES, WARPS>& total, const Args& p, const Text& text,
                     int kv_head, int blocks) {
  if (blocks == 1) {
    store_all(p, total, text.span, kv_head);
  } else if (is_last(p, kv_head, blocks)) {
    merge_parts<HEAD, TILES, WARPS>(p, text.span, kv_head, text.chunks);
  }
}
