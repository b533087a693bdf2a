// What the blocks of `layers.cu` share: arguments, who computes what, the ring that weights come
// through, and the words that blocks hand each other.
#pragma once
#include "attend_chunk.cuh"
#include "matmul.cuh"
#include "wgmma.cuh"

#define STEPS 4          // of a unit
#define UNIT_BYTES 2048
#define UNIT_STRIDE 16384   // from a unit of a tile to the next
#define SLOTS_MAX 13     // of a warp's ring
#define JOBS_MAX 16      // (tile, slice) of one matrix that a block has
#define SLICES_MAX 8     // of any matrix
#define TRIES_MAX (1 << 23)   // for a mark: then a block is lost, and the program stops

enum Kind { QKV, O, GATE_UP, DOWN, KINDS };

// What a layer has; `ops/layers.rs` has the twins of these three.
struct Layer {
  const u32* weights[KINDS];
  const float* bias;
  const float* q_norm;
  const float* k_norm;
  int captured_at;   // first column where the stream behind it is kept, negative: it is not
  int padding;
};
struct Sized {
  int units, tiles, slices;
};
struct Layers {
  Attend attend;           // of the first layer
  const Layer* layers;
  u32* counts;             // layers that each block has made so far, or all: their marks
  uint4* inputs[KINDS];    // of each matrix, (unit, step, lane of `mma`): word, mark, word, mark
  uint2* qkv;              // (rows, outputs): value, mark
  uint2* sums;             // of layers_small: (o or down, turn, slice, row, hidden): value, mark
  float* stream;           // (rows, hidden), read and written
  bf16* rounded;           // in blocks, read and written
  bf16* captured;          // in blocks
  u64 layer_values;        // of the pages
  Sized matrices[KINDS];
  int layer_count;
  int sequences;
  int parts;               // blocks that may share a sequence and kv head
  int shared_bytes;
  float eps;
  int less;                // tiles of gate and up that a block which attends has less than others
  int near;                // units of a tile that are brought near while all attend
  int padding;
};

#ifdef HOPPER

// What a warp does of a matrix: tiles `tile`, `tile + step`, ... of those below `end`, of each the
// units `start..start + count`.
struct Share {
  int tile, end, step, start, count;
};

// The tiles of a matrix that a block has.
struct Range {
  int first, count;
};

struct Fixed {
  Range ranges[KINDS];
  u32 own_pages[ROWS_MAX];         // of the rows that this block attends with
  float4 partial[2][JOBS_MAX][WARP];
  float squares[2][8][8];          // of each slice and row
  Share shares[KINDS][WARPS];
  u64 full[WARPS][SLOTS_MAX];
};

DEV bool has_norm(int kind) { return kind == QKV || kind == GATE_UP; }

// Blocks that attend are the last ones. Of the largest matrix they have a tile less, which is about
// what attention takes.
DEV int first_tile(int kind, int block, const Layers& p) {
  const int tiles = p.matrices[kind].tiles, blocks = gridDim.x;
  const int less = kind == GATE_UP ? p.less : 0;
  const int attend = min(p.sequences * p.attend.rope.kv_heads, blocks);
  return (tiles + attend * less) * block / blocks - less * max(block - (blocks - attend), 0);
}

DEV void find_shares(Fixed& fixed, const Layers& p) {
  if (KINDS * WARPS <= threadIdx.x) return;
  const int kind = threadIdx.x / WARPS, warp = threadIdx.x % WARPS;
  const Sized of = p.matrices[kind];
  const int slice = warp % of.slices, first = first_tile(kind, blockIdx.x, p);
  Share share;
  share.tile = first + warp / of.slices;
  share.end = first_tile(kind, blockIdx.x + 1, p);
  share.step = WARPS / of.slices;
  share.start = slice_start(slice, of.slices, of.units);
  share.count = slice_start(slice + 1, of.slices, of.units) - share.start;
  fixed.shares[kind][warp] = share;
  if (warp == 0) fixed.ranges[kind].first = first, fixed.ranges[kind].count = share.end - first;
}

// Rows that some of `count` sequences have, a bit each: what is computed. Each warp finds them by
// itself.
DEV u32 rows_of(const Layers& p, int first, int count) {
  const int lane = threadIdx.x % WARP;
  u32 rows = 0;
  if (lane < count) {
    const uint2 span = p.attend.spans[first + lane];
    rows = ((1u << span.y) - 1) << span.x;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) rows |= __shfl_xor_sync(FULL, rows, step);
  return rows;
}

// ---- weights

// A warp's ring of units, and, in its first lane, what is asked for next.
struct Ring {
  unsigned char* slots;
  u64* full;
  int count, at, back;
  u32 parity;
  const Share* shares;   // of the warp; the next matrix's is WARPS on
  const Layer* layer;
  int layers_left, kind, tile, left;
  const unsigned char* from;
  u64 once;              // how long the L2 cache keeps them

