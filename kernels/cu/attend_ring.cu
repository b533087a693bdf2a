// Attention of a few rows of each sequence over its pages, for many sequences, on Hopper: each
// page is read once for all rows, up to 16 packed ones.
//
// Blocks stay, and each of their warps works alone: it takes one job, a sequence and kv head, after
// the other, turns the job's rows, then attends tile after tile, scores and weights in registers.
// What it needs comes by bulk copies through a ring that is its own and is filled ahead from job to
// job: the rows, then tiles of keys and of values in turns, whole pages. All that is to be known of
// a job is one record of a table that is laid once a step, the longest sequences first. The
// arithmetic is that of `attend_few`, see attend.cuh.
#define THREAD_ANEW
#include "attend_ring.cuh"

// What the table is made from.
struct Lay {
  const uint2* spans;
  const i32* positions;
  const u32* lanes;
  const u32* pages;
  Record* records;
  int sequences;
  int pages_max;
};

// Positions up to and with the last row that exists: those rows come first.
DEV int keys_of(const Lay& p, int sequence) {
  const uint2 span = p.spans[sequence];
  for (int i = span.y - 1; 0 <= i; --i) {
    i32 position = p.positions[span.x + i];
    if (0 <= position) return position + 1;
  }
  return 0;
}

// Lays the table: a warp takes a sequence, and counts those that come before it.
// grid: sequences / 8, rounded up; block: 256.
KERNEL lay_records(const Lay p) {
  __shared__ int theirs[256];
  wait_for_previous();
  let_next_start();
  const int lane = threadIdx.x % WARP, at = blockIdx.x * 8 + threadIdx.x / WARP;
  const bool is_there = at < p.sequences;
  const uint2 span = is_there ? p.spans[at] : make_uint2(0, 0);
  const i32 position = lane < span.y ? p.positions[span.x + lane] : -1;
  const int rows = __popc(__ballot_sync(FULL, 0 <= position));
  const int start = __shfl_sync(FULL, max(position, 0), 0), keys = start + rows;
  const u32 line = 0 < span.y ? p.lanes[span.x] : 0;
  const u32* pages = p.pages + (size_t)line * p.pages_max;
  const u32 page = lane * PAGE < keys ? pages[lane] : 0;
  const u32 own_page = lane < rows ? pages[position / PAGE] : 0;
  int before = 0;
  for (int first = 0; first < p.sequences; first += 256) {
    const int other = first + threadIdx.x;
    __syncthreads();
    theirs[threadIdx.x] = other < p.sequences ? keys_of(p, other) : -1;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 256; i += WARP) {
      int one = theirs[i + lane];
      before += __popc(__ballot_sync(FULL, keys < one || (one == keys && first + i + lane < at)));
    }
  }
  if (!is_there) return;
  Record& to = p.records[before];
  const u32 last_page = __shfl_sync(FULL, own_page, max(rows - 1, 0));
  if (lane == 0) {
    to.span = span, to.rows = rows, to.start = start, to.line = line;
    to.own_pages[0] = own_page, to.own_pages[1] = last_page;
  }
  to.pages[lane] = page;
}

#ifdef HOPPER

typedef u32 Fragment[4];

// Puts the rows' own keys or values among a tile's that came from pages, and zeros behind them up
// to `end`: weights of zero do not make nothing of what is not a number.
template <int HEAD>
DEV void patch(bf16* tile, const bf16* own, const Job& job, int key0, int end) {
#pragma unroll 1
  for (int i = threadIdx.x % WARP; i < (end - job.start) * (HEAD / 8); i += WARP) {
    int row = i / (HEAD / 8), chunk = i % (HEAD / 8), place = job.start + row - key0;
    if (place < 0) continue;
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (row < job.rows) eight = ((const uint4*)(own + row * HEAD))[chunk];
    bf16* to = tile + place / PAGE * PAGE * HEAD + place % PAGE * 64;
    *(uint4*)(to + within_slot(place, chunk * 8)) = eight;
  }
  bulk_fence();
  __syncwarp();
}

