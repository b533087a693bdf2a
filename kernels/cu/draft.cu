// The draft layer's own steps: its input, its guess, and the hidden states it will start from.
//
// A row's input is [norm(embedding of its token); norm(hidden state of the token before)].
#include "rows.cuh"
#include "together.cuh"

struct DraftInput {
  const u32* table;       // embeddings, in tiles
  const float* token_norm;   // (hidden)
  const float* state_norm;   // (hidden)
  const float* rows;      // (rows, hidden): states made in this step
  const float* by_page;   // (pages, hidden): states of the last tokens that stand in pages
  const u32* tokens;      // of each row
  const u32* sources;     // of each row; null: its state is in `stream` already
  float* stream;          // (rows, hidden): the state, the residual of the draft layer
  bf16* out;              // (rows, 2 hidden) in blocks
  int hidden;
  int keep_normed;        // whether the residual is the normed state
  float eps;
};

DEV const float* state_of(const DraftInput& p, u32 source) {
  if (source == SOURCE_NONE) return 0;
  const float* from = source & SOURCE_PAGE ? p.by_page : p.rows;
  return from + (size_t)(source & ~SOURCE_PAGE) * p.hidden;
}

DEV float2 embedding(const DraftInput& p, u32 token, int pair) {
  if (token == NONE) return make_float2(0.0f, 0.0f);
  u32 both = p.table[weight_place(token, pair, p.hidden / 64)];
  return make_float2(low_bf16(both), high_bf16(both));
}

#define THREADS 256
#define AT_ONCE 8   // loads of a thread under way, of each kind

// grid: rows; block: 256.
KERNEL draft_input(const DraftInput p) {
  __shared__ float partial[THREADS / WARP];
  wait_for_previous();
  let_next_start();
  const size_t row = blockIdx.x, at = row * p.hidden;
  const int block_rows = block_rows_of(gridDim.x), pairs = p.hidden / 2;
  const u32 token = p.tokens[row];
  const float* state = p.sources == 0 ? p.stream + at : state_of(p, p.sources[row]);
  float2 tokens[AT_ONCE], states[AT_ONCE], token_norms[AT_ONCE], state_norms[AT_ONCE];
  auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int pair = first + i * THREADS;
      tokens[i] = states[i] = make_float2(0.0f, 0.0f);
      if (pairs <= pair) continue;
      tokens[i] = embedding(p, token, pair);
      if (state != 0) states[i] = ((const float2*)state)[pair];
      token_norms[i] = ((const float2*)p.token_norm)[pair];
      state_norms[i] = ((const float2*)p.state_norm)[pair];
    }
  };
  float token_squares = 0.0f, state_squares = 0.0f;
  for (int first = threadIdx.x; first < pairs; first += THREADS * AT_ONCE) {
    load(first);
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      token_squares += tokens[i].x * tokens[i].x + tokens[i].y * tokens[i].y;
      state_squares += states[i].x * states[i].x + states[i].y * states[i].y;
    }
  }
  const float token_scale = rsqrtf(block_sum(token_squares, partial) / p.hidden + p.eps);
  const float state_scale = rsqrtf(block_sum(state_squares, partial) / p.hidden + p.eps);
  for (int first = threadIdx.x; first < pairs; first += THREADS * AT_ONCE) {
    if (THREADS * AT_ONCE < pairs) load(first);
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int pair = first + i * THREADS;
      if (pairs <= pair) break;
      const float2 e = tokens[i], e_norm = token_norms[i], g = states[i], g_norm = state_norms[i];
      *(u32*)(p.out + block_place(row, pair * 2, block_rows)) =
          pack_bf16(e.x * token_scale * e_norm.x, e.y * token_scale * e_norm.y);
      const float2 normed =
          make_float2(g.x * state_scale * g_norm.x, g.y * state_scale * g_norm.y);
      *(u32*)(p.out + block_place(row, p.hidden + pair * 2, block_rows)) =
          pack_bf16(normed.x, normed.y);
      ((float2*)(p.stream + at))[pair] = p.keep_normed ? normed : g;
    }
  }
}

// Where an entry's guess goes. All of it was there before the kernel before began.
struct Place {
  i32 chain_position;   // negative: it guesses nothing
  u32 row;
  u32 page_slot;
  bool is_last;

  MEMBER Place(const Step& p, u32 index, int depth) : chain_position(p.chain_positions[index]) {
    if (chain_position < 0) return;
    const Entry entry = p.entries[index];
    row = entry.row + entry.fed + depth, is_last = entry.held <= depth + 1;
    const u32 position = p.positions[row];
    const u32 page = p.pages[(size_t)entry.lane * p.pages_max + position / PAGE];
    page_slot = page * PAGE + position % PAGE;
  }
};

// The likeliest entry of the draft vocabulary, as a token of the target's; the lowest of equals.
// It becomes a draft of the entry and the next row of its chain.
DEV void take_guess(const Step& p, u32 index, const Place& place, u32 token) {
  p.tokens[place.row] = token;
  p.page_tokens[place.page_slot] = token;
  p.chain_tokens[index] = token;
  p.chain_positions[index] = place.is_last ? -1 : place.chain_position + 1;
}

struct Largest {
  float most[16];
  u32 where[16];
};

DEV Found find_largest(const float* row, u32 count, Largest& s) {
  Found best;
  scan_largest(row, count, [](float value) { return value; }, best.value, best.at);
  argmax_block(best.value, best.at, s.most, s.where);
  return best;
}

