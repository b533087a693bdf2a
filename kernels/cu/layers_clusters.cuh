// What the blocks of `layers_small.cu` and `layers_small_wide.cu` do: products, and the way of a
// layer through its clusters.
#pragma once
#include "layers_near.cuh"
#include "layers_seats.cuh"
#include "layers_stream.cuh"

// Whether a layer's weights of the first product are asked for before the second one is made: not
// where the first one's sums stand in their place, and the warp that asks has a part of the second.
#define IS_EARLY (BANDS == 1)

#ifdef HOPPER

// ---- products

// Weights of one unit of this block's tiles, to registers.
template <int TILES>
DEV void load_unit(uint4 (&a)[TILES][STEPS], const uint4* weights, int tiles, int units, int unit,
                   int lane) {
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    const uint4* from = weights + (min(i, tiles - 1) * units + unit) * (STEPS * WARP);
#pragma unroll
    for (int step = 0; step < STEPS; ++step) a[i][step] = from[step * WARP + lane];
  }
}

// A unit of the first product: its part of the sums of all tiles, and of the squares of its inputs.
// Then, if there is one, loads what comes next.
template <int TILES, class Next>
DEV void multiply_unit(float (&sums)[BANDS][TILES][4], float (&squares)[BANDS][STEPS],
                       const uint4 (&a)[TILES][STEPS], const Words* x, const Here& here, int lane,
                       Next next) {
  uint2 words[BANDS][STEPS] = {};
#pragma unroll
  for (int band = 0; band < BANDS; ++band) {
    if (!here.has_band(band)) break;
    const bool has_row = here.has(band * 8 + lane / 4);
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      words[band][step] = words_at(x, step, band, has_row, lane);
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
#pragma unroll
      for (int i = 0; i < TILES; ++i) {
        const u32 of[4] = {a[i][step].x, a[i][step].y, a[i][step].z, a[i][step].w};
        mma(sums[band][i], of, words[band][step].x, words[band][step].y);
      }
    }
  }
  next();
#pragma unroll
  for (int band = 0; band < BANDS; ++band) {
    if (!here.has_band(band)) break;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const uint2 at = words[band][step];
      squares[band][step] = add_squares(squares[band][step], at.x, at.y);
    }
  }
}

// The first product of a cluster, with a norm: this warp's slice of the block's tiles, to
// `partial_of`, and the squares of its inputs.
template <int TILES>
DEV void multiply_normed(Hub& hub, const uint4* weights, int tiles, int units, u32 parity,
                         const Here& here, const Layers& p) {
  const int me = again(threadIdx.x), lane = me % WARP, slice = me / WARP;
  const int start = slice_start(slice, SLICES, units), end = slice_start(slice + 1, SLICES, units);
  float sums[BANDS][TILES][4] = {}, squares[BANDS][STEPS] = {};
  wait_for(&hub.weights_there[0], parity);
#ifdef WIDE
  uint4 a[TILES][STEPS];
  load_unit(a, weights, tiles, units, start, lane);
  wait_for(&hub.x_there, parity);
#pragma unroll 1
  for (int unit = start; unit < end; ++unit) {
    multiply_unit(sums, squares, a, hub.x + unit * STEPS, here, lane, [&] {
      if (unit + 1 < end) load_unit(a, weights, tiles, units, unit + 1, lane);
    });
  }
#else
  // A slice has two at most.
  uint4 first[TILES][STEPS], last[TILES][STEPS];
  load_unit(first, weights, tiles, units, start, lane);
  load_unit(last, weights, tiles, units, end - 1, lane);
  wait_for(&hub.x_there, parity);
  multiply_unit(sums, squares, first, hub.x + start * STEPS, here, lane, [] {});
  if (start + 1 < end) {
    multiply_unit(sums, squares, last, hub.x + (end - 1) * STEPS, here, lane, [] {});
  }
#endif
  Partial* const partial = partial_of(hub, p);
#ifdef WIDE
  // Until now weights were read where sums go.
  __syncthreads();
#endif
#pragma unroll
  for (int band = 0; band < BANDS; ++band) {
    if (!here.has_band(band)) break;
    const float* of = squares[band];
    const float sum = sum_of_four(sum_of_steps(of[0], of[1], of[2], of[3]));
    if (lane % 4 == 0) hub.squares[band * 8 + lane / 4][slice] = sum;
    const int row = band * 8 + lane % 4 * 2;
    const bool one = here.has(row), two = here.has(row + 1);
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      float* to = &partial[i][row][slice * 16 + lane / 4];
      if (one) to[0] = sums[band][i][0], to[8] = sums[band][i][2];
      to += PARTIAL;
      if (two) to[0] = sums[band][i][1], to[8] = sums[band][i][3];
    }
  }
