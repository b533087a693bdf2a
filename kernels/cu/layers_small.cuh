// What the blocks of `layers_small.cu` share: who has what, what stands in shared memory, and how
// it gets there.
#pragma once
#include "layers_attend.cuh"

#define CLUSTER 8        // blocks
#define SLICES 8         // of each matrix, one a warp
#define ROWS 8
#define TILES_EACH 3     // of a cluster's first product that a block has, at most
#define OWN_TILES 5      // of the stream that a block has, at most
#define OWN_PAIRS (OWN_TILES * 8)
#define OWN_EACH ((ROWS * OWN_PAIRS + THREADS - 1) / THREADS)
#define UNITS_MAX 10     // of the stream
#define INNER_MAX 4      // units between a cluster's products
#define LINE 66          // values of a row of a chunk that waits to be merged
#define LINE_BYTES (LINE * 4)
#define SECONDS (ROWS * OWN_PAIRS - THREADS)
#define JOBS_EACH (OWN_TILES * SLICES)
#define PARTIAL (SLICES * 16 + 4)   // values of a row of a tile, apart from the next one's banks

enum Product { OF_O, OF_DOWN };

#ifdef HOPPER

typedef Shared<64, 1> Keys;
typedef u32 Words[ROWS][8];   // 16 inputs of each row, in pairs: those a lane takes side by side

// A block's attention: what comes from the blocks of its cluster, and what goes to them.
struct Near : Attend {
  const float* raw;
  const float2* turns;
  Words* inner;
  const u64* inner_there;
  int kv_head;
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
  int at;             // the head, or the slice
  Range sequences;
  int each;           // blocks that there are for a sequence

  // Whether its stream is kept behind the layers: one cluster for each row.
  MEMBER bool keeps() const { return is_kv && at == 0; }

  MEMBER void find(const Layers& p) {
    const int cluster = blockIdx.x / CLUSTER, kv_heads = p.attend.rope.kv_heads;
    const int teams = (gridDim.x / CLUSTER - SLICES) / kv_heads, team = cluster / kv_heads;
    const int most = (p.sequences + teams - 1) / teams;
    is_kv = team < teams, at = is_kv ? cluster % kv_heads : cluster - teams * kv_heads;
    sequences.first = is_kv ? team * most : 0;
    sequences.count = min(is_kv ? most : p.sequences, p.sequences - sequences.first);
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
  bool is_short;                    // no part has two chunks, and they fit `merged_of`
  int merger;                       // the first of those blocks, in the cluster
  int part, parts;                  // of the blocks that share a sequence
  bool attends;
  u32 own_pages[ROWS_MAX];
  u32 targets[ROWS];                // blocks that attend with each row, a bit each
  __align__(16) float squares[ROWS][SLICES];   // of the inputs
  Job jobs[JOBS_EACH];              // of the second product
  int packed[16];                 // where what a packed row attended stands in `inner`, in words
  int ends[16];                   // keys that it sees
  float2 turns[ROWS][WARP];
  float2 seconds[SECONDS];        // of the stream: see `second_of`
  Words x[UNITS_MAX * STEPS];       // the stream, rounded
  Words inner[INNER_MAX * STEPS];   // what was attended, or gated
  __align__(16) float raw[ROWS * (INNER_MAX + 2) * 64];   // queries, a key and a value of each row
  __align__(16) float partial[TILES_EACH][ROWS][PARTIAL];
};

static_assert(sizeof(Hub) <= 44 << 10, "ops/layers.rs reckons with it");

// A number of which the compiler does not know that it is the same in each layer, so that what is
// reckoned from it is not kept in registers all through the loop.
DEV u32 again(u32 number) {
  asm volatile("" : "+r"(number));
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
    return mask < 2 ? 0 : mask < 4 ? 1 : mask < 16 ? 2 : 3;
  }
  MEMBER void find_rows(const Layers& p, Range sequences) {
    rows = rows_of(p, sequences.first, sequences.count);
    first = max(__ffs(rows) - 1, 0), rows >>= first;
  }
};

