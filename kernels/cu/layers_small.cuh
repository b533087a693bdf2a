// What the blocks of `layers_small.cu` share: who has what, what stands in shared memory, and how
// it gets there.
#pragma once
#include "layers_attend.cuh"

#define CLUSTER 8        // blocks
#define SLICES 8         // of each matrix, one a warp
#ifdef WIDE
#define ROWS 16          // of a cluster
#define DOWN_SLICES 2    // that a cluster has
#define UNITS_MAX 9      // of the stream
#define INNER_MAX 6      // units between a cluster's products
#else
#define ROWS 8
#define DOWN_SLICES 1
#define UNITS_MAX 10
#define INNER_MAX 4
#endif
#define BANDS (ROWS / 8) // of rows: what tensor cores take at once
#define KV_TILES 3       // of the first product that a block of a kv head has, at most
#define FORWARD_TILES (3 * DOWN_SLICES)   // and another one
#define JOB_UNITS 3      // of a part of the second product, at most
#define OWN_TILES 5      // of the stream that a block has, at most
#define OWN_PAIRS (OWN_TILES * 8)
#define OWN_EACH ((ROWS * OWN_PAIRS + THREADS - 1) / THREADS)
#define RAW_HEADS 32     // queries, keys and values of a text
#define LINE 66          // values of a row of a chunk that waits to be merged
#define LINE_BYTES (LINE * 4)
#define LATER (ROWS * OWN_PAIRS - THREADS)
#define HALF (ROWS * 4 + 4)   // words of 8 inputs of each row, apart from the next ones' banks
#define JOBS_EACH (OWN_TILES * SLICES)
#define PARTIAL (SLICES * 16 + 4)   // values of a row of a tile, likewise

enum Product { OF_O, OF_DOWN };

#ifdef HOPPER

typedef Shared<64, 1> Keys;
typedef u32 Words[ROWS][8];   // 16 inputs of each row, in pairs: those a lane takes side by side
// The same: eight, then eight, so that words of four lanes are side by side.
typedef u32 Halves[2][HALF];
typedef float Partial[ROWS][PARTIAL];   // sums of a tile's slices

// A block's attention: what comes from the blocks of its cluster, and what goes to them.
struct Near : Attend {
  const float* raw;
  const float2* turns;
  Halves* inner;
  const u64* inner_there;
  int kv_head, first_row;
};

// Its rows, of which a table knows how many keys each sees.
struct NearText : Text {
  const int* ends;
  MEMBER int end_of(int packed, int group) const { return ends[packed]; }
};

// A part of the second product: a tile's slice. Where its weights stand (units), its inputs
// (units) and how many units they are; where its sums go (values).
struct __align__(16) Job {
  int weights, inputs, units, sums;
};

// What a cluster has: a kv head of some sequences, or a slice of down.
struct Seat {
  bool is_kv;
  bool counts;        // this block counts layers for all that wait for each other
  int team;           // of those that share nothing with each other
  int at;             // the head, or which of the others
  Range sequences;
  int each;           // blocks that there are for a sequence

  // Whether its stream is kept behind the layers: one cluster for each row.
  MEMBER bool keeps() const { return is_kv && at == 0; }

  MEMBER void find(const Layers& p) {
    const int cluster = blockIdx.x / CLUSTER, kv_heads = p.attend.rope.kv_heads;
#ifdef WIDE
    const int clusters = kv_heads + SLICES / DOWN_SLICES, teams = gridDim.x / CLUSTER / clusters;
    const int most = (p.sequences + teams - 1) / teams;
    team = cluster / clusters, at = cluster % clusters;
    is_kv = at < kv_heads, at -= is_kv ? 0 : kv_heads;
    sequences.first = team * most;
    sequences.count = min(most, p.sequences - sequences.first);
    counts = keeps() && blockIdx.x % CLUSTER == 0;
#else
    const int teams = (gridDim.x / CLUSTER - SLICES) / kv_heads, its = cluster / kv_heads;
    const int most = (p.sequences + teams - 1) / teams;
    is_kv = its < teams, at = is_kv ? cluster % kv_heads : cluster - teams * kv_heads;
    sequences.first = is_kv ? its * most : 0;
    sequences.count = min(is_kv ? most : p.sequences, p.sequences - sequences.first);
    team = 0, counts = blockIdx.x == 0;
#endif
    each = CLUSTER / most;
  }
};