#ifdef WIDE
  bulk_fence();
#endif
}

DEV float sum_of_slices(const float* parts) {
  float v[SLICES], sum = 0.0f;
#pragma unroll
  for (int i = 0; i < SLICES; ++i) v[i] = parts[i * 16];
#pragma unroll
  for (int i = 0; i < SLICES; ++i) sum = __fadd_rn(sum, v[i]);
  return sum;
}

// Of two sums side by side.
DEV float2 sums_of_slices(const float* parts) {
  float2 v[SLICES], sum = make_float2(0.0f, 0.0f);
#pragma unroll
  for (int i = 0; i < SLICES; ++i) v[i] = *(const float2*)(parts + i * 16);
#pragma unroll
  for (int i = 0; i < SLICES; ++i) {
    sum.x = __fadd_rn(sum.x, v[i].x), sum.y = __fadd_rn(sum.y, v[i].y);
  }
  return sum;
}

// The norm's scale of a row.
DEV float scale_of(const Hub& hub, int row, const Layers& p) {
  const float4 *four = (const float4*)hub.squares[row], low = four[0], high = four[1];
  float sum = __fadd_rn(__fadd_rn(__fadd_rn(low.x, low.y), low.z), low.w);
  sum = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(sum, high.x), high.y), high.z), high.w);
  return norm_scale(sum, p.matrices[QKV].units * 64, p.eps);
}

// Queries, keys and values to the blocks that attend with their row.
DEV void send_raw(Hub& hub, const Here& here, const Layers& p) {
  const auto [first, count] = hub.first;
  const Partial* const partial = partial_of(hub, p);
  const int bits = here.row_bits();
#pragma unroll 1
  for (int at = 0; at < KV_TILES * ROWS * 8; at += THREADS) {
    const int i = at + again(threadIdx.x);
    const int out = i % 8 * 2, row = i / 8 & ((1 << bits) - 1), tile = i / 8 >> bits;
    if (count <= tile || !here.has(row)) continue;
    const float2 sums = sums_of_slices(&partial[tile][row][out]);
    const float scale = scale_of(hub, row, p);
    const float2 pair = make_float2(__fmul_rn(sums.x, scale), __fmul_rn(sums.y, scale));
    const float* to = hub.raw + hub.lines[row] + (first + tile) * 16 + out;
    for (u32 left = hub.targets[row]; left != 0; left &= left - 1) {
      send(to, pair, &hub.raw_there, __ffs(left) - 1);
    }
  }
}

// Gated values to all blocks of the cluster.
DEV void send_gated(Hub& hub, const Here& here, const Layers& p) {
  const auto [first, count] = hub.first;
  const Partial* const partial = partial_of(hub, p);
  const int bits = here.row_bits();
#pragma unroll 1
  for (int at = 0; at < FORWARD_TILES * ROWS * 8; at += THREADS) {
    const int i = at + again(threadIdx.x);
    const int out = i % 8, row = i / 8 & ((1 << bits) - 1), tile = i / 8 >> bits;
    const bool is_there = tile < count && here.has(row);
    if (!__any_sync(FULL, is_there)) continue;
    float value = 0.0f;
    if (is_there) {
      const float scale = scale_of(hub, row, p);
      const float gate = sum_of_slices(&partial[tile][row][out]);
      const float up = sum_of_slices(&partial[tile][row][out + 8]);
      value = gated(__fmul_rn(gate, scale), __fmul_rn(up, scale));
    }
    const u32* to = word_of(hub.inner, row, (first + tile) * 8);
    send_eight(to, value, &hub.inner_there, is_there);
  }
}

DEV void load_job(uint4 (&a)[JOB_UNITS][STEPS], const Job& job, const uint4* weights, int lane) {
#pragma unroll
  for (int i = 0; i < JOB_UNITS; ++i) {
    if (job.units <= i) break;
    const uint4* from = weights + (job.weights + i) * (STEPS * WARP) + lane;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) a[i][step] = from[step * WARP];
  }
}

