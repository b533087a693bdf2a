// All layers of a step for up to 8 rows, in one kernel: the memory never waits for the end of one.
//
// One block on each multiprocessor. A warp's share of the weights is a fixed sequence of units (16
// outputs x 64 inputs, 2 KiB), matrix after matrix, layer after layer: bulk copies bring them into
// its own ring in shared memory, which runs ahead while blocks wait for each other's results, since
// weights depend on nothing.
//
// Results go from block to block as words with a mark beside them, 8 bytes that arrive as one: who
// needs a word reads it until its mark is the layer's. So there is no barrier, no fence, and
// nothing is ever reset: marks count up from launch to launch. A result is written again only in
// the next layer, by a block that has read what depends on every block's having read it.
//
// The sums are those of `matmul_few` and `attend_chunk`, in the same order: the bits are equal.
#define THREAD_ANEW
#include "layers_attend.cuh"

#ifdef HOPPER

// ---- products

// Returns when the first words of inputs are there. A slice of many units is asked for by them, as
// long as they are not there: others need the memory.
DEV void wait_for(const Source& source, int& tries) {
  const int lane = threadIdx.x % WARP;
  const bool asks = source.has_row && lane < 4 << source.row_bits;
  bool is_there = !asks;
  uint4 first;
  do {
    if (asks) {
      load_marked(first, source.at + lane);
      is_there = first.y == source.mark && first.w == source.mark;
    }
    count_try(tries);
  } while (!__all_sync(FULL, is_there));
}

// The sums of this warp's jobs to `partial`; with a norm, squares of the inputs too. Its jobs have
// the same inputs, so they are asked for round and round.
DEV void multiply(Ring& ring, Fixed& fixed, int turn, int kind, Source source, const Layers& p) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const Share share = fixed.shares[kind][warp];
  if (share.end <= share.tile) return;
  const int slices = p.matrices[kind].slices, stride = 4 << source.row_bits;
  source.at += share.start * (STEPS * WARP);
  source.count = share.count;
  const int groups = source.groups();
  auto after = [&](int group) { return group + 1 == groups ? 0 : group + 1; };
  int job = warp;   // (tile, slice) of the block, counted through
  int tries = 0, group = 0;
  uint4 a[STEPS];
  Inputs x = {}, next[2] = {};
  if (1 < groups) wait_for(source, tries);
  source.ask(next[0], 0), source.ask(next[1], after(0));
  ring.take(a);
  for (int tile = share.tile; tile < share.end; tile += share.step, job += WARPS) {
    const bool squared = has_norm(kind) && job < slices;
    float sums[4] = {}, squares[STEPS] = {};
    int here = 0, from = 0;   // units that are left of x; the lane that has this one's words
#pragma unroll 1
    for (int unit = 0; unit < share.count; ++unit) {
      if (here == 0) {
        bool was_there = true;
        while (!source.is_there(next[0], group)) {
          count_try(tries);
          source.ask(next[0], group);
          was_there = false;
        }
        x = next[0];
        if (was_there) next[0] = next[1];
        group = after(group);
        if (!was_there) source.ask(next[0], group);
        source.ask(next[1], after(group));
        here = source.units_at_once(), from = lane % stride;
      }
      uint4 b[STEPS];
      const bool is_last = unit + 1 == share.count && share.end <= tile + share.step;
      if (!is_last) ring.take(b);
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        u32 low = __shfl_sync(FULL, x.steps[step].x, from);
        u32 high = __shfl_sync(FULL, x.steps[step].z, from);
        if (stride <= lane) low = 0, high = 0;
        if (squared) squares[step] = add_squares(squares[step], low, high);
        const u32 words[4] = {a[step].x, a[step].y, a[step].z, a[step].w};
        mma(sums, words, low, high);
      }
      ring.give_back(p);
      from += stride, --here;
#pragma unroll
      for (int step = 0; step < STEPS; ++step) a[step] = b[step];
    }
    fixed.partial[turn][job][lane] = *(float4*)sums;
    if (squared) {
      const float sum = sum_of_four(sum_of_steps(squares[0], squares[1], squares[2], squares[3]));
      if (lane % 4 == 0) fixed.squares[turn][job][lane / 4] = sum;
    }
  }
}

