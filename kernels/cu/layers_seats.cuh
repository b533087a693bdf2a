// Which block of the clusters of `layers_small.cuh` has what, found once before all layers.
#pragma once
#include "layers_small.cuh"

#ifdef HOPPER

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
  Range slices = {seat.at * DOWN_SLICES, DOWN_SLICES}, second;
  int before = seat.at * group, end = before + group, tiles = (group + 2) * 4;
  if (is_kv) {
    slices.first = slices_before(before, units);
    slices.count = slices_before(end, units) - slices.first;
  } else {
    before = slice_start(slices.first, SLICES, units);
    end = slice_start(slices.first + slices.count, SLICES, units);
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
  for (int i = 0; i < span.y; ++i) {
    hub.targets[span.x - here.first + i] = blocks;
    hub.lines[span.x - here.first + i] = i * (p.attend.group + 2) * 64;
  }
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
  text.span.x -= here.first, near.first_row = text.span.x;
  if (WARP <= threadIdx.x) return;
  if (seat.is_kv) find_targets(hub, seat, here, p);
  if (threadIdx.x < ROWS_MAX) hub.own_pages[threadIdx.x] = text.own_page;
  for (int i = 0; i < text.rows; ++i) {
    const int place = max(text.start + i - p.attend.rope.behind, 0);
    hub.turns[i][threadIdx.x] = p.attend.rope.turns[place * WARP + threadIdx.x];
  }
  for (int i = threadIdx.x; i < 16; i += WARP) {
    const int row = i / p.attend.group;
    hub.packed[i] = i % p.attend.group * (64 / 8) * HALF + (text.span.x + row) * 4;
    hub.ends[i] = text.end_of(i, p.attend.group);
  }
  if (threadIdx.x != 0) return;
  hub.first_row = here.first, hub.made = p.counts[seat.team];
  hub.near = near, (Text&)hub.text = text, hub.text.ends = hub.ends;
  hub.part = rank - within * each, hub.parts = parts_of(text.chunks, each);
  hub.merger = within * each;
  const int room = p.shared_bytes - (int)((unsigned char*)merged_of(hub, p) - (unsigned char*)&hub);
  const int lines = text.chunks * text.span.y * p.attend.group;
  hub.fits = text.chunks == 1 || lines * LINE_BYTES <= room;
  hub.is_short = hub.fits && text.chunks == hub.parts;
  hub.last_key0 = (text.chunks - 1 - (text.chunks - 1 - hub.part) % hub.parts) * CHUNK;
  hub.attends = seat.is_kv && hub.part < hub.parts && 0 < text.span.y;
}

// Says what will arrive in the next layer.
DEV void expect(Hub& hub, const Here& here, const Layers& p) {
  const int rows = __popc(here.rows);
  barrier_expect(&hub.x_there, rows * p.matrices[QKV].units * 128);
  barrier_expect(&hub.inner_there, rows * hub.units * 128);
  if (!hub.attends) return;
  barrier_expect(&hub.raw_there, hub.text.span.y * (p.attend.group + 2) * 256);
  if (hub.part != 0 || hub.text.chunks == 1 || !hub.fits) return;
  barrier_expect(&hub.parts_there, hub.text.chunks * hub.text.span.y * p.attend.group * LINE_BYTES);
}
#endif