// The second product: slices of it that read what this cluster made, to all.
DEV void multiply_slices(Hub& hub, const uint4* weights, Product of, u32 parity,
                         const Here& here, const Layers& p) {
  const int me = again(threadIdx.x), lane = me % WARP, row = lane % 4 * 2;
  const int hidden = again(p.matrices[O].tiles) * 16;
  const int jobs = hub.second.count * hub.slices.count;
  uint2* const sums_at = sums_of(hub, of, here.mark, p) + row * hidden + lane / 4;
  uint4 a[JOB_UNITS][STEPS];
  int number = me / WARP;
  Job job = hub.jobs[number];
  wait_for(&hub.weights_there[1], parity);
  if (number < jobs) load_job(a, job, weights, lane);
  wait_for(&hub.inner_there, parity);
#pragma unroll 1
  for (; number < jobs; number += WARPS) {
    float sums[BANDS][4] = {};
#pragma unroll
    for (int i = 0; i < JOB_UNITS; ++i) {
      if (job.units <= i) break;
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        const u32 some[4] = {a[i][step].x, a[i][step].y, a[i][step].z, a[i][step].w};
#pragma unroll
        for (int band = 0; band < BANDS; ++band) {
          if (!here.has_band(band)) break;
          const bool has_row = here.has(band * 8 + lane / 4);
          const int at = (job.inputs + i) * STEPS + step;
          const uint2 words = words_at(hub.inner, at, band, has_row, lane);
          mma(sums[band], some, words.x, words.y);
        }
      }
    }
    uint2* to = sums_at + job.sums;
    if (number + WARPS < jobs) job = hub.jobs[number + WARPS], load_job(a, job, weights, lane);
#pragma unroll
    for (int band = 0; band < BANDS; ++band) {
      if (here.has(band * 8 + row)) {
        store_marked(to, __float_as_uint(sums[band][0]), here.mark);
        store_marked(to + 8, __float_as_uint(sums[band][2]), here.mark);
      }
      if (here.has(band * 8 + row + 1)) {
        store_marked(to + hidden, __float_as_uint(sums[band][1]), here.mark);
        store_marked(to + hidden + 8, __float_as_uint(sums[band][3]), here.mark);
      }
      to += 8 * hidden;
    }
  }
}

// ---- all of it

// Where a layer's bias and norms of heads are, to shared memory in the background.
DEV void ask_for_norms(Rope& to, const Layer& layer) {
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(&to.bias + i)),
                 "l"(&layer.bias + i)
                 : "memory");
  }
  copies_commit();
}

// What attention knows of a block's text: in registers, where there are enough.
struct Kept {
#ifdef WIDE
  const Near& near;
  const NearText& text;

  MEMBER Kept(const Hub& hub) : near(hub.near), text(hub.text) {}
  MEMBER void find(const Hub& hub) {}
#else
  Near near;
  NearText text;

  MEMBER Kept(const Hub& hub) : near(hub.near), text(hub.text) {}
  // What is another one in each layer.
  MEMBER void find(const Hub& hub) {
    near.rope.layer = hub.near.rope.layer, near.rope.bias = hub.near.rope.bias;
    near.rope.q_norm = hub.near.rope.q_norm, near.rope.k_norm = hub.near.rope.k_norm;
  }
#endif
};