// A finished tile: outputs lane / 4 and 8 on, of rows lane % 4 * 2 and the next, as in `store`.
DEV float4 finished(const Fixed& fixed, int turn, int tile, int kind, const Layers& p) {
  const Sized of = p.matrices[kind];
  const int lane = threadIdx.x % WARP;
  float4 parts[SLICES_MAX];
  float2 squares[SLICES_MAX];
#pragma unroll
  for (int slice = 0; slice < SLICES_MAX; ++slice) {
    if (of.slices <= slice) break;
    parts[slice] = fixed.partial[turn][tile * of.slices + slice][lane];
    squares[slice] = *(const float2*)&fixed.squares[turn][slice][lane % 4 * 2];
  }
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float2 square = make_float2(0.0f, 0.0f);
#pragma unroll
  for (int slice = 0; slice < SLICES_MAX; ++slice) {
    if (of.slices <= slice) break;
    add(sum, parts[slice]);
    square.x = __fadd_rn(square.x, squares[slice].x);
    square.y = __fadd_rn(square.y, squares[slice].y);
  }
  if (has_norm(kind)) {
    const float x = norm_scale(square.x, of.units * 64, p.eps);
    const float y = norm_scale(square.y, of.units * 64, p.eps);
    sum.x = __fmul_rn(sum.x, x), sum.y = __fmul_rn(sum.y, y);
    sum.z = __fmul_rn(sum.z, x), sum.w = __fmul_rn(sum.w, y);
  }
  return sum;
}

// Neighbouring outputs of one row, rounded, from lanes that hold one output of two rows each. Where
// they belong: row `row_of_pair`, outputs `lane / 8 * 2` and the next.
DEV u32 paired(float first, float second) {
  const bool is_odd = threadIdx.x / 4 % 2;
  const float other = __shfl_xor_sync(FULL, is_odd ? first : second, 4);
  return is_odd ? pack_bf16(other, second) : pack_bf16(first, other);
}
DEV int row_of_pair() { return threadIdx.x % 4 * 2 + threadIdx.x / 4 % 2; }

// What every end of a product needs.
struct Here {
  u32 rows;       // a bit for each row that there is
  u32 mark;
  int turn;

  MEMBER bool has(int row) const { return rows >> row & 1; }
};

DEV void finish_qkv(const Fixed& fixed, const Here& here, const Layers& p) {
  const Sized of = p.matrices[QKV];
  const int lane = threadIdx.x % WARP, outputs = of.tiles * 16;
  const auto [first, count] = fixed.ranges[QKV];
  for (int i = threadIdx.x / WARP; i < count; i += WARPS) {
    const float4 sum = finished(fixed, here.turn, i, QKV, p);
    const int row = lane % 4 * 2;
    uint2* at = p.qkv + (size_t)row * outputs + (first + i) * 16 + lane / 4;
    if (here.has(row)) {
      store_marked(at, __float_as_uint(sum.x), here.mark);
      store_marked(at + 8, __float_as_uint(sum.z), here.mark);
    }
    if (here.has(row + 1)) {
      store_marked(at + outputs, __float_as_uint(sum.y), here.mark);
      store_marked(at + outputs + 8, __float_as_uint(sum.w), here.mark);
    }
  }
}

DEV void finish_gated(const Fixed& fixed, const Here& here, const Layers& p) {
  const auto [first, count] = fixed.ranges[GATE_UP];
  for (int i = threadIdx.x / WARP; i < count; i += WARPS) {
    const float4 sum = finished(fixed, here.turn, i, GATE_UP, p);
    const u32 word = paired(gated(sum.x, sum.z), gated(sum.y, sum.w));
    const int row = row_of_pair(), column = (first + i) * 8 + threadIdx.x % WARP / 8 * 2;
    if (here.has(row)) store_marked(word_place(p.inputs[DOWN], row, column), word, here.mark);
  }
}