// What a block has in shared memory, before weights, keys and values.
struct Hub {
  u64 weights_there[2];             // of both products
  u64 x_there, raw_there, inner_there;
  u64 parts_there;                  // of a text's chunks, to be merged
  Seat seat;
  int first_row;                    // of the step that the cluster has
  u32 made;                         // layers before this run
  int kinds[2];                     // of the products
  int first_tile;                   // of gate and up, the cluster's first
  int before;                       // units of the second product before the cluster's first
  int units;                        // those that it has
  Range first;                      // tiles of the first product, counted in the cluster
  Range second;                     // tiles of the second product, and of the stream
  Range slices;                     // of the second product
  Near near;
  NearText text;
  bool fits;                        // what there is to be merged, into `merged_of`
  bool is_short;                    // and no part has two chunks
  int last_key0;                    // of this block's chunks
  int merger;                       // the first of those blocks, in the cluster
  int part, parts;                  // of the blocks that share a sequence
  bool attends;
  u32 own_pages[ROWS_MAX];
  u32 targets[ROWS];                // blocks that attend with each row, a bit each
  int lines[ROWS];                  // where they have it in `raw`, in values
  __align__(16) float squares[ROWS][SLICES];   // of the inputs
  Job jobs[JOBS_EACH];              // of the second product
  int packed[16];                 // where what a packed row attended stands in `inner`, in words
  int ends[16];                   // keys that it sees
  float2 turns[ROWS_MAX][WARP];     // of the rows that this block attends with
  float2 later[LATER];              // of the stream: see `later_of`
  Words x[UNITS_MAX * STEPS];       // the stream, rounded
  __align__(16) Halves inner[INNER_MAX * STEPS];   // what was attended, or gated
  __align__(16) float raw[RAW_HEADS * 64];   // of each row to attend with queries, a key, a value
#ifndef WIDE
  __align__(16) Partial partial[KV_TILES];
#endif
};

#ifdef WIDE
static_assert(sizeof(Hub) <= 54 << 10, "ops/layers.rs reckons with it");
#else
static_assert(sizeof(Hub) <= 44 << 10, "ops/layers.rs reckons with it");
#endif

// A number of which the compiler does not know that it is the same in each layer, so that what is
// reckoned from it is not kept in registers all through the loop, where they are scarce.
DEV u32 again(u32 number) {
#ifdef WIDE
  asm volatile("" : "+r"(number));
#endif
  return number;
}

// Rows that the cluster has of the step.
struct Here {
  int first;      // in the step: all others are counted from there
  u32 rows;       // a bit for each row that there is
  u32 mark;

  MEMBER bool has(int row) const { return rows >> row & 1; }
  // They are rounded up to 1 << row_bits().
  MEMBER int row_bits() const {
    const u32 mask = again(rows);
    const int few = mask < 2 ? 0 : mask < 4 ? 1 : mask < 16 ? 2 : 3;
    return BANDS == 2 && 255 < mask ? 4 : few;
  }
  // Whether there is one in a band.
  MEMBER bool has_band(int band) const { return band == 0 || again(rows) >> band * 8 != 0; }
  MEMBER void find_rows(const Layers& p, Range sequences) {
    rows = rows_of(p, sequences.first, sequences.count);
    first = max(__ffs(rows) - 1, 0), rows >>= first;
  }
};

// What is behind so many tiles of the first product's weights.
DEV uint4* behind_tiles(Hub& hub, int tiles, const Layers& p) {
  unsigned char* at = (unsigned char*)&hub + (sizeof(Hub) + 127) / 128 * 128;
  return (uint4*)(at + tiles * again(p.matrices[QKV].units) * UNIT_BYTES);
}
DEV uint4* weights_of(Hub& hub, int product, const Layers& p) {
  return behind_tiles(hub, product * (hub.seat.is_kv ? KV_TILES : FORWARD_TILES), p);
}
// Of a kv head's block.
DEV void* keys_of(Hub& hub, const Layers& p) {
  const int inner = max(again(p.attend.group), KV_TILES);
  return behind_tiles(hub, KV_TILES, p) + OWN_TILES * inner * (UNIT_BYTES / 16);
}

// Sums of the first product. Where there is no room for them they stand where its weights stood.
DEV Partial* partial_of(Hub& hub, const Layers& p) {
#ifdef WIDE
  return (Partial*)weights_of(hub, 0, p);
#else
  return hub.partial;
#endif
}

// Chunks of a text that wait to be merged, of each its rows: sums, their weight, their maximum.
DEV float* merged_of(Hub& hub, const Layers& p) { return (float*)((Keys*)keys_of(hub, p) + 1); }

// ---- from block to block

// Returns when all that is expected has arrived.
DEV void wait_for(u64* barrier, u32 parity) {
  u32 done = 0;
  int tries = 0;
  do {
    done = barrier_try(barrier, parity);
    count_try(tries);
  } while (!done);
}

// A word to where `at` is in a block of the cluster, and to its barrier.
DEV void send(const void* at, u32 word, const u64* barrier, u32 rank) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(
                   address_in(rank, at)),
               "r"(word), "r"(address_in(rank, barrier))
               : "memory");
}

// Two words, likewise.
DEV void send(const void* at, float2 pair, const u64* barrier, u32 rank) {
  const u64 words = (u64)__float_as_uint(pair.y) << 32 | __float_as_uint(pair.x);
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u64 [%0], %1, [%2];" ::"r"(
                   address_in(rank, at)),
               "l"(words), "r"(address_in(rank, barrier))
               : "memory");
}

