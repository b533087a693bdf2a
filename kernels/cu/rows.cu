// Lays a step out before the model runs, and takes stock after it.
#include "rows.cuh"

#define ENTRY_WORDS (sizeof(Entry) / 4)
#define FIRST_LINES 256   // asked for before it is known how many there are
#define LINES_AT_ONCE 4   // loads of a thread under way

// The host's memory, as it is now.
DEV uint4 read_line(const u32* words, u32 line) {
  uint4 it;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(it.x), "=r"(it.y), "=r"(it.z), "=r"(it.w)
               : "l"(words + line * 4));
  return it;
}

// Takes the words of the next step over into the inbox and gives where they can be read: near, if
// they are few. Every thread must call it, at least FIRST_LINES of them.
DEV const u32* take_words(const Step& p, uint4 (&near)[FIRST_LINES]) {
  uint4* inbox = (uint4*)p.inbox - 1;   // without the line before the words
  const u32 at = threadIdx.x;
  uint4 even, odd;
  if (at < FIRST_LINES) {
    // A way to the host takes long, so both boxes are asked while it is found out which it is.
    even = read_line(p.mail.words[0], at), odd = read_line(p.mail.words[1], at);
  }
  const bool is_odd = *p.mail.laid % 2 != 0;
  if (at < FIRST_LINES) near[at] = is_odd ? odd : even;
  __syncthreads();
  const u32 lines = near[0].x;
  if (at != 0 && at < FIRST_LINES && at < lines) inbox[at] = near[at];
  const u32* from = is_odd ? p.mail.words[1] : p.mail.words[0];
  for (u32 first = FIRST_LINES + at; first < lines; first += blockDim.x * LINES_AT_ONCE) {
    uint4 some[LINES_AT_ONCE];
#pragma unroll
    for (u32 i = 0; i < LINES_AT_ONCE; ++i) {
      if (first + i * blockDim.x < lines) some[i] = read_line(from, first + i * blockDim.x);
    }
#pragma unroll
    for (u32 i = 0; i < LINES_AT_ONCE; ++i) {
      if (first + i * blockDim.x < lines) inbox[first + i * blockDim.x] = some[i];
    }
  }
  if (at == 0) ++*p.mail.laid;
  __syncthreads();
  return lines != 0 && lines <= FIRST_LINES ? (const u32*)(near + 1) : p.inbox;
}

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

DEV void lay_row(const Step& p, const u32* inbox, u32 row) {
  p.tokens[row] = NONE;
  p.positions[row] = -1;
  p.lanes[row] = p.scratch_lane;
  p.row_entries[row] = NONE;
  p.sources[row] = SOURCE_NONE;
  if (inbox[ROWS] <= row) return;
  u32 index = inbox[inbox[ROW_ENTRIES_AT] + row];
  if (index == NONE) return;
  Entry entry = read_entry(inbox, index);
  u32 at = row - entry.row, start = start_of(p, entry);
  bool chained = entry.flags & CHAINED;
  u32 token = NONE;   // a held draft: it will be filled in
  if (chained && at == 0) token = p.lane_tokens[entry.lane];
  else if (at < entry.fed + entry.drafts - entry.held) token = inbox[entry.tokens + at - chained];
  p.tokens[row] = token;
  p.positions[row] = start + at;
  p.page_tokens[page_of(p, entry.lane, start + at) * PAGE + (start + at) % PAGE] = token;
  p.lanes[row] = entry.lane;
  p.row_entries[row] = index;
  p.sources[row] = at == 0 ? source_before(p, entry.lane, start) : row - 1;
}

DEV void lay_entry(const Step& p, const u32* inbox, u32 index) {
  p.spans[index] = make_uint2(0, 0);
  p.chain_tokens[index] = NONE;
  p.chain_positions[index] = -1;
  p.chain_lanes[index] = p.scratch_lane;
  p.chain_sources[index] = SOURCE_NONE;
  p.ends[index] = NONE;
  if (inbox[ENTRIES] <= index) return;
  Entry entry = read_entry(inbox, index);
  p.entries[index] = entry;
  p.spans[index] = make_uint2(entry.row, entry.fed + entry.drafts);
  p.ends[index] = entry.row + entry.fed - 1;   // `accept` moves it on where there are drafts
  if (entry.held == 0) return;
  // Guesses begin from the one own row.
  u32 start = start_of(p, entry);
  bool chained = entry.flags & CHAINED;
  p.chain_tokens[index] = chained ? p.lane_tokens[entry.lane] : inbox[entry.tokens];
  p.chain_positions[index] = start;
  p.chain_lanes[index] = entry.lane;
  p.chain_sources[index] = source_before(p, entry.lane, start);
}

// Changes of page tables: (lane, place, page) each.
DEV void patch_pages(const Step& p, const u32* inbox) {
  const u32* patches = inbox + inbox[PATCHES_AT];
  for (u32 i = threadIdx.x; i < inbox[PATCHES]; i += blockDim.x) {
    p.pages[patches[i * 3] * p.pages_max + patches[i * 3 + 1]] = patches[i * 3 + 2];
  }
}

// Takes over what the host sent and lays it out. grid: one block, of FIRST_LINES threads or more.
KERNEL __launch_bounds__(1024) lay_step(const Step p) {
  __shared__ uint4 near[FIRST_LINES];
  wait_for_previous();
  let_next_start();
  const u32* inbox = take_words(p, near);
  patch_pages(p, inbox);
  __syncthreads();
  for (u32 row = threadIdx.x; row < p.rows_max; row += blockDim.x) lay_row(p, inbox, row);
  for (u32 i = threadIdx.x; i < p.entries_max; i += blockDim.x) lay_entry(p, inbox, i);
  for (u32 i = threadIdx.x; i < p.choosers_max; i += blockDim.x) {
    p.chooser_rows[i] = i < inbox[CHOOSERS] ? inbox[inbox[CHOOSERS_AT] + i] : NONE;
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
