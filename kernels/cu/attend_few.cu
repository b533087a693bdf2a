// Attention of a few rows of each sequence over its pages: each page is read once for all of them.
//
// Queries, and the rows' own keys and values, come straight from the product before and are turned
// here; the keys and values also go to their pages. Older ones are fetched before that product
// ends. The rows and query heads that share a kv head fill the tensor cores' 16-row side. A block
// takes some chunks of one sequence and kv head: its four warps share a tile, 16 keys of scores
// each and then a quarter of head_dim each. Where several blocks share a sequence, the last one
// merges.
#include "attend.cuh"

#define THREADS 128
#define ROWS_MAX 8   // of a sequence

template <int HEAD> struct Stages { static const int COUNT = HEAD == 128 ? 2 : 3; };

template <int HEAD, int TILES>
struct Shared {
  bf16 k[Stages<HEAD>::COUNT][KEYS * HEAD];
  bf16 v[Stages<HEAD>::COUNT][KEYS * HEAD];
  bf16 q[TILES * 16 * HEAD];
  bf16 own[2][ROWS_MAX * HEAD];        // keys and values of the rows themselves
  bf16 weights[TILES * 16 * KEYS];
  float most[4][TILES * 16];
  int ends[TILES * 16];
  bool is_last;
};

// What a lane knows of its rows, l/4 and l/4 + 8 of each tile.
template <int HEAD, int TILES>
struct Part {
  float most[TILES][2];
  float weights[TILES][4];             // sum of weights: the product with a matrix of ones
  float sums[TILES][HEAD / 32][4];

  MEMBER void clear() {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      most[tile][0] = most[tile][1] = NEGATIVE_INFINITY;
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[tile][i] = 0.0f;
#pragma unroll
      for (int column = 0; column < HEAD / 32; ++column)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[tile][column][i] = 0.0f;
    }
  }

  MEMBER void scale(int tile, int half, float by) {
#pragma unroll
    for (int i = half * 2; i < half * 2 + 2; ++i) {
      weights[tile][i] *= by;
#pragma unroll
      for (int column = 0; column < HEAD / 32; ++column) sums[tile][column][i] *= by;
    }
  }

  MEMBER void add(const Part& other, float scale) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float mine, theirs;
        most[tile][half] =
            merge_most(most[tile][half], other.most[tile][half], scale, mine, theirs);
#pragma unroll
        for (int i = half * 2; i < half * 2 + 2; ++i) {
          weights[tile][i] = merge(weights[tile][i], mine, other.weights[tile][i], theirs);
#pragma unroll
          for (int column = 0; column < HEAD / 32; ++column) {
            sums[tile][column][i] =
                merge(sums[tile][column][i], mine, other.sums[tile][column][i], theirs);
          }
        }
      }
  }
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
DEV void weigh(float (&scores)[TILES][2][4], Part<HEAD, TILES>& part, Shared<HEAD, TILES>& s,
               int key0, const Attend& p) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile * 16 + half * 8 + lane / 4, end = s.ends[row];
      float most = NEGATIVE_INFINITY;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int key = key0 + warp * 16 + i / 2 * 8 + lane % 4 * 2 + i % 2;
        float& value = scores[tile][i / 2][half * 2 + i % 2];
        if (key < p.rope.behind || end <= key) value = NEGATIVE_INFINITY;
        most = fmaxf(most, value);
      }
      most = fmaxf(most, __shfl_xor_sync(FULL, most, 1));
      most = fmaxf(most, __shfl_xor_sync(FULL, most, 2));
      if (lane % 4 == 0) s.most[warp][row] = most;
    }
  __syncthreads();
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int row = tile * 16 + half * 8 + lane / 4;
      float most = part.most[tile][half];
