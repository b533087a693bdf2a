// The draft layer's own steps: its input, its guess, and the hidden states it will start from.
//
// A row's input is [norm(embedding of its token); norm(hidden state of the token before)].
#include "collective.cuh"
#include "rows.cuh"

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

// grid: rows; block: 256.
KERNEL draft_input(const DraftInput p) {
  __shared__ float partial[8];
  wait_for_previous();
  let_next_start();
  const size_t row = blockIdx.x, at = row * p.hidden;
  const int block_rows = block_rows_of(gridDim.x);
  const u32 token = p.tokens[row];
  const float* state = p.sources == 0 ? p.stream + at : state_of(p, p.sources[row]);
  float token_squares = 0.0f, state_squares = 0.0f;
  for (int pair = threadIdx.x; pair < p.hidden / 2; pair += blockDim.x) {
    float2 e = embedding(p, token, pair);
    token_squares += e.x * e.x + e.y * e.y;
    float2 g = state == 0 ? make_float2(0.0f, 0.0f) : ((const float2*)state)[pair];
    state_squares += g.x * g.x + g.y * g.y;
  }
  float token_scale = rsqrtf(block_sum(token_squares, partial) / p.hidden + p.eps);
  float state_scale = rsqrtf(block_sum(state_squares, partial) / p.hidden + p.eps);
  for (int pair = threadIdx.x; pair < p.hidden / 2; pair += blockDim.x) {
    float2 e = embedding(p, token, pair);
    float2 e_norm = ((const float2*)p.token_norm)[pair];
    *(u32*)(p.out + block_place(row, pair * 2, block_rows)) =
        pack_bf16(e.x * token_scale * e_norm.x, e.y * token_scale * e_norm.y);
    float2 g = state == 0 ? make_float2(0.0f, 0.0f) : ((const float2*)state)[pair];
    float2 g_norm = ((const float2*)p.state_norm)[pair];
    float2 normed = make_float2(g.x * state_scale * g_norm.x, g.y * state_scale * g_norm.y);
    *(u32*)(p.out + block_place(row, p.hidden + pair * 2, block_rows)) =
        pack_bf16(normed.x, normed.y);
    ((float2*)(p.stream + at))[pair] = p.keep_normed ? normed : g;
  }
}

// The likeliest entry of the draft vocabulary, as a token of the target's; the lowest of equals.
// It becomes draft `depth` of the entry and the next row of its chain.
DEV void take_guess(const Step& p, u32 index, u32 token, int depth) {
  const Entry entry = p.entries[index];
  const u32 guess = entry.row + entry.fed + depth;
  p.tokens[guess] = token;
  const u32 position = p.positions[guess];
  const u32 page = p.pages[(size_t)entry.lane * p.pages_max + position / PAGE];
  p.page_tokens[page * PAGE + position % PAGE] = token;
  p.chain_tokens[index] = token;
  if (depth + 1 < entry.held) ++p.chain_positions[index];
  else p.chain_positions[index] = -1;
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

// grid: entries; block: 512.
KERNEL draft_guess(const Step p, const float* logits, const u32* target_ids, int vocab, int depth) {
  __shared__ Largest s;
  wait_for_previous();
  let_next_start();
  const u32 index = blockIdx.x;
  if (p.chain_positions[index] < 0) return;
  const Found best = find_largest(logits + (size_t)index * vocab, vocab, s);
  if (threadIdx.x != 0) return;
  take_guess(p, index, target_ids[best.at == NONE ? 0 : best.at], depth);
}

// The same from slices, one of each rank.
KERNEL draft_guess_slices(const Step p, const Collective c, const u32* target_ids, int depth) {
  __shared__ Largest s;
  wait_for_previous();
  let_next_start();
  const u32 index = blockIdx.x;
  if (p.chain_positions[index] < 0) return;
  u32* count = choosing_count(c);
  const u32 mark = *count + 1, first = c.starts[c.rank];
  Found best = find_largest(slice_row(c, c.rank, index), c.starts[c.rank + 1] - first, s);
  if (best.at != NONE) best.at += first;
  tell(c, index * 2, mark, best);
  if (threadIdx.x != 0) return;
  best = largest_told(c, index * 2, mark);
  take_guess(p, index, target_ids[best.at == NONE ? 0 : best.at], depth);
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
  for (int i = threadIdx.x; i < d.columns / 8; i += blockDim.x) {
    *(uint4*)(out + block_place(blockIdx.x, i * 8, block_rows_of(gridDim.x))) =
        *(const uint4*)(from + block_place(blockIdx.x % d.rows, i * 8, step_rows));
  }
}

DEV void keep_state(const Step& p, u32 lane, u32 position, const float* state, float* by_page,
                    int hidden) {
  const u32 page = p.pages[(size_t)lane * p.pages_max + position / PAGE];
  for (int i = threadIdx.x; i < hidden / 4; i += blockDim.x) {
    ((float4*)(by_page + (size_t)page * hidden))[i] = ((const float4*)state)[i];
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