// grid: (blocks of a cluster, entries); block: 512.
KERNEL draft_guess(const Step p, const float* logits, const u32* target_ids, int vocab, int depth) {
  __shared__ Largest s;
  __shared__ Told told;
  const u32 index = blockIdx.y;
  const Place place(p, index, depth);
  meet_cluster();
  wait_for_previous();
  let_next_start();
  if (place.chain_position < 0) return;
  const Slice slice(vocab);
  Found best = find_largest(logits + (size_t)index * vocab + slice.first, slice.count, s);
  if (best.at != NONE) best.at += slice.first;
  best = largest_of_cluster(told, best);
  if (threadIdx.x != 0 || cluster_rank() != 0) return;
  take_guess(p, index, place, target_ids[best.at == NONE ? 0 : best.at]);
}

// The same from slices, one of each rank. grid: entries; block: 512.
KERNEL draft_guess_slices(const Step p, const Collective c, const u32* target_ids, int depth) {
  __shared__ Largest s;
  wait_for_previous();
  let_next_start();
  const u32 index = blockIdx.x;
  const Place place(p, index, depth);
  if (place.chain_position < 0) return;
  u32* count = choosing_count(c);
  const u32 mark = *count + 1, first = c.starts[c.rank];
  Found best = find_largest(slice_row(c, c.rank, index), c.starts[c.rank + 1] - first, s);
  if (best.at != NONE) best.at += first;
  tell(c, index * 2, mark, best);
  if (threadIdx.x != 0) return;
  best = largest_told(c, index * 2, mark);
  take_guess(p, index, place, target_ids[best.at == NONE ? 0 : best.at]);
  *count = mark;
}

// The draft layer's rows of several plain steps of the same sequences, until they are taken up
// together: row `at` of step `n` is row n * rows + at.
struct Deferred {
  bf16* captured;   // of each step (rows, columns) in blocks
  u32* tokens;
  i32* positions;   // negative if the row does not exist
  u32* lanes;
  u32* sources;
  int rows;         // of a step
  int columns;
};

// `accept` of a plain step, whose rows it puts behind those of the steps before it. block: 256;
// rows <= 256.
KERNEL accept_and_defer(const Step p, const u32* choices, const Deferred d,
                        const bf16* captured) {
  wait_for_previous();
  let_next_start();
  const u32 before = p.inbox[DEFERRED], row = threadIdx.x;
  if (blockIdx.x == 0) accept_entry(p, choices, row);
  const int eights = block_rows_of(d.rows) * d.columns;
  uint4* to = (uint4*)d.captured + (size_t)before * eights;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < eights; i += gridDim.x * blockDim.x) {
    to[i] = ((const uint4*)captured)[i];
  }
  if (blockIdx.x != 0 || d.rows <= row) return;
  const u32 at = before * d.rows + row;
  d.tokens[at] = p.tokens[row];
  d.positions[at] = p.positions[row];
  d.lanes[at] = p.lanes[row];
  d.sources[at] = before == 0 ? p.sources[row] : at - d.rows;
}

// out: all rows that wait, (rows, columns) in blocks. grid: those rows; block: 128.
KERNEL gather_deferred(const Deferred d, bf16* out) {
  wait_for_previous();
  let_next_start();
  const int step_rows = block_rows_of(d.rows), step = blockIdx.x / d.rows;
  const bf16* from = d.captured + (size_t)step * step_rows * 8 * d.columns;
  const int eights = d.columns / 8, block_rows = block_rows_of(gridDim.x);
  for (int first = threadIdx.x; first < eights; first += blockDim.x * AT_ONCE) {
    uint4 some[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int at = first + i * blockDim.x;
      if (at < eights) {
        some[i] = *(const uint4*)(from + block_place(blockIdx.x % d.rows, at * 8, step_rows));
      }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int at = first + i * blockDim.x;
      if (at < eights) *(uint4*)(out + block_place(blockIdx.x, at * 8, block_rows)) = some[i];
    }
  }
}

DEV void keep_state(const Step& p, u32 lane, u32 position, const float* state, float* by_page,
                    int hidden) {
  const u32 page = p.pages[(size_t)lane * p.pages_max + position / PAGE];
  float4* to = (float4*)(by_page + (size_t)page * hidden);
  for (int first = threadIdx.x; first < hidden / 4; first += blockDim.x * AT_ONCE) {
    float4 some[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int at = first + i * blockDim.x;
      if (at < hidden / 4) some[i] = ((const float4*)state)[at];
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int at = first + i * blockDim.x;
      if (at < hidden / 4) to[at] = some[i];
    }
  }
}

// As `keep_states`, of rows that waited: all of them stand. grid: those rows; block: 128.
KERNEL keep_deferred(const Step p, const Deferred d, const float* rows, float* by_page,
                     int hidden) {
  wait_for_previous();
  let_next_start();
  const u32 row = blockIdx.x;
  const i32 position = d.positions[row];
  const bool is_last = gridDim.x <= row + d.rows, ends_page = (position + 1) % PAGE == 0;
  if (position < 0 || (!is_last && !ends_page)) return;
  keep_state(p, d.lanes[row], position, rows + (size_t)row * hidden, by_page, hidden);
}

// Keeps of each page the state of the last token that stands in it: what later rows start from.
// grid: rows; block: 128.
KERNEL keep_states(const Step p, const float* rows, float* by_page, int hidden) {
  wait_for_previous();
  let_next_start();
  const u32 row = blockIdx.x;
  const i32 position = p.positions[row];
  if (position < 0) return;
  const u32 last = p.ends[p.row_entries[row]];
  const bool stands = row <= last, ends_page = (position + 1) % PAGE == 0;
  if (!stands || (row != last && !ends_page)) return;
  keep_state(p, p.lanes[row], position, rows + (size_t)row * hidden, by_page, hidden);
}
