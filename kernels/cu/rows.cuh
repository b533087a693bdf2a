// One step as the device sees it: entries, and what a row knows. `ops/rows.rs` has the twins.
#pragma once
#include "base.cuh"

#define CHAINED 1u   // starts where the lane's last entry ended, with the token that it chose
#define CHOOSES 2u   // a token is chosen after its last own row and after each draft that is kept

// One sequence's rows in a step: `fed` own tokens, then `drafts`, of which the last `held` are
// made here.
struct Entry {
  u32 lane;
  u32 row;         // its first row in the step
  u32 start;       // position of that row, unless chained
  u32 fed;
  u32 drafts;
  u32 held;
  u32 flags;
  u32 choice;      // its first place among the rows that choose
  u32 outputs_start;
  u32 tokens;      // where the inbox has the tokens of its rows that the host knows
  u32 wish;        // where the inbox has its sampling
};

// Where the hidden state of the token before a row is: a row of this step, or what a page keeps of
// its last token that stands.
#define SOURCE_PAGE 0x80000000u
#define SOURCE_NONE NONE

// How steps come from the host and their results go there: by turns one of two boxes in its memory.
// Words stand behind a line of four, the first of which is the number of lines, that one counted,
// or 0 if the words were copied to the inbox.
struct Mail {
  const u32* words[2];
  u32* results[2];   // of each entry: number of tokens, tokens; `result_words` in all
  u32* laid;         // how many steps were laid: after an even number the first box is next
};

// What stays on the device from step to step, and what a step is laid out into.
struct Step {
  u32* inbox;            // header, then what it points to
  Entry* entries;
  u32* lane_tokens;      // of each lane: the token chosen last
  u32* lane_lens;        // of each lane: rows whose keys and values stand
  u32* pages;            // (lanes, pages_max)
  u32* page_tokens;      // (pages, 16): the token whose row stands in each slot
  u32* tokens;           // of each row
  i32* positions;        // of each row, negative if it does not exist
  u32* lanes;            // of each row
  u32* row_entries;      // of each row
  u32* sources;          // of each row
  u32* chooser_rows;     // of each row that chooses: its row
  uint2* spans;          // of each entry: first row, rows
  u32* chain_tokens;     // of each entry: the token of its next guessed row
  i32* chain_positions;  // of each entry, negative if it guesses nothing (more)
  u32* chain_lanes;
  u32* chain_sources;
  u32* ends;             // of each entry: its last row that stands
  Mail mail;
  const float* simulated;  // if not null: how likely the draft at each place is kept
  int entries_max;       // entries, rows and choosers beyond those of the inbox are laid out as
  int rows_max;          // not existing, up to these
  int choosers_max;
  int pages_max;
  int scratch_lane;      // for rows that do not exist
  int result_words;
};

// Words of the header: numbers and places in the inbox; how many steps' rows wait already.
enum Header {
  ENTRIES, ROWS, CHOOSERS, PATCHES, ENTRIES_AT, ROW_ENTRIES_AT, CHOOSERS_AT, PATCHES_AT, DEFERRED
};

// Where the results of the step that was laid last go.
DEV u32* results_of(const Step& p) {
  return *p.mail.laid % 2 != 0 ? p.mail.results[0] : p.mail.results[1];
}

// Even in [0, 1): for pretended acceptance, the same in every run.
DEV float chance(u32 lane, u32 position) {
  u64 mixed = ((u64)lane << 32 | position) * 0x9e3779b97f4a7c15ull;
  mixed = (mixed ^ mixed >> 31) * 0xbf58476d1ce4e5b9ull;
  return (mixed >> 40) * 0x1p-24f;
}

// Keeps the drafts that equal the choice before them, and the one choice after them; moves the
// lane on. choices: of each row that chooses.
DEV void accept_entry(const Step& p, const u32* choices, u32 index) {
  if (p.entries_max <= index || p.inbox[ENTRIES] <= index) return;
  const Entry entry = p.entries[index];
  const u32 last = entry.row + entry.fed - 1;
  const u32 start = p.positions[entry.row];
  u32* result = results_of(p) + (size_t)index * p.result_words;
  u32 kept = 0;
  if (entry.flags & CHOOSES) {
    const u32* chosen = choices + entry.choice;
    auto keeps = [&](u32 at) {
      if (p.simulated == 0) return p.tokens[last + 1 + at] == chosen[at];
      return chance(entry.lane, start + at) < p.simulated[at];
    };
    while (kept < entry.drafts && keeps(kept)) ++kept;
    result[0] = kept + 1;
    for (u32 i = 0; i <= kept; ++i) result[1 + i] = chosen[i];
    p.lane_tokens[entry.lane] = chosen[kept];
  } else {
    result[0] = 0;
  }
  p.lane_lens[entry.lane] = start + entry.fed + kept;
  p.ends[index] = last + kept;
}