DEV uint4* weights_of(Hub& hub, int product, const Layers& p) {
  unsigned char* at = (unsigned char*)&hub + (sizeof(Hub) + 127) / 128 * 128;
  return (uint4*)(at + product * TILES_EACH * again(p.matrices[QKV].units) * UNIT_BYTES);
}
DEV void* keys_of(Hub& hub, const Layers& p) {
  const int inner = max(again(p.attend.group), TILES_EACH);
  return weights_of(hub, 1, p) + OWN_TILES * inner * (UNIT_BYTES / 16);
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

DEV u32* word_of(Words* words, int row, int column) {
  return &words[column / 16][row][column % 8 / 2 * 2 + column % 16 / 8];
}

// What a lane takes of a step's inputs, zeros of a row that is not there.
DEV uint2 words_at(const Words* words, int step, bool has_row, int lane) {
  uint2 v = make_uint2(0, 0);
  if (has_row) v = *(const uint2*)&words[step][lane / 4][lane % 4 * 2];
  return v;
}

// A word to all blocks of the cluster, to each of them where `at` is.
DEV void send_to_all(const void* at, u32 word, const u64* barrier) {
#pragma unroll
  for (int i = 0; i < CLUSTER; ++i) send(at, word, barrier, i);
}

// Values of two lanes, neighbours, rounded, to all blocks of the cluster. A warp calls it.
DEV void send_pair(Words* words, const u64* barrier, int row, int column, float value,
                   bool is_there) {
  const bool is_odd = threadIdx.x % 2;
  const float other = __shfl_xor_sync(FULL, value, 1);
  const u32 word = is_odd ? pack_bf16(other, value) : pack_bf16(value, other);
  if (!is_there) return;
#pragma unroll
  for (int i = 0; i < CLUSTER / 2; ++i) {
    send(word_of(words, row, column), word, barrier, is_odd * (CLUSTER / 2) + i);
  }
}

// Where the sums of all slices of a product in a layer stand, with their marks.
DEV uint2* sums_of(const Layers& p, Product of, u32 mark) {
  return p.sums + (of * 2 + mark % 2) * (SLICES * ROWS * 16) * again(p.matrices[O].tiles);
}

// ---- who has what

DEV int slices_before(int unit, int units) {
  int slices = 0;
  while (slices < SLICES && slice_start(slices, SLICES, units) < unit) ++slices;
  return slices;
}

// What a block has of the products: a warp finds it.
DEV void find_products(Hub& hub, const Seat& seat, const Layers& p) {
  const bool is_kv = seat.is_kv;
  const int rank = blockIdx.x % CLUSTER, group = p.attend.group;
  const int kinds[2] = {is_kv ? QKV : GATE_UP, is_kv ? O : DOWN};
  const int units = p.matrices[kinds[1]].units, stream_tiles = p.matrices[O].tiles;
  Range slices = {seat.at, 1}, second;
  int before = seat.at * group, end = before + group, tiles = (group + 2) * 4;
  if (is_kv) {
    slices.first = slices_before(before, units);
    slices.count = slices_before(end, units) - slices.first;
  } else {
    before = slice_start(slices.first, SLICES, units);
    end = slice_start(slices.first + 1, SLICES, units);
    tiles = (end - before) * 8;
  }
  second.first = stream_tiles * rank / CLUSTER;
  second.count = stream_tiles * (rank + 1) / CLUSTER - second.first;
  for (int i = threadIdx.x % WARP; i < second.count * slices.count; i += WARP) {
    const int slice = slices.first + i % slices.count, start = slice_start(slice, SLICES, units);
    Job& job = hub.jobs[i];
    job.inputs = start - before;
    job.weights = i / slices.count * (end - before) + job.inputs;
    job.units = slice_start(slice + 1, SLICES, units) - start;
    job.sums = (slice * ROWS * stream_tiles + second.first + i / slices.count) * 16;
  }
  if (threadIdx.x % WARP == 0) {
    hub.seat = seat, hub.kinds[0] = kinds[0], hub.kinds[1] = kinds[1];
    hub.first_tile = before * 8, hub.before = before, hub.units = end - before;
    hub.first.first = tiles * rank / CLUSTER;
    hub.first.count = tiles * (rank + 1) / CLUSTER - hub.first.first;
    hub.second = second, hub.slices = slices;
    barrier_init(&hub.weights_there[0], 1), barrier_init(&hub.weights_there[1], 1);
    barrier_init(&hub.x_there, 1), barrier_init(&hub.raw_there, 1);
    barrier_init(&hub.inner_there, 1), barrier_init(&hub.parts_there, 1);
    barrier_fence();
  }
  __syncwarp();
}

// Blocks of a cluster that attend with a sequence, of `each` that there are for it.
DEV int parts_of(int chunks, int each) { return max(min(each, chunks), 1); }

// Which blocks attend with which row: a lane finds it for its sequence.
DEV void find_targets(Hub& hub, const Seat& seat, const Here& here, const Layers& p) {
  const int sequence = threadIdx.x, each = seat.each;
  if (seat.sequences.count <= sequence) return;
  const uint2 span = p.attend.spans[seat.sequences.first + sequence];
  int rows = 0;
  for (int i = 0; i < span.y; ++i) rows += 0 <= p.attend.rope.positions[span.x + i];
  const int start = max(p.attend.rope.positions[span.x], 0);
  const int parts = parts_of((start + rows + CHUNK - 1) / CHUNK, each);
  const u32 blocks = ((1u << parts) - 1) << sequence * each;
  for (int i = 0; i < span.y; ++i) hub.targets[span.x - here.first + i] = blocks;
}

DEV void find_place(Hub& hub, const Seat& seat, const Here& here, const Layers& p) {
  const int rank = blockIdx.x % CLUSTER, each = seat.each, kv_heads = p.attend.rope.kv_heads;
  const int within = min(rank / each, seat.sequences.count - 1);
  const int sequence = seat.sequences.first + within;
  Near near;
  (Attend&)near = p.attend;
  near.spans += sequence, near.arrivals += sequence * kv_heads;
  near.parts += (size_t)sequence * kv_heads * near.chunks_max * 16 * (64 + 2);
  near.raw = hub.raw, near.turns = hub.turns[0], near.inner = hub.inner;
  near.inner_there = &hub.inner_there, near.kv_head = seat.at;
  Text text = find_text(near);
  text.span.x -= here.first;
  if (WARP <= threadIdx.x) return;
  if (seat.is_kv) find_targets(hub, seat, here, p);
  if (threadIdx.x < ROWS_MAX) hub.own_pages[threadIdx.x] = text.own_page;
  for (int i = 0; i < text.rows; ++i) {
    const int place = max(text.start + i - p.attend.rope.behind, 0);
    hub.turns[text.span.x + i][threadIdx.x] = p.attend.rope.turns[place * WARP + threadIdx.x];
  }
  for (int i = threadIdx.x; i < 16; i += WARP) {
    const int row = i / p.attend.group;
    const int line = i % p.attend.group * STEPS * ROWS + text.span.x + row;
    hub.packed[i] = line * 8, hub.ends[i] = text.end_of(i, p.attend.group);
  }
  if (threadIdx.x != 0) return;
  hub.first_row = here.first, hub.made = *p.counts;
  hub.near = near, (Text&)hub.text = text, hub.text.ends = hub.ends;
  hub.part = rank - within * each, hub.parts = parts_of(text.chunks, each);
  hub.merger = within * each;
  const int room = p.shared_bytes - (int)((unsigned char*)merged_of(hub, p) - (unsigned char*)&hub);
  const int lines = hub.parts * text.span.y * p.attend.group;
  hub.is_short = text.chunks == hub.parts && (hub.parts == 1 || lines * LINE_BYTES <= room);
  hub.attends = seat.is_kv && hub.part < hub.parts && 0 < text.span.y;
}

// Says what will arrive in the next layer.
DEV void expect(Hub& hub, const Here& here, const Layers& p) {
  const int rows = __popc(here.rows);
  barrier_expect(&hub.x_there, rows * p.matrices[QKV].units * 128);
  barrier_expect(&hub.inner_there, rows * hub.units * 128);
  if (!hub.attends) return;
  barrier_expect(&hub.raw_there, hub.text.span.y * (p.attend.group + 2) * 256);
  if (hub.part != 0 || hub.parts == 1 || !hub.is_short) return;
  barrier_expect(&hub.parts_there, hub.parts * hub.text.span.y * p.attend.group * LINE_BYTES);
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
