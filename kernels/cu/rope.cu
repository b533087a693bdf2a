// Bias, head norm and rotary position on queries and keys; keys and values to their pages.
//
// q, k: first half' = first cos - second sin, second half' = second cos + first sin.
// A page holds, for each layer: keys then values, head after head, 16 tokens of head_dim each.
#include "base.cuh"

struct Rope {
  const float* qkv;      // (rows, (heads + 2 kv_heads) head_dim)
  const float* bias;     // of a row, if not null
  const float* q_norm;   // (head_dim), if not null: RMSNorm of each head
  const float* k_norm;
  const float2* turns;   // (positions, head_dim / 2): cos and sin
  const i32* positions;  // of each row; negative: the row does not exist
  const u32* lanes;      // of each row
  const u32* pages;      // (lanes, pages_max)
  bf16* q;               // (rows, heads head_dim)
  bf16* layer;           // the pages' memory of this layer
  int heads;
  int kv_heads;
  int pages_max;
  int behind;            // the rotary position is the row's position less this
  float eps;
};

// grid: rows; block: 128. A warp takes a head; a lane takes PAIRS pairs of it.
template <int PAIRS>
DEV void rope(const Rope& p) {
  wait_for_previous();
  let_next_start();
  const int row = blockIdx.x, lane = threadIdx.x % WARP, half = PAIRS * WARP, head_dim = 2 * half;
  const int position = p.positions[row];
  if (position < p.behind) return;
  const u32 page = p.pages[p.lanes[row] * p.pages_max + position / PAGE];
  const int heads = p.heads + 2 * p.kv_heads;
  for (int head = threadIdx.x / WARP; head < heads; head += blockDim.x / WARP) {
    const bool is_q = head < p.heads, is_v = head >= p.heads + p.kv_heads;
    const float* from = p.qkv + ((size_t)row * heads + head) * head_dim;
    const float* norm = is_q ? p.q_norm : p.k_norm;
    float low[PAIRS], high[PAIRS], squares = 0.0f;
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      int at = i * WARP + lane;
      low[i] = from[at], high[i] = from[at + half];
      if (p.bias != 0) low[i] += p.bias[head * head_dim + at];
      if (p.bias != 0) high[i] += p.bias[head * head_dim + at + half];
      squares += low[i] * low[i] + high[i] * high[i];
    }
    if (norm != 0 && !is_v) {
      float scale = rsqrtf(warp_sum(squares) / head_dim + p.eps);
#pragma unroll
      for (int i = 0; i < PAIRS; ++i) {
        low[i] *= scale * norm[i * WARP + lane];
        high[i] *= scale * norm[i * WARP + lane + half];
      }
    }
    bf16* to = p.q + ((size_t)row * p.heads + head) * head_dim;
    if (!is_q) {
      int kv_head = (head - p.heads) % p.kv_heads;
      size_t line = ((size_t)page * 2 + is_v) * p.kv_heads + kv_head;
      to = p.layer + (line * PAGE + position % PAGE) * head_dim;
    }
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      int at = i * WARP + lane;
      float2 turn = make_float2(1.0f, 0.0f);
      if (!is_v) turn = p.turns[(size_t)(position - p.behind) * half + at];
      to[at] = to_bf16(low[i] * turn.x - high[i] * turn.y);
      to[at + half] = to_bf16(high[i] * turn.x + low[i] * turn.y);
    }
  }
}

KERNEL rope_64(const Rope p) { rope<1>(p); }
KERNEL rope_128(const Rope p) { rope<2>(p); }
