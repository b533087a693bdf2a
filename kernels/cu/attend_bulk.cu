// Attention of a few rows of each sequence over its pages on Hopper, where all blocks fit the card
// at once, two a multiprocessor: a block takes a chunk in one go, as in `attend_chunk`.
//
// Keys and values come by bulk copies, whole pages, through a ring of tiles, and are asked for
// before the product before has ended: most of a chunk at once, the rest where keys were as soon as
// they are scored. Where several blocks share a sequence, the last one merges.
#include "attend_chunk.cuh"
#include "wgmma.cuh"

#ifdef HOPPER

// Values of a head: of smaller ones two blocks of `attend_chunk` fit a multiprocessor as well.
static const int HEAD = 128;
// Tiles of a block's ring: so many that two blocks fit a multiprocessor.
static const int SLOTS = 6;

struct Rooms {
  bf16 tiles[SLOTS][KEYS * HEAD];
  bf16 q[16 * HEAD];
  bf16 own[2][ROWS_MAX * HEAD];   // keys and values of the rows themselves
  bf16 weights[16 * CHUNK];
  float most[WARPS][16];
  u64 full[SLOTS];
};

// A block's chunks, and its tiles in the order in which it reads them: of each chunk the keys, then
// the values. All chunks but the last have eight.
struct Order {
  int first, blocks;   // its first chunk, and how many on the next is
  int tiles;           // in all

  MEMBER Order(const Text& text, int first, int blocks) : first(first), blocks(blocks) {
    const int mine = (text.chunks - first + blocks - 1) / blocks;
    tiles = mine <= 0 ? 0 : (mine - 1) * 2 * TILE_COUNT + 2 * tiles_of(text, mine - 1);
  }
  // The position at which chunk number `at` begins.
  MEMBER int key_of(int at) const { return (first + at * blocks) * CHUNK; }
  // Tiles of its keys.
  MEMBER int tiles_of(const Text& text, int at) const {
    return min((text.keys - key_of(at) + KEYS - 1) / KEYS, TILE_COUNT);
  }
};

// A lane's page of chunk number `at`, half a warp, or of the next one.
DEV u32 page_of(const Text& text, const Order& order, int at) {
  const int lane = threadIdx.x % WARP, count = CHUNK / PAGE;
  const int place = order.key_of(at + lane / count) / PAGE + lane % count;
  return place * PAGE < text.start ? text.pages[place] : 0;
}

// Asks for the tiles with these numbers, up to as many as there are slots, of chunk number `at` and
// the one after it. One warp calls it.
DEV void ask(Rooms& s, const Attend& p, const Text& text, const Order& order, u32 pages,
             int at, int begin, int end) {
  const int count = KEYS / PAGE, lane = threadIdx.x % WARP;
  const int number = begin + lane / count, page = lane % count;
  const int later = number / (2 * TILE_COUNT) - at, place = number % (2 * TILE_COUNT);
  const int tiles = order.tiles_of(text, at + later);
  const int is_v = tiles <= place, tile = is_v ? place - tiles : place;
  const u32 its_page = __shfl_sync(FULL, pages, later * (CHUNK / PAGE) + tile * count + page);
  if (min(end, order.tiles) <= number) return;
  const u32 bytes = PAGE * HEAD * sizeof(bf16);
  const int key = order.key_of(at + later) + tile * KEYS;
  const int there = min(max((text.start - key + PAGE - 1) / PAGE, 0), count);
  u64* full = s.full + number % SLOTS;
  if (page == 0) barrier_expect(full, there * bytes);
  if (there <= page) return;
  const bf16* from = p.rope.layer + slot_of(p.rope, its_page, is_v, blockIdx.y, 0, HEAD);
  copy_bulk(s.tiles[number % SLOTS] + page * PAGE * HEAD, from, bytes, full);
}

// Where a chunk of 8 values of a key is in a tile.
DEV bf16* tile_at(bf16* tile, int key, int chunk) {
  return tile + key / PAGE * PAGE * HEAD + key % PAGE * 64 + within_slot(key, chunk * 8);
}

// Waits for tile `number`.
DEV bf16* tile_of(Rooms& s, int number) {
  barrier_wait(s.full + number % SLOTS, number / SLOTS % 2);
  return s.tiles[number % SLOTS];
}

// Scores of this warp's 32 keys, with the rows' own among them; as in `attend_chunk`.
DEV void score_tile(float (&scores)[1][4][4], Rooms& s, int number, int key0,
                    const Attend& p, const Text& text) {
  const int lane = thread() % WARP, warp = thread() / WARP, first = warp % 2 * 32;
#pragma unroll
  for (int i = 0; i < 16; ++i) scores[0][i / 4][i % 4] = 0.0f;
  const int from = key0 + warp * 32;
  if (from < text.keys) {
    bf16* tile = tile_of(s, number + warp / 2);
    if (text.start < from + 32) {
      const int begin = max(text.start, from), end = min(text.keys, from + 32);
      for (int i = lane; i < (end - begin) * (HEAD / 8); i += WARP) {
        const int key = begin + i / (HEAD / 8), chunk = i % (HEAD / 8);
        *(uint4*)tile_at(tile, key % KEYS, chunk) =
            ((const uint4*)(s.own[0] + (key - text.start) * HEAD))[chunk];
      }
      bulk_fence();
      __syncwarp();
    }
#pragma unroll
    for (int step = 0; step < HEAD / 16; ++step) {
      u32 a[4], b[2][4];
      load_tiles(a, chunk_at<HEAD>(s.q, lane % 16, step * 2 + lane / 16));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int key = first + half * 16 + lane / 16 * 8 + lane % 8;
        load_tiles(b[half], tile_at(tile, key, step * 2 + lane / 8 % 2));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        mma(scores[0][i], a, b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
      }
    }
  }
  mask(scores, s.most[warp], from, p, text);
}