  // The job at hand, or the next one that there is.
  MEMBER void find_job(const Layers& p) {
    while (0 < layers_left) {
      const Share share = shares[kind * WARPS];
      if (tile < share.end && 0 < share.count) {
        const size_t place = tile_place(tile, share.start * STEPS, p.matrices[kind].units);
        from = (const unsigned char*)(layer->weights[kind] + place);
        left = share.count;
        return;
      }
      if (++kind == KINDS) kind = 0, ++layer, --layers_left;
      tile = shares[kind * WARPS].tile;
    }
  }

  MEMBER void ask(int slot, const Layers& p) {
    if (layers_left <= 0) return;
    barrier_expect(&full[slot], UNIT_BYTES);
    copy_bulk(slots + slot * UNIT_BYTES, from, UNIT_BYTES, &full[slot], once);
    from += UNIT_STRIDE;
    if (--left == 0) {
      tile += shares[kind * WARPS].step;
      find_job(p);
    }
  }

  MEMBER void begin(const Layers& p) {
    layer = p.layers, layers_left = p.layer_count, kind = 0, tile = shares[0].tile, left = 0;
    once = read_once();
    find_job(p);
    for (int slot = 0; slot < count; ++slot) ask(slot, p);
  }

  // The next unit, to registers.
  MEMBER void take(uint4 (&a)[STEPS]) {
    barrier_wait(&full[at], parity);
    const uint4* unit = (const uint4*)(slots + at * UNIT_BYTES);
#pragma unroll
    for (int i = 0; i < STEPS; ++i) a[i] = unit[i * WARP + threadIdx.x % WARP];
    if (++at == count) at = 0, parity ^= 1;
  }

  // Fills the slot of the oldest unit that was taken. To be called after the tensor cores were
  // given it: reading a slot may wait behind other loads for longer than a copy takes.
  MEMBER void give_back(const Layers& p) {
    __syncwarp();
    if (threadIdx.x % WARP == 0) ask(back, p);
    if (++back == count) back = 0;
  }
};

// What a warp will read of gate and up first, to the L2 cache: memory is busy while all wait for
// attention, for longer than rings take to fill.
DEV void bring_near(const Share& share, const Layer& layer, const Layers& p) {
  const int unit = threadIdx.x % WARP;
  if (share.end <= share.tile || min(share.count, p.near) <= unit) return;
  const int units = p.matrices[GATE_UP].units;
  const size_t place = tile_place(share.tile, (share.start + unit) * STEPS, units);
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(layer.weights[GATE_UP] + place),
               "r"(UNIT_BYTES) : "memory");
}

// ---- words with marks

DEV void load_marked(uint4& v, const uint4* at) {
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
}
DEV void load_marked(uint2& v, const uint2* at) {
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y) : "l"(at));
}
DEV void store_marked(uint4* at, u32 low, u32 high, u32 mark) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(at), "r"(low),
               "r"(mark), "r"(high) : "memory");
}
DEV void store_marked(uint2* at, u32 word, u32 mark) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(word), "r"(mark)
               : "memory");
}
DEV void count_try(int& tries) {
  if (TRIES_MAX < ++tries) asm volatile("trap;");
}

// Where the words of inputs `column` and the next of a row stand, with their mark.
DEV uint2* word_place(uint4* inputs, int row, int column) {
  return (uint2*)(inputs + column / 16 * WARP + row * 4 + column % 8 / 2) + column % 16 / 8;
}

// What a lane holds of the inputs of a few units: 8 units of one row, 4 of two, 2 of four, or one
// of eight; for each step the words of one unit and row.
struct Inputs {
  uint4 steps[STEPS];
};

// The inputs of a product as a warp reads them. `row_bits`: rows of a unit are rounded up to
// 1 << row_bits.
struct Source {
  const uint4* at;   // of the slice's first unit
  int count;         // units
  int row_bits;
  u32 mark;
  bool has_row;      // of those that a lane asks for

  MEMBER int units_at_once() const { return 8 >> row_bits; }
  MEMBER int groups() const {
    return (count + units_at_once() - 1) >> (3 - row_bits);
  }
  MEMBER void ask(Inputs& x, int group) const {
    const int lane = threadIdx.x % WARP, place = lane & ((4 << row_bits) - 1);
    const int unit = group * units_at_once() + (lane >> (2 + row_bits));
    if (!has_row || count <= unit) return;
#pragma unroll
    for (int i = 0; i < STEPS; ++i) load_marked(x.steps[i], at + (unit * STEPS + i) * WARP + place);
  }
  // Whether all of group `group` that was asked for is there.
  MEMBER bool is_there(const Inputs& x, int group) const {
    const int lane = threadIdx.x % WARP;
    const int unit = group * units_at_once() + (lane >> (2 + row_bits));
    u32 off = 0;
#pragma unroll
    for (int i = 0; i < STEPS; ++i) off |= (x.steps[i].y ^ mark) | (x.steps[i].w ^ mark);
    return __all_sync(FULL, !has_row || count <= unit || off == 0);
  }
};
#endif
