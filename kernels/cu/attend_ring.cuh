// What `attend_ring` does before it multiplies: a warp's ring, which is filled ahead from job to
// job with what the table of sequences names, and the turning of a job's rows.
#pragma once
#include "attend_few.cuh"
#include "wgmma.cuh"

#define PAGES_KNOWN WARP   // of a record
#define SLOTS 3            // of a ring
#define BARRIER_BYTES 128

// What is to be known of a sequence before its rows are read.
struct __align__(16) Record {
  uint2 span;              // first row and number of rows
  int rows;                // those that exist
  int start;               // position of the first row
  u32 line;                // of the page table
  u32 own_pages[2];        // pages of the first and of the last row
  u32 padding;
  u32 pages[PAGES_KNOWN];  // the first
};
static_assert(sizeof(Record) == 160, "`RECORD_WORDS` in `ops/attend/table.rs`");
#define WORDS 8            // of a record, before the pages
#define FIRST_BYTES (WORDS * 4)

// An attention of many sequences. `ops/attend.rs` has its twin.
struct Ring : Attend {
  const Record* records;   // of each sequence, the longest first
  u32 sequences;
  int rows_max;            // of a sequence
};

#ifdef HOPPER

// What a warp has in shared memory: a ring of slots, each for 64 keys or values, or for a job's
// rows as the product before left them, which come first.
template <int HEAD>
struct Room {
  static const int SLOT_BYTES = KEYS * HEAD * sizeof(bf16);
  unsigned char* slots;
  bf16* q;       // (16, HEAD)
  bf16* own;     // (2, rows_max, HEAD): keys and values of the rows themselves
  u64* full;     // of each slot
  u64* empty;

  MEMBER Room(unsigned char* memory, const Ring& p) {
    const int q_bytes = 16 * HEAD * sizeof(bf16), own_bytes = 2 * p.rows_max * HEAD * sizeof(bf16);
    const int ring_bytes = SLOTS * SLOT_BYTES;
    slots = memory + threadIdx.x / WARP * (ring_bytes + q_bytes + own_bytes + BARRIER_BYTES);
    q = (bf16*)(slots + ring_bytes), own = q + 16 * HEAD;
    full = (u64*)(slots + ring_bytes + q_bytes + own_bytes), empty = full + SLOTS;
  }
  MEMBER bf16* tile(int slot) const { return (bf16*)(slots + slot * SLOT_BYTES); }
  MEMBER float* raw(int slot) const {
    return (float*)(slots + slot * SLOT_BYTES + FIRST_BYTES);
  }
  MEMBER bf16* own_row(const Ring& p, int is_v, int row) const {
    return own + (is_v * p.rows_max + row) * HEAD;
  }
};

