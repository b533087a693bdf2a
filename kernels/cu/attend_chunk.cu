// Attention of a few rows of each sequence over its pages, where blocks are few and the time is
// that of one thing waiting for another: a block takes a chunk in one go.
//
// All its keys and values are asked for before the product before has ended. Where several blocks
// share a sequence, the last one merges; two chunks are not worth it.
#include "attend_chunk.cuh"

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
  turn_rows<HEAD, WARPS, 3>(s.q, s.own, p, text, kv_head, [&](int position) {
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
  finish_rows(total, p, text, kv_head, blocks);
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