#pragma unroll
      for (int other = 0; other < 4; ++other) most = fmaxf(most, s.most[other][row]);
      float base = base_of(most, p.scale_log2);
      part.scale(tile, half, shrink(part.most[tile][half], most, p.scale_log2));
      part.most[tile][half] = most;
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
DEV void add_values(Part<HEAD, TILES>& part, Shared<HEAD, TILES>& s, int stage) {
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

// Turns the queries that share this kv head (packed row i is row i / group, head i % group), and
// the rows' own keys and values. `keeps(position)`: whether this block puts them to their page.
template <int HEAD, int TILES, class Keeps>
DEV void turn_rows(Shared<HEAD, TILES>& s, const Attend& p, uint2 span, int kv_head, Keeps keeps) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int heads = p.group + 2, queries = span.y * p.group;
  for (int i = warp; i < TILES * 16; i += THREADS / WARP) {
    if (i < queries) continue;   // unused packed rows are zeros
    for (int at = lane; at < HEAD / 2; at += WARP) ((u32*)(s.q + i * HEAD))[at] = 0;
  }
  for (int i = warp; i < span.y * heads; i += THREADS / WARP) {
    int at = i / heads, within = i % heads, row = span.x + at;
    int position = p.rope.positions[row];
    int head = kv_head * p.group + within;
    if (p.group <= within) head = p.rope.heads + (within - p.group) * p.rope.kv_heads + kv_head;
    Head<HEAD / 64> turned = {};
    if (p.rope.behind <= position) turned = turned_head<HEAD / 64>(p.rope, row, position, head);
    if (within < p.group) {
      int packed = at * p.group + within;
#pragma unroll
      for (int pair = 0; pair < HEAD / 64; ++pair) {
        int low = pair * WARP + lane, high = low + HEAD / 2;
        *(chunk_at<HEAD>(s.q, packed, low / 8) + low % 8) = to_bf16(turned.low[pair]);
        *(chunk_at<HEAD>(s.q, packed, high / 8) + high % 8) = to_bf16(turned.high[pair]);
      }
      continue;
    }
    int is_v = within - p.group;
    turned.store(s.own[is_v] + at * HEAD);
    if (position < p.rope.behind || !keeps(position)) continue;
    u32 page = p.rope.pages[(size_t)p.rope.lanes[row] * p.rope.pages_max + position / PAGE];
    turned.store(p.rope.layer + slot_of(p.rope, page, is_v, kv_head, position, HEAD));
  }
}

// Puts the rows' own keys and values that fall into the tile at `key0` into it.
template <int HEAD, int TILES>
DEV void patch_tile(Shared<HEAD, TILES>& s, int stage, int start, int rows, int key0) {
  for (int i = threadIdx.x; i < rows * (HEAD / 8); i += THREADS) {
    int row = i / (HEAD / 8), chunk = i % (HEAD / 8), place = start + row - key0;
    if (place < 0 || KEYS <= place) continue;
    *(uint4*)chunk_at<HEAD>(s.k[stage], place, chunk) = ((uint4*)(s.own[0] + row * HEAD))[chunk];
    *(uint4*)chunk_at<HEAD>(s.v[stage], place, chunk) = ((uint4*)(s.own[1] + row * HEAD))[chunk];
  }
}

template <int HEAD>
DEV void store_row(const Attend& p, uint2 span, int kv_head, int row, int at, float low,
                   float high) {
  if (row >= span.y * p.group) return;
  *(u32*)out_of<HEAD>(p, span.x, kv_head, row, at) = pack_bf16(low, high);
}

// A chunk that another block will merge: for each row sums, then their weight and maximum.
template <int HEAD, int TILES>
DEV float* part_of(const Attend& p, int kv_head, int chunk, int row) {
  size_t line = (size_t)(blockIdx.z * p.rope.kv_heads + kv_head) * p.chunks_max + chunk;
  return p.parts + (line * TILES * 16 + row) * (HEAD + 2);
}

template <int HEAD, int TILES>
DEV void leave_part(const Attend& p, const Part<HEAD, TILES>& part, int kv_head, int chunk) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int row = tile * 16 + half * 8 + lane / 4;
      float* to = part_of<HEAD, TILES>(p, kv_head, chunk, row);
#pragma unroll
      for (int column = 0; column < HEAD / 32; ++column) {
        const float* pair = &part.sums[tile][column][half * 2];
        float2* at = (float2*)(to + warp * (HEAD / 4) + column * 8 + lane % 4 * 2);
        __stcg(at, make_float2(pair[0], pair[1]));
      }
      if (warp == 0 && lane % 4 == 0) {
        float2 rest = make_float2(part.weights[tile][half * 2], part.most[tile][half]);
        __stcg((float2*)(to + HEAD), rest);
      }
    }
}

// The last block of a sequence and kv head merges all chunks, from left to right.
template <int HEAD, int TILES>
DEV void merge_parts(const Attend& p, uint2 span, int kv_head, int chunks) {
  for (int i = threadIdx.x; i < span.y * p.group * (HEAD / 2); i += THREADS) {
    int row = i / (HEAD / 2), at = i % (HEAD / 2) * 2;
    float most = NEGATIVE_INFINITY, weights = 0.0f, low = 0.0f, high = 0.0f;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const float* from = part_of<HEAD, TILES>(p, kv_head, chunk, row);
      float2 sums = __ldcg((const float2*)(from + at));
      float2 rest = __ldcg((const float2*)(from + HEAD));
      float mine, theirs;
      most = merge_most(most, rest.y, p.scale_log2, mine, theirs);
      weights = merge(weights, mine, rest.x, theirs);
      low = merge(low, mine, sums.x, theirs);
      high = merge(high, mine, sums.y, theirs);
    }
    store_row<HEAD>(p, span, kv_head, row, at, divide(low, weights), divide(high, weights));
  }
}