// The number of a warp's job after so many of the block's. Blocks are served to and fro, so that
// each has as much to read as any other.
DEV u32 job_number(int at) {
  return at * gridDim.x + (at % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
}

// The filling of a warp's ring, which is ahead of what the warp attends.
template <int HEAD>
struct Ahead {
  int at = threadIdx.x / WARP;   // the next job, among those of the block
  u32 next, next_kv_head;        // its sequence: as many as there are, or more, if there is none
  u32 words, next_pages;         // a lane's, of its record
  u32 sequence, kv_head;         // of the job at hand
  u32 first_row, line;
  int start, rows;
  u32 pages, more;               // a lane's: of 512 keys, and of 512 more
  int tile;                      // half tiles asked for; -1: not even the rows
  Stage<SLOTS> slot;

  // Asks for the next job's record.
  MEMBER void look(const Ring& p) {
    const int lane = threadIdx.x % WARP;
    const u32 number = job_number(at);
    at += blockDim.x / WARP;
    next = number / p.rope.kv_heads, next_kv_head = number - next * p.rope.kv_heads;
    if (p.sequences <= next) return;
    words = ((const u32*)(p.records + next))[lane % WORDS];
    next_pages = p.records[next].pages[lane];
  }
  MEMBER void begin(const Ring& p) {
    sequence = next, kv_head = next_kv_head, pages = next_pages, tile = -1;
    if (!has_job(p)) return;
    auto word = [&](int which) { return __shfl_sync(FULL, words, which); };
    first_row = word(0), rows = word(2), start = word(3), line = word(4);
    more = page_at(p, PAGES_KNOWN + threadIdx.x % WARP);
    look(p);
  }
  MEMBER bool has_job(const Ring& p) const { return sequence < p.sequences; }
  MEMBER bool has_tiles() const { return tile / 2 * KEYS < start + rows; }
  MEMBER u32 page_at(const Ring& p, int place) const {
    const u32* pages = p.rope.pages + (size_t)line * p.rope.pages_max;
    return place * PAGE < start ? pages[place] : 0;
  }

  // The job's record and rows, and the turns of their positions. A row's queries that share a kv
  // head are one run. One lane asks, as for all.
  MEMBER void ask_rows(const Room<HEAD>& room, const Ring& p, int slot) const {
    u64* full = room.full + slot;
    const u32 head = HEAD * sizeof(float), heads = p.rope.heads + 2 * p.rope.kv_heads;
    barrier_expect(full, FIRST_BYTES + rows * (p.group + 3) * head);
    copy_bulk(room.tile(slot), p.records + sequence, FIRST_BYTES, full);
    const float* from = p.rope.qkv + (size_t)first_row * heads * HEAD;
    float* to = room.raw(slot);
#pragma unroll 1
    for (int row = 0; row < rows; ++row, from += heads * HEAD) {
      const float* own = from + (p.rope.heads + kv_head) * HEAD;
      copy_bulk(to, from + kv_head * p.group * HEAD, p.group * head, full);
      to += p.group * HEAD;
      copy_bulk(to, own, head, full);
      to += HEAD;
      copy_bulk(to, own + p.rope.kv_heads * HEAD, head, full);
      to += HEAD;
    }
    const size_t place = max(start - p.rope.behind, 0);
    if (0 < rows) copy_bulk(to, (const float*)p.rope.turns + place * HEAD, rows * head, full);
  }

  // Pages of the tile that were there before this step.
  MEMBER void ask_tile(const Room<HEAD>& room, const Ring& p) const {
    const int is_v = tile % 2, key = tile / 2 * KEYS, count = KEYS / PAGE;
    const int there = min(max((start - key + PAGE - 1) / PAGE, 0), count);
    const u32 bytes = PAGE * HEAD * sizeof(bf16);
    u32 its[count];
#pragma unroll
    for (int i = 0; i < count; ++i) its[i] = __shfl_sync(FULL, pages, key / PAGE % WARP + i);
    if (threadIdx.x % WARP != 0) return;
    u64* full = room.full + slot.at;
    barrier_wait(room.empty + slot.at, slot.round ^ 1);   // the first round is free at once
    barrier_expect(full, there * bytes);
    bf16* to = room.tile(slot.at);
    const bf16* from = p.rope.layer + slot_of(p.rope, 0, is_v, kv_head, 0, HEAD);
    const size_t page_values = (size_t)2 * p.rope.kv_heads * PAGE * HEAD;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const bf16* page = from + its[i] * page_values;
      copy_bulk_if(i < there, to + i * PAGE * HEAD, page, bytes, full);
    }
  }

  MEMBER void after_tile(const Ring& p) {
    ++tile;
    slot.next();
    const int key = tile / 2 * KEYS;
    if (tile % 2 == 0 && key % (WARP * PAGE) == 0) {
      pages = more;
      more = page_at(p, key / PAGE + WARP + threadIdx.x % WARP);
    }
  }

  // Fills the next slot, which was given back.
  MEMBER void ask(const Room<HEAD>& room, const Ring& p) {
    if (!has_job(p)) return;
    if (tile < 0) {
      if (threadIdx.x % WARP == 0) {
        barrier_wait(room.empty + slot.at, slot.round ^ 1);
        ask_rows(room, p, slot.at);
      }
      ++tile;
      slot.next();
    } else {
      ask_tile(room, p);
      after_tile(p);
    }
    if (!has_tiles()) begin(p);
  }

  // Fills all slots. The first job's rows take the first, but have to be waited for. Everything
  // before reads what earlier kernels than the last one wrote.
  MEMBER void ask_first(const Room<HEAD>& room, const Ring& p) {
    look(p);
    begin(p);
    if (has_job(p)) {
      tile = 0, slot.at = 1;
#pragma unroll 1
      while (slot.at != 0 && has_tiles()) {
        ask_tile(room, p);
        after_tile(p);
      }
    }
    wait_for_previous();
    let_next_start();
    if (!has_job(p)) return;
    if (threadIdx.x % WARP == 0) ask_rows(room, p, 0);
    if (has_tiles()) return;
    begin(p);
#pragma unroll 1
    while (slot.at != 0 && has_job(p)) ask(room, p);
  }
};

// A sequence's rows and a kv head.
struct Job {
  uint2 span;
  int rows;
  int start;
  int keys;
  u32 own_pages[2];
  u32 kv_head;

  // Keys that a packed row sees.
  MEMBER int end_of(int packed, int group) const {
    int row = (u32)packed / (u32)group;
    return row < rows ? start + row + 1 : 0;
  }
  // The page of one of its rows.
  MEMBER u32 page_of(int row) const {
    return (start + row) / PAGE == start / PAGE ? own_pages[0] : own_pages[1];
  }
};

// Behind the rows as they came stand the turns of their positions.
template <int HEAD>
DEV const float* turns_of(const float* raw, const Ring& p, const Job& job, int row) {
  const int first = max(job.start - p.rope.behind, 0);
  const int place = job.start + row - p.rope.behind - first;
  return raw + (job.rows * (p.group + 2) + place) * HEAD;
}

