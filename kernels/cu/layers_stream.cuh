// The residual stream inside `layers_small.cu`: each cluster has one, each of its blocks an eighth of
// it, in registers.
#pragma once
#include "layers_small.cuh"

#ifdef HOPPER

// This block's eighth of the stream, of which a thread has some places: row and column.
struct Own {
  u32 places[OWN_EACH];   // NONE: it has none

  MEMBER Own(const Hub& hub, const Here& here) {
#pragma unroll
    for (int k = 0; k < OWN_EACH; ++k) {
      const int i = k * THREADS + threadIdx.x, row = i / OWN_MAX, within = i % OWN_MAX;
      const bool is_there = within < hub.second.count * 16 && here.has(row);
      places[k] = is_there ? row << 16 | (hub.second.first * 16 + within) : NONE;
    }
  }
  MEMBER bool is_there(int k) const { return places[k] != NONE; }
  MEMBER int row(int k) const { return places[k] >> 16; }
  MEMBER int column(int k) const { return places[k] & 0xffff; }
};

// The slices of a sum, asked for.
struct Slices {
  uint2 parts[SLICES];

  MEMBER void ask(const uint2* from, int stride) {
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) load_marked(parts[slice], from + slice * stride);
  }
  MEMBER bool are_there(u32 mark) const {
    u32 off = 0;
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) off |= parts[slice].y ^ mark;
    return off == 0;
  }
  MEMBER float sum() const {
    float sum = 0.0f;
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
      sum = __fadd_rn(sum, __uint_as_float(parts[slice].x));
    }
    return sum;
  }
};

// Adds all slices of a product to the stream.
DEV void add_slices(float (&stream)[OWN_EACH], const Own& own, Product of, u32 mark,
                    const Here& here, const Layers& p) {
  const int hidden = p.matrices[O].tiles * 16, stride = ROWS * hidden;
  const uint2* const from = sums_of(p, of, mark);
#pragma unroll 1
  for (int k = 0; k < OWN_EACH; ++k) {
    if (here.end * OWN_MAX <= k * THREADS) break;
    u32 place = own.places[0];
    if (k == 1) place = own.places[1];
    if (k == 2) place = own.places[2];
    const bool is_there = place != NONE;
    if (!__any_sync(FULL, is_there)) continue;
    const uint2* at = from + (place >> 16) * hidden + (place & 0xffff);
    Slices slices;
    int tries = 0;
    do {
      if (is_there) slices.ask(at, stride);
      count_try(tries);
    } while (!__all_sync(FULL, !is_there || slices.are_there(mark)));
    const float sum = slices.sum();
    if (is_there) {
      if (k == 0) stream[0] = __fadd_rn(stream[0], sum);
      if (k == 1) stream[1] = __fadd_rn(stream[1], sum);
      if (k == 2) stream[2] = __fadd_rn(stream[2], sum);
    }
  }
}

// The stream, rounded, to all blocks of the cluster.
DEV void send_stream(const float (&stream)[OWN_EACH], const Own& own, Hub& hub, const Here& here) {
#pragma unroll
  for (int k = 0; k < OWN_EACH; ++k) {
    if (here.end * OWN_MAX <= k * THREADS) break;
    send_pair(hub.x, &hub.x_there, own.row(k), own.column(k), stream[k], own.is_there(k));
  }
}

// The stream that enters the kernel, and what leaves it.
DEV void enter_stream(float (&stream)[OWN_EACH], const Own& own, const Layers& p) {
#pragma unroll
  for (int k = 0; k < OWN_EACH; ++k) {
    stream[k] = 0.0f;
    const int at = own.row(k) * (p.matrices[O].tiles * 16) + own.column(k);
    if (own.is_there(k)) stream[k] = p.stream[at];
  }
}
DEV void keep_stream(const float (&stream)[OWN_EACH], const Own& own, int captured_at,
                     bool is_last, const Layers& p) {
  if (captured_at < 0 && !is_last) return;
#pragma unroll
  for (int k = 0; k < OWN_EACH; ++k) {
    if (!own.is_there(k)) continue;
    const int row = own.row(k), column = own.column(k);
    const bf16 rounded = to_bf16(stream[k]);
    if (0 <= captured_at) p.captured[block_place(row, captured_at + column, 1)] = rounded;
    if (!is_last) continue;
    p.stream[row * (p.matrices[O].tiles * 16) + column] = stream[k];
    p.rounded[block_place(row, column, 1)] = rounded;
  }
}
#endif