// A kv head's cluster in one layer, from the stream on that enters it.
DEV void attend_layer(Hub& hub, Keys& s, Kept& kept, const float2& stream, const Own& own,
                      int index, const Here& here, const Layers& p) {
  const u32 parity = index & 1;
  const bool tells = threadIdx.x == THREADS - 1;
  if (tells) ask_for_norms(hub.near.rope, p.layers[index]);
  send_stream(stream, own, hub);
  multiply_normed<KV_TILES>(hub, weights_of(hub, 0, p), hub.first.count, p.matrices[QKV].units,
                            parity, here, p);
  __syncthreads();
  send_raw(hub, here, p);
  if (hub.attends) {
    if (tells && 0 < index) hub.near.rope.layer += p.layer_values;
    copies_wait<0>();
    __syncthreads();
    wait_for(&hub.raw_there, parity);
    if (hub.is_short) {
      kept.find(hub);
      attend_near(hub, kept.near, kept.text, s, index, p);
    } else if (hub.fits) {
      attend_chunks(hub, s, index, p);
    } else {
      attend_rows<64, 1, 1>(s, hub.near, hub.text, hub.own_pages, hub.near.kv_head, hub.part,
                            hub.parts);
    }
  } else if (IS_EARLY) {
    bring(hub, 0, index + 1, p);
  }
  multiply_slices(hub, weights_of(hub, 1, p), OF_O, parity, here, p);
  if (hub.attends && hub.fits) keep_near(hub, hub.near, kept.text, s, hub.last_key0);
  __syncthreads();
  if (hub.attends || !IS_EARLY) bring(hub, 0, index + 1, p);
  if (hub.attends && index + 1 < p.layer_count) {
    ask_for_keys<64, 1>(s, hub.near, hub.text, hub.near.kv_head, hub.part, p.layer_values);
  }
  bring(hub, 1, index + 1, p);
}

// A cluster with a slice of down, likewise, from the stream behind attention on.
DEV void feed_forward(Hub& hub, const float2& stream, const Own& own, int index,
                      const Here& here, const Layers& p) {
  const u32 parity = index & 1;
  send_stream(stream, own, hub);
  multiply_normed<FORWARD_TILES>(hub, weights_of(hub, 0, p), hub.first.count,
                                 p.matrices[GATE_UP].units, parity, here, p);
  __syncthreads();
  send_gated(hub, here, p);
  if (IS_EARLY) bring(hub, 0, index + 1, p);
  multiply_slices(hub, weights_of(hub, 1, p), OF_DOWN, parity, here, p);
  __syncthreads();
  if (!IS_EARLY) bring(hub, 0, index + 1, p);
  bring(hub, 1, index + 1, p);
}

// grid: 8 (teams kv_heads + 8), all at once; cluster: 8; block: 256; shared: `shared_bytes`.
DEV void layers_all(const Layers& p) {
  extern __shared__ __align__(128) unsigned char memory[];
  // Where it is is asked for once: the compiler would ask again and again.
  u32 at = shared_address(memory);
  asm volatile("" : "+r"(at));
  Hub& hub = *(Hub*)__cvta_shared_to_generic(at);
  Seat seat;
  seat.find(p);
  Keys& s = *(Keys*)keys_of(hub, p);
  Here here;
  here.find_rows(p, seat.sequences);
  if (threadIdx.x / WARP == WARPS - 1) {
    find_products(hub, seat, p);
    bring(hub, 0, 0, p), bring(hub, 1, 0, p);
  }
  find_place(hub, seat, here, p);
  __syncthreads();
  if (hub.attends) clear_queries<64, 1, WARPS>(s.q, hub.near, hub.text);
  cluster_sync();
  if (hub.attends) ask_for_keys(s, hub.near, hub.text, hub.near.kv_head, hub.part, 0);
  float2 stream = make_float2(0.0f, 0.0f);
  Kept kept(hub);
  const Own own(hub, here);
  enter_stream(stream, own, hub, p);
#pragma unroll 1
  for (int index = 0; index <= p.layer_count; ++index) {
    const bool is_last = index == p.layer_count;
    here.mark = hub.made + index;
    if (is_last && !hub.seat.keeps()) break;
    if (0 < index) add_slices(stream, own, OF_DOWN, here.mark, hub, p);
    if (!is_last) {
      ++here.mark;
      if (threadIdx.x == THREADS - 1) expect(hub, here, p);
      if (hub.seat.is_kv) attend_layer(hub, s, kept, stream, own, index, here, p);
    }
    if (hub.seat.keeps() && 0 < index) {
      keep_stream(stream, own, hub, p.layers[index - 1].captured_at, is_last, p);
    }
    if (is_last) break;
    add_slices(stream, own, OF_O, here.mark, hub, p);
    if (!hub.seat.is_kv) feed_forward(hub, stream, own, index, here, p);
  }
  // Whoever has rows has read it: this block needed what was made of them, since the first text has
  // rows if any has. Or a team has none.
  if (hub.seat.counts && threadIdx.x == 0) p.counts[hub.seat.team] = hub.made + p.layer_count;
  // No block leaves while another may send it something.
  cluster_sync();
}
#endif