// Four words, likewise.
DEV void send(const void* at, uint4 words, const u64* barrier, u32 rank) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address_in(rank, at)),
      "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w), "r"(address_in(rank, barrier))
      : "memory");
}

DEV u32* word_of(Words* words, int row, int column) {
  return &words[column / 16][row][column % 8 / 2 * 2 + column % 16 / 8];
}
DEV u32* word_of(Halves* words, int row, int column) {
  return &words[column / 16][column / 8 % 2][row * 4 + column % 8 / 2];
}

// What a lane takes of a step's inputs of a band, zeros of a row that is not there.
DEV uint2 words_at(const Words* words, int step, int band, bool has_row, int lane) {
  uint2 v = make_uint2(0, 0);
  if (has_row) v = *(const uint2*)&words[step][band * 8 + lane / 4][lane % 4 * 2];
  return v;
}
DEV uint2 words_at(const Halves* words, int step, int band, bool has_row, int lane) {
  uint2 v = make_uint2(0, 0);
  const u32* at = &words[step][0][band * WARP + lane];
  if (has_row) v.x = at[0], v.y = at[HALF];
  return v;
}

// A word to all blocks of the cluster, to each of them where `at` is.
DEV void send_to_all(const void* at, u32 word, const u64* barrier) {
#pragma unroll
  for (int i = 0; i < CLUSTER; ++i) send(at, word, barrier, i);
}

// Words of four lanes, side by side, to all blocks; `at`: where the first goes. A warp calls it.
DEV void send_four(const u32* at, u32 word, const u64* barrier, bool is_there) {
  const u32 first = again(threadIdx.x) % 4 * 2;
  uint4 words;
  words.x = __shfl_sync(FULL, word, 0, 4), words.y = __shfl_sync(FULL, word, 1, 4);
  words.z = __shfl_sync(FULL, word, 2, 4), words.w = __shfl_sync(FULL, word, 3, 4);
  if (!is_there) return;
#pragma unroll
  for (int i = 0; i < CLUSTER / 4; ++i) send(at, words, barrier, first + i);
}

// Values of eight lanes, side by side, rounded, to all blocks, one a lane; `at`: where the first
// goes. A warp calls it.
DEV void send_eight(const u32* at, float value, const u64* barrier, bool is_there) {
  const u32 word = pack_bf16(value, __shfl_down_sync(FULL, value, 1));
  uint4 words;
  words.x = __shfl_sync(FULL, word, 0, 8), words.y = __shfl_sync(FULL, word, 2, 8);
  words.z = __shfl_sync(FULL, word, 4, 8), words.w = __shfl_sync(FULL, word, 6, 8);
  if (is_there) send(at, words, barrier, again(threadIdx.x) % CLUSTER);
}

// Where the sums of all slices of a product in a layer stand, with their marks, from the first of
// the rows that they are of. Teams that share nothing have places of their own, and marks.
DEV uint2* sums_of(const Hub& hub, Product of, u32 mark, const Layers& p) {
  const int hidden = again(p.matrices[O].tiles) * 16;
#ifdef WIDE
  const int place = (hub.seat.team * 4 + of * 2 + mark % 2) * SLICES * ROWS;
#else
  const int place = (of * 2 + mark % 2) * SLICES * ROWS + hub.first_row;
#endif
  return p.sums + place * hidden;
}

// ---- weights

// Asks for a layer's weights of a product, once what stands there has been read.
DEV void bring(Hub& hub, int product, int index, const Layers& p) {
  const int me = again(threadIdx.x), lane = me % WARP;
  if (me / WARP != WARPS - 1 || p.layer_count <= index) return;
  const int kind = hub.kinds[product], group = p.attend.group;
  const int units = product == 0 ? p.matrices[kind].units : hub.units;
  const int before = product == 0 ? 0 : hub.before;
  const Range tiles = product == 0 ? hub.first : hub.second;
  const u32* from = p.layers[index].weights[kind];
  unsigned char* to = (unsigned char*)weights_of(hub, product, p);
  u64* const there = &hub.weights_there[product];
  if (lane == 0) barrier_expect(there, tiles.count * units * UNIT_BYTES);
  __syncwarp();
  for (int i = lane; i < tiles.count * units; i += WARP) {
    const int unit = before + i % units;
    int tile = tiles.first + i / units;
    if (kind == GATE_UP) tile += hub.first_tile;
    if (kind == QKV) {
      const int head = tile / 4;   // of the cluster
      const int kv_head = hub.seat.at, kv_heads = p.attend.rope.kv_heads;
      int its = kv_head * group + head;
      if (group <= head) its = p.attend.rope.heads + (head - group) * kv_heads + kv_head;
      tile = its * 4 + tile % 4;
    }
    copy_bulk(to + i * UNIT_BYTES, from + tile_place(tile, unit * STEPS, p.matrices[kind].units),
              UNIT_BYTES, there);
  }
}
#endif
