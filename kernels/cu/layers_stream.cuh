// The residual stream inside `layers_small.cu`: each cluster has one, each of its blocks an eighth.
#pragma once
#include "layers_small.cuh"

#ifdef HOPPER

#define NO_PLACE 0xffffu

// Two values of the stream, side by side.
struct Place {
  u32 place;   // row and column, 4 and 12 bits

  MEMBER bool is_there() const { return place != NO_PLACE; }
  MEMBER int row() const { return place >> 12; }
  MEMBER int column() const { return place & 0xfff; }
};

// A thread's places in the block's eighth. The values of the first are in registers.
struct Own {
  u32 places[(OWN_EACH + 1) / 2];   // 16 bits each

  MEMBER Own(const Hub& hub, const Here& here) : places() {
#pragma unroll
    for (int k = 0; k < OWN_EACH; ++k) {
      const int i = k * THREADS + threadIdx.x, row = i / OWN_PAIRS, within = i % OWN_PAIRS * 2;
      const bool is_there = within < hub.second.count * 16 && here.has(row);
      const u32 place = row << 12 | (hub.second.first * 16 + within);
      places[k / 2] |= (is_there ? place : NO_PLACE) << k % 2 * 16;
    }
  }
  MEMBER Place at(int k) const { return {again(places[k / 2]) >> k % 2 * 16 & 0xffff}; }
};

// The values of a thread's second place, or of a later one, if it has one.
DEV float2& later_of(Hub& hub, int k) { return hub.later[(k - 1) * THREADS + again(threadIdx.x)]; }

// The slices of two sums side by side, asked for.
struct Slices {
  uint4 parts[SLICES];

  MEMBER void ask(const uint2* from, int stride) {
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
      load_marked(parts[slice], (const uint4*)(from + slice * stride));
    }
  }
  MEMBER bool are_there(u32 mark) const {
    u32 off = 0;
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
      off |= (parts[slice].y ^ mark) | (parts[slice].w ^ mark);
    }
    return off == 0;
  }
  MEMBER void add_to(float2& stream) const {
    float low = 0.0f, high = 0.0f;
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
      low = __fadd_rn(low, __uint_as_float(parts[slice].x));
      high = __fadd_rn(high, __uint_as_float(parts[slice].z));
    }
    stream.x = __fadd_rn(stream.x, low), stream.y = __fadd_rn(stream.y, high);
  }
};

// Adds all slices of a product to the first COUNT places of each thread, asked for at once. Where
// a thread has none, it asks for the first of all.
template <int COUNT>
DEV void add_places(float2& stream, const Own& own, const uint2* from, u32 mark, Hub& hub,
                    const Layers& p) {
  const int hidden = again(p.matrices[O].tiles) * 16;
  const uint2* at[COUNT];
  bool has[COUNT], are_there;
#pragma unroll
  for (int k = 0; k < COUNT; ++k) {
    const Place place = own.at(k);
    has[k] = place.is_there();
    at[k] = from + (has[k] ? place.row() * hidden + place.column() : 0);
  }
  Slices slices[COUNT];
  int tries = 0;
  do {
    are_there = true;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) slices[k].ask(at[k], ROWS * hidden);
#pragma unroll
    for (int k = 0; k < COUNT; ++k) are_there &= !has[k] || slices[k].are_there(mark);
    count_try(tries);
  } while (!__all_sync(FULL, are_there));
#pragma unroll
  for (int k = 0; k < COUNT; ++k) {
    if (has[k]) slices[k].add_to(k == 0 ? stream : later_of(hub, k));
  }
}

// Adds all slices of a product to the stream.
DEV void add_slices(float2& stream, const Own& own, Product of, u32 mark, Hub& hub,
                    const Layers& p) {
  static_assert(OWN_EACH == 1 + BANDS, "the cases below");
  // Rows may be missing between others: a warp may have later places and no first ones.
  bool has[OWN_EACH];
#pragma unroll
  for (int k = 0; k < OWN_EACH; ++k) has[k] = __any_sync(FULL, own.at(k).is_there());
  const uint2* from = sums_of(hub, of, mark, p);
  if (BANDS == 2 && has[OWN_EACH - 1]) add_places<OWN_EACH>(stream, own, from, mark, hub, p);
  else if (has[1]) add_places<2>(stream, own, from, mark, hub, p);
  else if (has[0]) add_places<1>(stream, own, from, mark, hub, p);
}

// The stream, rounded, to all blocks of the cluster.
DEV void send_stream(const float2& stream, const Own& own, Hub& hub) {
#pragma unroll
  for (int k = 0; k < OWN_EACH; ++k) {
    const Place place = own.at(k);
    if (!place.is_there()) continue;
    const float2 at = k == 0 ? stream : later_of(hub, k);
    send_to_all(word_of(hub.x, place.row(), place.column()), pack_bf16(at.x, at.y), &hub.x_there);
  }
}

// The stream that enters the kernel, and what leaves it.
DEV void enter_stream(float2& stream, const Own& own, Hub& hub, const Layers& p) {
#pragma unroll
  for (int k = 0; k < OWN_EACH; ++k) {
    const Place place = own.at(k);
    const int at = (hub.first_row + place.row()) * (p.matrices[O].tiles * 16) + place.column();
    if (place.is_there()) (k == 0 ? stream : later_of(hub, k)) = *(const float2*)(p.stream + at);
  }
}
DEV void keep_stream(const float2& stream, const Own& own, Hub& hub,
                     int captured_at, bool is_last, const Layers& p) {
  if (captured_at < 0 && !is_last) return;
  const int block_rows = BANDS == 1 ? 1 : p.attend.block_rows;
#pragma unroll
  for (int k = 0; k < OWN_EACH; ++k) {
    const Place place = own.at(k);
    if (!place.is_there()) continue;
    const int row = hub.first_row + place.row(), column = place.column();
    const float2 at = k == 0 ? stream : later_of(hub, k);
    const u32 rounded = pack_bf16(at.x, at.y);
    if (0 <= captured_at) {
      *(u32*)(p.captured + block_place(row, captured_at + column, block_rows)) = rounded;
    }
    if (!is_last) continue;
    *(float2*)(p.stream + row * (p.matrices[O].tiles * 16) + column) = at;
    *(u32*)(p.rounded + block_place(row, column, block_rows)) = rounded;
  }
}
#endif