// Turns the queries that share this kv head, and the rows' own keys and values, which go to their
// pages too. A part of a warp takes a head, a lane two values of each half of it.
template <int HEAD>
DEV void turn(const Room<HEAD>& room, const float* raw, const Ring& p, const Job& job) {
  const int LANES = HEAD / 4, AT_ONCE = 2;
  const int part = threadIdx.x % WARP / LANES, value = threadIdx.x % LANES * 2;
  const int heads = p.group + 2;
  const float* first_raw = raw;
#pragma unroll 1
  for (int row = 0; row < job.span.y; ++row, raw += heads * HEAD) {
    const int position = job.start + row;
    const bool is_there = row < job.rows && p.rope.behind <= position;
    float4 turns = {};
    if (is_there) turns = *(const float4*)(turns_of<HEAD>(first_raw, p, job, row) + value * 2);
#pragma unroll 1
    for (int first = part; first < heads; first += AT_ONCE * (WARP / LANES)) {
      float2 low[AT_ONCE], high[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const float* from = raw + min(first + i * (WARP / LANES), heads - 1) * HEAD + value;
        low[i] = *(const float2*)from, high[i] = *(const float2*)(from + HEAD / 2);
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const int within = first + i * (WARP / LANES), is_v = within - p.group;
        if (heads <= within) break;
        u32 pair[2] = {};
        if (is_there) {
          if (p.rope.bias != 0) {
            int head = job.kv_head * p.group + within;
            if (0 <= is_v) head = p.rope.heads + is_v * p.rope.kv_heads + job.kv_head;
            const float* bias = p.rope.bias + head * HEAD + value;
            low[i].x = __fadd_rn(low[i].x, bias[0]), low[i].y = __fadd_rn(low[i].y, bias[1]);
            bias += HEAD / 2;
            high[i].x = __fadd_rn(high[i].x, bias[0]), high[i].y = __fadd_rn(high[i].y, bias[1]);
          }
          if (is_v != 1) {
            turn_pair(low[i].x, high[i].x, make_float2(turns.x, turns.y));
            turn_pair(low[i].y, high[i].y, make_float2(turns.z, turns.w));
          }
          pair[0] = pack_bf16(low[i].x, low[i].y), pair[1] = pack_bf16(high[i].x, high[i].y);
        }
        if (is_v < 0) {
          const int packed = row * p.group + within;
          *(u32*)(chunk_at<HEAD>(room.q, packed, value / 8) + value % 8) = pair[0];
          *(u32*)(chunk_at<HEAD>(room.q, packed, value / 8 + HEAD / 16) + value % 8) = pair[1];
          continue;
        }
        u32* own = (u32*)(room.own_row(p, is_v, row) + value);
        own[0] = pair[0], own[HEAD / 4] = pair[1];
        // A slot before the first that exists is read, too, with a weight of zero.
        if (job.rows <= row) continue;
        bf16* page = p.rope.layer;
        page += slot_of(p.rope, job.page_of(row), is_v, job.kv_head, position, HEAD);
        *(u32*)(page + within_slot(position, value)) = pair[0];
        *(u32*)(page + within_slot(position, value + HEAD / 2)) = pair[1];
      }
    }
  }
}

// The same where heads are normed, in the order of their sums.
template <int HEAD>
DEV void turn_normed(const Room<HEAD>& room, const float* raw, const Ring& p, const Job& job) {
  const int PAIRS = HEAD / 64, lane = threadIdx.x % WARP, heads = p.group + 2;
  const float* first_raw = raw;
#pragma unroll 1
  for (int row = 0; row < job.span.y; ++row) {
    const int position = job.start + row;
    const bool is_there = row < job.rows && p.rope.behind <= position;
#pragma unroll 1
    for (int within = 0; within < heads; ++within, raw += HEAD) {
      const int is_v = within - p.group;
      int head = job.kv_head * p.group + within;
      if (0 <= is_v) head = p.rope.heads + is_v * p.rope.kv_heads + job.kv_head;
      Head<PAIRS> turned = {};
      if (is_there) {
        Raw<PAIRS> from;
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) {
          from.values.low[i] = raw[i * WARP + lane];
          from.values.high[i] = raw[i * WARP + lane + HEAD / 2];
          const float2* turns = (const float2*)turns_of<HEAD>(first_raw, p, job, row);
          from.turns[i] = turns[i * WARP + lane];
        }
        turned = turned_head(p.rope, from, head);
      }
      if (is_v < 0) {
        const int packed = row * p.group + within;
        turned.store(room.q + packed * HEAD,
                     [&](int at) { return (at / 8 ^ packed % 8) * 8 + at % 8; });
        continue;
      }
      turned.store(room.own_row(p, is_v, row));
      if (job.rows <= row) continue;
      bf16* page = p.rope.layer;
      page += slot_of(p.rope, job.page_of(row), is_v, job.kv_head, position, HEAD);
      turned.store(page, [&](int at) { return within_slot(position, at); });
    }
  }
}

#endif