DEV void load_tiles(u32 r[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
DEV void load_tiles_transposed(u32 r[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

// Where a lane's chunk of a page in a tile is, `pairs` pairs of chunks on from `first`, which is
// among the first two: the lines are a power of two long, so chunks are turned in the address.
template <int HEAD> DEV u32 chunk_of(u32 first, int page, int pairs) {
  return (first ^ pairs % 4 * 32) + (page * PAGE * HEAD + pairs / 4 * PAGE * 64) * sizeof(bf16);
}

template <int HEAD>
DEV void score(float (&scores)[8][4], const bf16* q, const bf16* keys) {
  const int lane = thread() % WARP, key = lane / 16 * 8 + lane % 8;
  const u32 first = shared_address(keys + key * 64 + within_slot(key, lane / 8 % 2 * 8));
#pragma unroll
  for (int i = 0; i < 32; ++i) scores[i / 4][i % 4] = 0.0f;
#pragma unroll
  for (int step = 0; step < HEAD / 16; ++step) {
    u32 a[4];
    load_tiles(a, chunk_at<HEAD>((bf16*)q, lane % 16, step * 2 + lane / 16));
#pragma unroll
    for (int page = 0; page < KEYS / PAGE; ++page) {
      u32 b[4];
      load_tiles(b, chunk_of<HEAD>(first, page, step));
      mma(scores[page * 2], a, b[0], b[1]);
      mma(scores[page * 2 + 1], a, b[2], b[3]);
    }
  }
}

// Minus infinity where a row does not see a key, and the largest score so far of both rows.
DEV void mask(float (&scores)[8][4], float (&most)[2], const int (&ends)[2], int key0,
              const Ring& p) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    hide(scores, half, ends[half], key0, p.rope.behind);
#pragma unroll
    for (int i = 0; i < 16; ++i) most[half] = fmaxf(most[half], scores[i / 2][half * 2 + i % 2]);
    most[half] = fmaxf(most[half], __shfl_xor_sync(FULL, most[half], 1));
    most[half] = fmaxf(most[half], __shfl_xor_sync(FULL, most[half], 2));
  }
}

// Scores to weights, as the tensor cores take them; the part so far goes to the new maximum.
template <int HEAD>
DEV void weigh(const float (&scores)[8][4], Fragment (&weights)[KEYS / 16],
               Part<HEAD, 1, 1>& part, const float (&most)[2], float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float base = base_of(most[half], scale);
    part.raise(0, half, most[half], scale);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float* pair = &scores[i][half * 2];
      weights[i / 2][i % 2 * 2 + half] =
          pack_bf16(weight_of(pair[0], scale, base), weight_of(pair[1], scale, base));
    }
  }
}

template <int HEAD>
DEV void add_values(Part<HEAD, 1, 1>& part, const Fragment (&weights)[KEYS / 16],
                    const bf16* values) {
  const int lane = thread() % WARP, key = lane / 8 % 2 * 8 + lane % 8;
  const u32 first = shared_address(values + key * 64 + within_slot(key, lane / 16 * 8));
#pragma unroll
  for (int step = 0; step < KEYS / 16; ++step) {
    mma(part.weights[0], weights[step], ONES, ONES);
#pragma unroll
    for (int pair = 0; pair < HEAD / 16; ++pair) {
      u32 b[4];
      load_tiles_transposed(b, chunk_of<HEAD>(first, step, pair));
      mma(part.sums[0][pair * 2], weights[step], b[0], b[1]);
      mma(part.sums[0][pair * 2 + 1], weights[step], b[2], b[3]);
    }
  }
}

// What is divided by the same again and again: the steps of a correctly rounded division, of which
// half are done once. For numbers near neither end of the range.
struct Divisor {
  float by;
  float one_by;

  MEMBER Divisor(float by) : by(by) {
    float near = reciprocal_fast(by);
    one_by = __fmaf_rn(near, __fmaf_rn(-by, near, 1.0f), near);
  }
  MEMBER float of(float sum) const {
    float quotient = __fmul_rn(sum, one_by);
    quotient = __fmaf_rn(one_by, __fmaf_rn(-by, quotient, sum), quotient);
    return __fmaf_rn(one_by, __fmaf_rn(-by, quotient, sum), quotient);
  }
};