// Weights x values of tile `at` of a chunk, this warp's eighth of head_dim, with the rows' own
// values among them and zeros behind.
DEV void add_tile(Part<HEAD, 1, WARPS>& part, Rooms& s, int number, int at, int key0,
                  const Text& text) {
  const int lane = thread() % WARP, warp = thread() / WARP;
  const int columns = Part<HEAD, 1, WARPS>::COLUMNS;
  bf16* tile = tile_of(s, number);
  const int from = key0 + at * KEYS;
  if (text.start < from + KEYS) {
    const int begin = max(text.start, from);
    for (int i = lane; i < (from + KEYS - begin) * columns; i += WARP) {
      const int key = begin + i / columns, chunk = warp * columns + i % columns;
      uint4 eight = make_uint4(0, 0, 0, 0);
      if (key < text.keys) eight = ((const uint4*)(s.own[1] + (key - text.start) * HEAD))[chunk];
      *(uint4*)tile_at(tile, key % KEYS, chunk) = eight;
    }
    bulk_fence();
    __syncwarp();
  }
#pragma unroll
  for (int two = 0; two < KEYS / 32; ++two) {
    u32 b[columns][4];
#pragma unroll
    for (int column = 0; column < columns; ++column) {
      const int chunk = warp * columns + column;
      load_tiles_transposed(b[column], tile_at(tile, two * 32 + lane, chunk));
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      u32 a[4];
      int chunk = at * (KEYS / 8) + two * 4 + step * 2 + lane / 16;
      load_tiles(a, chunk_at<CHUNK>(s.weights, lane % 16, chunk));
      mma(part.weights[0], a, ONES, ONES);
#pragma unroll
      for (int column = 0; column < columns; ++column) {
        mma(part.sums[0][column], a, b[column][step * 2], b[column][step * 2 + 1]);
      }
    }
  }
}

// Everything before the first wait reads what earlier kernels than the last one wrote.
// grid: (blocks a sequence, kv heads, sequences); block: 256; shared: Rooms.
DEV void attend_bulk(const Attend& p) {
  extern __shared__ __align__(128) unsigned char memory[];
  Rooms& s = *(Rooms*)memory;
  const int kv_head = blockIdx.y;
  const bool fills = threadIdx.x < WARP;
  if (threadIdx.x < SLOTS) barrier_init(s.full + threadIdx.x, 1);
  if (fills) barrier_fence(), __syncwarp();
  const Text text = find_text(p);
  const int blocks = text.chunks <= ALONE_MAX ? 1 : min(gridDim.x, text.chunks);
  const bool works = blockIdx.x < blocks && 0 < text.chunks;
  const Order order(text, blockIdx.x, blocks);
  u32 pages = 0;
  if (fills && works) pages = page_of(text, order, 0);
  if (works) {
    if (fills) ask(s, p, text, order, pages, 0, 0, SLOTS);
    clear_queries<HEAD, 1, WARPS>(s.q, p, text);
  }
  wait_for_previous();
  let_next_start();
  if (!works) return;
  turn_rows<HEAD, WARPS, 3>(s.q, s.own, p, text, kv_head, [&](int position) {
    return position / CHUNK % blocks == blockIdx.x;
  });
  __syncthreads();
  Part<HEAD, 1, WARPS> total;
  total.clear();
  for (int at = 0; at * 2 * TILE_COUNT < order.tiles; ++at) {
    const int key0 = order.key_of(at), tiles = order.tiles_of(text, at);
    const int number = at * 2 * TILE_COUNT;
    float scores[1][4][4];
    score_tile(scores, s, number, key0, p, text);
    __syncthreads();
    if (fills) ask(s, p, text, order, pages, at, number + SLOTS, number + SLOTS + tiles);
    weigh(scores, s, p);
    __syncthreads();
    Part<HEAD, 1, WARPS> part;
    part.clear();
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      raise_to_tile(part, s, tile, p);
      add_tile(part, s, number + tiles + tile, tile, key0, text);
    }
    if (blocks == 1) total.add(part, p.scale_log2);
    else leave_part(p, part, kv_head, key0 / CHUNK);
    const int next = number + 2 * TILE_COUNT;
    if (order.tiles <= next) break;
    __syncthreads();
    if (fills) {
      ask(s, p, text, order, pages, at, next - TILE_COUNT + SLOTS, next + SLOTS);
      pages = page_of(text, order, at + 1);
    }
  }
  finish_rows(total, p, text, kv_head, blocks);
}
#endif

KERNEL __launch_bounds__(THREADS, 2) attend_bulk_128(const Attend p) {
#ifdef HOPPER
  attend_bulk(p);
#endif
}
