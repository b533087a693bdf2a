// Lays a step out before the model runs, and takes stock after it.
#include "rows.cuh"

#define ENTRY_WORDS (sizeof(Entry) / 4)

DEV Entry read_entry(const u32* inbox, u32 index) {
  Entry entry;
  const u32* from = inbox + inbox[ENTRIES_AT] + index * ENTRY_WORDS;
#pragma unroll
  for (int i = 0; i < ENTRY_WORDS; ++i) ((u32*)&entry)[i] = from[i];
  return entry;
}

DEV u32 start_of(const Step& p, const Entry& entry) {
  return entry.flags & CHAINED ? p.lane_lens[entry.lane] : entry.start;
}

DEV u32 page_of(const Step& p, u32 lane, u32 position) {
  return p.pages[(size_t)lane * p.pages_max + position / PAGE];
}

DEV u32 source_before(const Step& p, u32 lane, u32 start) {
  return start == 0 ? SOURCE_NONE : SOURCE_PAGE | page_of(p, lane, start - 1);
}

DEV void lay_row(const Step& p, u32 row) {
  p.tokens[row] = NONE;
  p.positions[row] = -1;
  p.lanes[row] = p.scratch_lane;
  p.row_entries[row] = NONE;
  p.sources[row] = SOURCE_NONE;
  if (p.inbox[ROWS] <= row) return;
  u32 index = p.inbox[p.inbox[ROW_ENTRIES_AT] + row];
  if (index == NONE) return;
  Entry entry = read_entry(p.inbox, index);
  u32 at = row - entry.row, start = start_of(p, entry);
  bool chained = entry.flags & CHAINED;
  u32 token = NONE;   // a held draft: it will be filled in
  if (chained && at == 0) token = p.lane_tokens[entry.lane];
  else if (at < entry.fed + entry.drafts - entry.held) token = p.inbox[entry.tokens + at - chained];
  p.tokens[row] = token;
  p.positions[row] = start + at;
  p.page_tokens[page_of(p, entry.lane, start + at) * PAGE + (start + at) % PAGE] = token;
  p.lanes[row] = entry.lane;
  p.row_entries[row] = index;
  p.sources[row] = at == 0 ? source_before(p, entry.lane, start) : row - 1;
}

DEV void lay_entry(const Step& p, u32 index) {
  p.spans[index] = make_uint2(0, 0);
  p.chain_tokens[index] = NONE;
  p.chain_positions[index] = -1;
  p.chain_lanes[index] = p.scratch_lane;
  p.chain_sources[index] = SOURCE_NONE;
  p.ends[index] = NONE;
  if (p.inbox[ENTRIES] <= index) return;
  Entry entry = read_entry(p.inbox, index);
  p.entries[index] = entry;
  p.spans[index] = make_uint2(entry.row, entry.fed + entry.drafts);
  p.ends[index] = entry.row + entry.fed - 1;   // `accept` moves it on where there are drafts
  if (entry.held == 0) return;
  // Guesses begin from the one own row.
  u32 start = start_of(p, entry);
  bool chained = entry.flags & CHAINED;
  p.chain_tokens[index] = chained ? p.lane_tokens[entry.lane] : p.inbox[entry.tokens];
  p.chain_positions[index] = start;
  p.chain_lanes[index] = entry.lane;
  p.chain_sources[index] = source_before(p, entry.lane, start);
}

// Changes of page tables: (lane, place, page) each. Before `lay_step`.
KERNEL patch_pages(const Step p) {
  wait_for_previous();
  let_next_start();
  const u32* patches = p.inbox + p.inbox[PATCHES_AT];
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < p.inbox[PATCHES];
       i += gridDim.x * blockDim.x) {
    p.pages[patches[i * 3] * p.pages_max + patches[i * 3 + 1]] = patches[i * 3 + 2];
  }
}

// grid x block covers rows_max, entries_max and choosers_max.
KERNEL lay_step(const Step p) {
  wait_for_previous();
  let_next_start();
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < p.rows_max) lay_row(p, i);
  if (i < p.entries_max) lay_entry(p, i);
  if (i < p.choosers_max) {
    p.chooser_rows[i] = i < p.inbox[CHOOSERS] ? p.inbox[p.inbox[CHOOSERS_AT] + i] : NONE;
  }
}

// A thread takes an entry. choices: of each row that chooses.
KERNEL accept(const Step p, const u32* choices) {
  wait_for_previous();
  let_next_start();
  accept_entry(p, choices, blockIdx.x * blockDim.x + threadIdx.x);
}

// out[i, :] = x[rows[i], :], both in blocks; zeros for rows that are not there.
// `block_rows` are those of x. grid: choosers; block: 128.
KERNEL gather_rows(const bf16* x, const u32* rows, bf16* out, int columns, int block_rows) {
  wait_for_previous();
  let_next_start();
  const u32 row = rows[blockIdx.x];
  for (int i = threadIdx.x; i < columns / 8; i += blockDim.x) {
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (row != NONE) eight = *(const uint4*)(x + block_place(row, i * 8, block_rows));
    *(uint4*)(out + block_place(blockIdx.x, i * 8, block_rows_of(gridDim.x))) = eight;
  }
}