template <int HEAD>
DEV void store(const Ring& p, const Part<HEAD, 1, 1>& total, const Job& job) {
  const int lane = thread() % WARP, columns = HEAD / 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + lane / 4;
    if (job.span.y * p.group <= row) continue;
    const float weights = total.weights[0][half * 2];
    float sums[columns * 2], least = 1.0f, most = 1.0f;
#pragma unroll
    for (int i = 0; i < columns * 2; ++i) {
      sums[i] = total.sums[0][i / 2][half * 2 + i % 2];
      least = fminf(least, fabsf(sums[i])), most = fmaxf(most, fabsf(sums[i]));
    }
    if (0x1p-80f < least && most < 0x1p80f && 0x1p-20f < weights && weights < 0x1p40f) {
      const Divisor divisor(weights);
#pragma unroll
      for (int i = 0; i < columns * 2; ++i) sums[i] = divisor.of(sums[i]);
    } else {
#pragma unroll
      for (int i = 0; i < columns * 2; ++i) sums[i] = divide(sums[i], weights);
    }
    bf16* out = out_of<HEAD>(p, job.span.x, job.kv_head, row, lane % 4 * 2);
#pragma unroll
    for (int i = 0; i < columns; ++i) {
      u32* to = (u32*)(out + i % 8 * 64 + (size_t)(i / 8) * p.block_rows * 512);
      *to = pack_bf16(sums[i * 2], sums[i * 2 + 1]);
    }
  }
}

// grid: blocks; block: some warps; shared: Room of each.
template <int HEAD>
DEV void attend_ring(const Ring& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int lane = threadIdx.x % WARP;
  const Room<HEAD> room(memory, p);
  if (lane < SLOTS) {
    barrier_init(room.full + lane, 1);
    barrier_init(room.empty + lane, WARP);
  }
  barrier_fence();
  __syncwarp();
  Ahead<HEAD> ahead;
  ahead.ask_first(room, p);
  Stage<SLOTS> slot;
  auto wait_slot = [&] {
    barrier_wait(room.full + slot.at, slot.round);
    __syncwarp();
  };
  auto free_slot = [&] {
    barrier_arrive(room.empty + slot.at);
    slot.next();
    ahead.ask(room, p);
  };
  for (int at = threadIdx.x / WARP;; at += blockDim.x / WARP) {
    const u32 number = job_number(at), sequence = number / p.rope.kv_heads;
    if (p.sequences <= sequence) return;
    wait_slot();
    Job job;
    const Record& record = *(const Record*)room.tile(slot.at);
    job.span = record.span, job.rows = record.rows, job.start = record.start;
    job.own_pages[0] = record.own_pages[0], job.own_pages[1] = record.own_pages[1];
    job.keys = job.start + job.rows, job.kv_head = number - sequence * p.rope.kv_heads;
    for (int i = job.span.y * p.group * (HEAD / 8) + lane; i < 16 * (HEAD / 8); i += WARP) {
      ((uint4*)room.q)[i] = make_uint4(0, 0, 0, 0);
    }
    const bool is_normed = p.rope.q_norm != 0 || p.rope.k_norm != 0;
    if (is_normed) turn_normed(room, room.raw(slot.at), p, job);
    else turn(room, room.raw(slot.at), p, job);
    __syncwarp();
    free_slot();
    const int ends[2] = {job.end_of(lane / 4, p.group), job.end_of(lane / 4 + 8, p.group)};
    Part<HEAD, 1, 1> part, total;
    part.clear();
    total.clear();
    for (int key = 0; key < job.keys; key += KEYS) {
      const bool is_new = job.start < key + KEYS;
      wait_slot();
      if (is_new) {
        const int end = min(job.keys, key + KEYS);
        patch<HEAD>(room.tile(slot.at), room.own_row(p, 0, 0), job, key, end);
      }
      float scores[8][4];
      score<HEAD>(scores, room.q, room.tile(slot.at));
      float most[2] = {part.most[0][0], part.most[0][1]};
      mask(scores, most, ends, key, p);
      free_slot();
      Fragment weights[KEYS / 16];
      weigh(scores, weights, part, most, p.scale_log2);
      wait_slot();
      if (is_new) patch<HEAD>(room.tile(slot.at), room.own_row(p, 1, 0), job, key, key + KEYS);
      add_values(part, weights, room.tile(slot.at));
      free_slot();
      if ((key + KEYS) % CHUNK == 0 || job.keys <= key + KEYS) {
        total.add(part, p.scale_log2);
        part.clear();
      }
    }
    if (0 < job.keys) store(p, total, job);
  }
}
#else
template <int HEAD> DEV void attend_ring(const Ring& p) {}
#endif

KERNEL __launch_bounds__(8 * WARP, 1) attend_ring_64(const Ring p) { attend_ring<64>(p); }
KERNEL __launch_bounds__(8 * WARP, 1) attend_ring_128(const Ring p) { attend_ring<128>(p); }
