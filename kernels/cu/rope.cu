// Turned queries of every row, turned keys and values to their pages: before `attend_many`, and
// where keys and values alone are kept.
#include "rope.cuh"

// grid: rows; block: 128. A warp takes a head.
template <int PAIRS>
DEV void rope(const Rope& p) {
  wait_for_previous();
  let_next_start();
  const int row = blockIdx.x, head_dim = 2 * PAIRS * WARP;
  const int position = p.positions[row];
  if (position < 0) return;
  const u32 page = p.pages[(size_t)p.lanes[row] * p.pages_max + position / PAGE];
  const int heads = p.heads + 2 * p.kv_heads;
  for (int head = threadIdx.x / WARP; head < heads; head += blockDim.x / WARP) {
    // A slot before the first that exists is read, too, with a weight of zero.
    Head<PAIRS> turned = {};
    if (p.behind <= position) {
      turned = turned_head(p, raw_head<PAIRS>(p, row, position, head), head);
    }
    if (head < p.heads) {
      turned.store(p.q + ((size_t)row * p.heads + head) * head_dim);
      continue;
    }
    const int is_v = head >= p.heads + p.kv_heads, kv_head = (head - p.heads) % p.kv_heads;
    turned.store(p.layer + slot_of(p, page, is_v, kv_head, position, head_dim),
                 [&](int at) { return within_slot(position, at); });
  }
}

KERNEL rope_64(const Rope p) { rope<1>(p); }
KERNEL rope_128(const Rope p) { rope<2>(p); }