template <int HEAD, int TILES>
DEV void store_all(const Attend& p, const Part<HEAD, TILES>& total, uint2 span, int kv_head) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int column = 0; column < HEAD / 32; ++column) {
        const float* pair = &total.sums[tile][column][half * 2];
        float weights = total.weights[tile][half * 2];
        store_row<HEAD>(p, span, kv_head, tile * 16 + half * 8 + lane / 4,
                        warp * (HEAD / 4) + column * 8 + lane % 4 * 2, divide(pair[0], weights),
                        divide(pair[1], weights));
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
DEV void copy_tile(Shared<HEAD, TILES>& s, int stage, const Attend& p, const u32* pages,
                   int kv_head, int key, int start) {
  copy_keys<HEAD, THREADS>(s.k[stage], p, pages, kv_head, 0, key, start);
  copy_keys<HEAD, THREADS>(s.v[stage], p, pages, kv_head, 1, key, start);
  copies_commit();
}

// Everything before the first wait reads what earlier kernels than the last one wrote.
// grid: (blocks a sequence, kv heads, sequences); block: 128; shared: Shared.
template <int HEAD, int TILES>
DEV void attend_few(const Attend& p) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared<HEAD, TILES>& s = *(Shared<HEAD, TILES>*)memory;
  const int stages = Stages<HEAD>::COUNT, kv_head = blockIdx.y;
  const uint2 span = p.spans[blockIdx.z];
  int keys = 0, rows = 0;
  for (int row = 0; row < span.y; ++row) {
    int position = p.rope.positions[span.x + row];
    if (0 <= position) keys = position + 1, ++rows;
  }
  const int start = keys - rows, chunks = (keys + CHUNK - 1) / CHUNK;
  const bool alone = gridDim.x == 1 || chunks <= 1;
  const u32* pages = p.rope.pages;
  if (0 < rows) pages += (size_t)p.rope.lanes[span.x] * p.rope.pages_max;
  if (threadIdx.x < TILES * 16) {
    int row = threadIdx.x / p.group;
    s.ends[threadIdx.x] = row < span.y ? p.rope.positions[span.x + row] + 1 : 0;
  }
  int loaded = blockIdx.x * CHUNK;
  if (blockIdx.x < chunks) {
#pragma unroll
    for (int stage = 0; stage < stages - 1; ++stage) {
      copy_tile(s, stage, p, pages, kv_head, loaded, start);
      loaded = next_tile(loaded, keys);
    }
  }
  wait_for_previous();
  let_next_start();
  if (chunks <= blockIdx.x) return;
  turn_rows(s, p, span, kv_head, [&](int position) {
    return position / CHUNK % gridDim.x == blockIdx.x;
  });
  Part<HEAD, TILES> part, total;
  part.clear();
  total.clear();
  int stage = 0;
  for (int key = blockIdx.x * CHUNK; key < keys;) {
    copies_wait<Stages<HEAD>::COUNT - 2>();
    __syncthreads();
    copy_tile(s, (stage + stages - 1) % stages, p, pages, kv_head, loaded, start);
    loaded = next_tile(loaded, keys);
    if (start < key + KEYS) {
      patch_tile(s, stage, start, rows, key);
      __syncthreads();
    }
    float scores[TILES][2][4];
    score(scores, s, stage);
    weigh(scores, part, s, key, p);
    add_values(part, s, stage);
    int next = next_tile(key, keys);
    if (next / CHUNK != key / CHUNK) {
      if (alone) total.add(part, p.scale_log2);
      else leave_part(p, part, kv_head, key / CHUNK);
      part.clear();
    }
    key = next;
    stage = (stage + 1) % stages;
  }
  if (alone) {
    store_all(p, total, span, kv_head);
    return;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    u32* count = p.arrivals + blockIdx.z * p.rope.kv_heads + kv_head;
    s.is_last = atomicAdd(count, 1) == min(gridDim.x, chunks) - 1;
    if (s.is_last) *count = 0;
  }
  __syncthreads();
  if (!s.is_last) return;
  __threadfence();
  merge_parts<HEAD, TILES>(p, span, kv_head, chunks);
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