// Adds to the stream, of which a warp has its tile in registers; to the next product's inputs, or
// out of the kernel.
DEV void finish_residual(float4& stream, int kind, const Fixed& fixed, const Here& here,
                         u32 next_mark, int captured_at, bool is_last, const Layers& p) {
  const int lane = threadIdx.x % WARP, i = threadIdx.x / WARP;
  const auto [first, count] = fixed.ranges[kind];
  if (count <= i) return;
  const int tile = first + i, outputs = p.matrices[kind].tiles * 16;
  float4 sum = stream;
  add(sum, finished(fixed, here.turn, i, kind, p));
  stream = sum;
  const u32 low = paired(sum.x, sum.y), high = paired(sum.z, sum.w);
  const int row = row_of_pair(), column = lane / 8 * 2;
  if (here.has(row)) {
    if (!is_last) {
      uint4* next = p.inputs[kind == O ? GATE_UP : QKV];
      store_marked(next + tile * WARP + row * 4 + column / 2, low, high, next_mark);
    } else {
      u32* at = (u32*)(p.rounded + block_place(row, tile * 16 + column, 1));
      at[0] = low, at[32] = high;
    }
    if (0 <= captured_at) {
      const int to = captured_at + tile * 16 + column;
      *(u32*)(p.captured + block_place(row, to, 1)) = low;
      *(u32*)(p.captured + block_place(row, to + 8, 1)) = high;
    }
  }
  if (!is_last) return;
  float* at = p.stream + (size_t)(lane % 4 * 2) * outputs + tile * 16 + lane / 4;
  if (here.has(lane % 4 * 2)) at[0] = sum.x, at[8] = sum.z;
  at += outputs;
  if (here.has(lane % 4 * 2 + 1)) at[0] = sum.y, at[8] = sum.w;
}

// ---- all of it

// The rounded stream that enters, to words with marks; a share of it by each block.
DEV void mark_entering(const Here& here, u32 mark, const Layers& p) {
  const int all = p.matrices[QKV].units * STEPS * WARP, lane = threadIdx.x % WARP;
  if (!here.has(lane / 4)) return;
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < all; i += gridDim.x * THREADS) {
    const u32* from = (const u32*)p.rounded + i / WARP * 64 + lane;
    store_marked(p.inputs[QKV] + i, from[0], from[32], mark);
  }
}

// This warp's tile of the stream that enters, as `finished` has one.
DEV float4 entering_stream(const Fixed& fixed, const Here& here, const Layers& p) {
  const int lane = threadIdx.x % WARP, row = lane % 4 * 2, outputs = p.matrices[O].tiles * 16;
  const auto [first, count] = fixed.ranges[O];
  const int tile = first + (int)threadIdx.x / WARP;
  float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (first + count <= tile) return v;
  const float* at = p.stream + (size_t)row * outputs + tile * 16 + lane / 4;
  if (here.has(row)) v.x = at[0], v.z = at[8];
  if (here.has(row + 1)) v.y = at[outputs], v.w = at[outputs + 8];
  return v;
}

// This warp's ring, in its part of what is between `rest` and `end`, and its first copies.
DEV void start_ring(Ring& ring, Fixed& fixed, unsigned char* rest, unsigned char* end,
                    const Layers& p) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int room = (end - rest) / (WARPS * UNIT_BYTES);
  ring.count = min(room, SLOTS_MAX);
  ring.slots = rest + warp * ring.count * UNIT_BYTES;
  ring.full = fixed.full[warp];
  ring.shares = &fixed.shares[0][warp];
  find_shares(fixed, p);
  if (lane == 0) {
    for (int slot = 0; slot < ring.count; ++slot) barrier_init(&ring.full[slot], 1);
    barrier_fence();
  }
  __syncthreads();
  ring.at = 0, ring.back = 0, ring.parity = 0;
  if (lane == 0) ring.begin(p);
}

