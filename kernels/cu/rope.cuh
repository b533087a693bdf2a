// Bias, head norm and rotary position of one head, as both users of it do them.
//
// First half' = first cos - second sin, second half' = second cos + first sin.
#pragma once
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
  int behind;            // the rotary position is the row's position less this; rows and keys
                         // before it do not exist
  float eps;
};

// A lane's PAIRS pairs of one head.
template <int PAIRS>
struct Head {
  float low[PAIRS];
  float high[PAIRS];

  // `place(i)`: where value i goes.
  template <class Place> MEMBER void store(bf16* to, Place place) const {
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      to[place(i * WARP + thread() % WARP)] = to_bf16(low[i]);
      to[place((PAIRS + i) * WARP + thread() % WARP)] = to_bf16(high[i]);
    }
  }
  MEMBER void store(bf16* to) const {
    store(to, [](int at) { return at; });
  }
};

// A head before it is turned, and the turn.
template <int PAIRS>
struct Raw {
  Head<PAIRS> values;
  float2 turns[PAIRS];
};

// Head `head` of a row: queries, then keys, then values. A warp calls it. Nothing waits for the
// loads, so several heads can be asked for at once.
template <int PAIRS>
DEV Raw<PAIRS> raw_head(const Rope& p, int row, int position, int head) {
  const int lane = thread() % WARP, half = PAIRS * WARP;
  const size_t heads = p.heads + 2 * p.kv_heads, place = max(position - p.behind, 0);
  const float* from = p.qkv + (row * heads + head) * 2 * half;
  Raw<PAIRS> raw;
#pragma unroll
  for (int i = 0; i < PAIRS; ++i) {
    int at = i * WARP + lane;
    raw.values.low[i] = from[at], raw.values.high[i] = from[at + half];
    raw.turns[i] = p.turns[place * half + at];
  }
  return raw;
}

DEV void turn_pair(float& low, float& high, float2 turn) {
  float turned = __fmaf_rn(low, turn.x, -__fmul_rn(high, turn.y));
  high = __fmaf_rn(high, turn.x, __fmul_rn(low, turn.y));
  low = turned;
}

template <int PAIRS>
DEV Head<PAIRS> turned_head(const Rope& p, const Raw<PAIRS>& raw, int head) {
  const int lane = thread() % WARP, half = PAIRS * WARP, head_dim = 2 * half;
  const bool is_q = head < p.heads, is_v = head >= p.heads + p.kv_heads;
  const float* norm = is_q ? p.q_norm : p.k_norm;
  Head<PAIRS> out = raw.values;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < PAIRS; ++i) {
    int at = i * WARP + lane;
    if (p.bias != 0) {
      out.low[i] = __fadd_rn(out.low[i], p.bias[head * head_dim + at]);
      out.high[i] = __fadd_rn(out.high[i], p.bias[head * head_dim + at + half]);
    }
    squares = __fmaf_rn(out.low[i], out.low[i], squares);
    squares = __fmaf_rn(out.high[i], out.high[i], squares);
  }
  if (norm != 0 && !is_v) {
    float scale = __frsqrt_rn(__fadd_rn(__fdiv_rn(warp_sum(squares), head_dim), p.eps));
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      out.low[i] = __fmul_rn(__fmul_rn(out.low[i], scale), norm[i * WARP + lane]);
      out.high[i] = __fmul_rn(__fmul_rn(out.high[i], scale), norm[i * WARP + lane + half]);
    }
  }
  if (is_v) return out;
#pragma unroll
  for (int i = 0; i < PAIRS; ++i) {
    turn_pair(out.low[i], out.high[i], raw.turns[i]);
  }
  return out;
}

// Where a layer's pages hold keys (0) or values (1) of a position: page after page, keys then
// values, head after head, then 64 values of 16 tokens each, and the next 64. They lie as tensor
// cores want them in shared memory: of a token's eight chunks of 8, each is turned by the position.
DEV size_t slot_of(const Rope& p, u32 page, int is_v, int kv_head, int position, int head_dim) {
  size_t line = ((size_t)page * 2 + is_v) * p.kv_heads + kv_head;
  return line * PAGE * head_dim + position % PAGE * 64;
}
// Value `at` of it, from there.
DEV int within_slot(int position, int at) {
  return at / 64 * (PAGE * 64) + (at % 64 / 8 ^ position % 8) * 8 + at % 8;
}