// grid: multiprocessors, all at once; block: 256; shared: `shared_bytes`.
template <int HEAD, int TILES>
DEV void layers(const Layers& p) {
  extern __shared__ __align__(128) unsigned char memory[];
  Fixed& fixed = *(Fixed*)memory;
  unsigned char* rest = memory + (sizeof(Fixed) + 127) / 128 * 128;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  Attending& kept = *(Attending*)rest;
  typedef Shared<HEAD, TILES> Keys;
  unsigned char* const keys = rest + (sizeof(Attending) + 127) / 128 * 128;
  Keys& s = *(Keys*)keys;
  bool attends;
  {
    Attending found;
    attends = find_part<HEAD, TILES>(found, p);
    if (attends) {
      rest = (unsigned char*)(&s + 1);
      clear_queries<HEAD, TILES, WARPS>(s.q, found.p, found.text);
      if (warp == 0 && lane == 0) kept = found;
      if (warp == 0 && lane < ROWS_MAX) fixed.own_pages[lane] = found.text.own_page;
    }
  }
  Ring ring;
  start_ring(ring, fixed, rest, memory + p.shared_bytes, p);
  const u32 made = p.counts[blockIdx.x];
  Here here;
  here.rows = rows_of(p, 0, p.sequences), here.turn = 0;
  const int row_bits = here.rows < 2 ? 0 : here.rows < 4 ? 1 : here.rows < 16 ? 2 : 3;
  mark_entering(here, made + 1, p);
  float4 residual = entering_stream(fixed, here, p);
  for (int index = 0; index < p.layer_count; ++index) {
    const bool is_last = index + 1 == p.layer_count;
    here.mark = made + index + 1;
    Source source;
    source.mark = here.mark, source.row_bits = row_bits;
    source.has_row = here.has(lane / 4 & ((1 << row_bits) - 1));
    const Layer& layer = p.layers[index];
    const u64 pages_before = index * p.layer_values;
    // One loop, so that the code stands there once.
#pragma unroll 1
    for (int kind = 0; kind < KINDS; ++kind) {
      // Keys and values of a layer are asked for while the one before it ends.
      const bool is_ahead = kind == GATE_UP;
      if (attends && (is_ahead ? !is_last : index + kind == 0)) {
        const u64 before = pages_before + is_ahead * p.layer_values;
        Keys& next = *(Keys*)(keys + unknown_zero());
        ask_for_keys(next, kept.p, kept.text, kept.kv_head, kept.part, before);
      }
      here.turn ^= 1;
      source.at = p.inputs[kind];
      multiply(ring, fixed, here.turn, kind, source, p);
      __syncthreads();
      if (kind == QKV) {
        finish_qkv(fixed, here, p);
        bring_near(fixed.shares[GATE_UP][warp], layer, p);
        if (attends) {
          Keys& now = *(Keys*)(keys + unknown_zero());
          attend(now, kept, fixed.own_pages, layer, pages_before, here.mark);
        }
      } else if (kind == GATE_UP) {
        finish_gated(fixed, here, p);
      } else {
        const bool is_down = kind == DOWN;
        const int captured_at = is_down ? layer.captured_at : -1;
        const u32 mark = here.mark + is_down;
        finish_residual(residual, kind, fixed, here, mark, captured_at, is_down && is_last, p);
      }
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) p.counts[blockIdx.x] = made + p.layer_count;
}

#define LAYERS(head, tiles)                                                              \
  KERNEL __launch_bounds__(THREADS, 1) layers_##head##_##tiles(const Layers p) {         \
    layers<head, tiles>(p);                                                              \
  }
#else
#define LAYERS(head, tiles) \
  KERNEL layers_##head##_##tiles(const Layers p) {}
#endif

LAYERS(64, 1)
LAYERS(64, 2)
LAYERS(128, 1)
LAYERS(128, 2)
