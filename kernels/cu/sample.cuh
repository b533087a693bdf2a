// A request's sampling as the device reads it, and the noise that decides: the same bits as
// `src/noise.rs`, which says why each step is what it is. Single roundings, nothing fused.
#pragma once
#include "rows.cuh"

// Places are words of the inbox; NONE where there is nothing.
struct Wish {
  u32 seed_low, seed_high;
  float temperature;      // 0: the likeliest
  u32 top_k;              // 0: all
  float top_p;            // 1: all
  float min_p;            // 0: all
  float presence;
  float frequency;
  float repetition;       // 1: off
  u32 biases, bias_at;    // number of (token, float) pairs, and their place
  u32 stops, stop_at;     // number of tokens that may not be chosen yet, and their place
  u32 outputs_min;
  u32 mask_at;            // one bit a token for each row that chooses
  u32 logprobs;           // how many of the likeliest to report, or NONE
};

struct Sample {
  Step step;
  float* logits;          // (choosers, vocab); changed by penalties, biases and masks
  u32* choices;           // of each chooser
  float* chosen_logprobs; // of each chooser
  u32* top_tokens;        // (choosers, LOGPROBS_MAX), NONE from where there are no more
  float* top_logprobs;
  int vocab;
};

#define LOGPROBS_MAX 20
#define STOPS_MAX 128

#define NOISE_MAX __fmul_rn(33.1f, 0.6932f)
#define NOISE_MIN -2.8125f

DEV u64 mix64(u64 x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

// What the noise of a row is drawn with: of the request's seed and the chosen token's position.
DEV u64 noise_key(const Wish& wish, u32 position) {
  return mix64(mix64((u64)wish.seed_high << 32 | wish.seed_low) ^ position);
}

DEV u32 noise_bits(u64 key, u32 token) {
  u32 x = token ^ (u32)key;
  x = (x ^ x >> 16) * 0x7feb352du;
  x = ((x ^ x >> 15) + (u32)(key >> 32)) * 0x846ca68bu;
  return x ^ x >> 16;
}

DEV float exact_ln(float x) {
  const u32 sqrt_half = 0x3f3504f3u;
  u32 shifted = __float_as_uint(x) - sqrt_half;
  i32 n = (i32)shifted >> 23;
  float m = __uint_as_float((shifted & 0x007fffffu) + sqrt_half);
  float s = __fdiv_rn(__fsub_rn(m, 1.0f), __fadd_rn(m, 1.0f));
  float z = __fmul_rn(s, s);
  float series = __fadd_rn(1.0f / 7.0f, __fmul_rn(z, 1.0f / 9.0f));
  series = __fadd_rn(0.2f, __fmul_rn(z, series));
  series = __fadd_rn(1.0f / 3.0f, __fmul_rn(z, series));
  series = __fmul_rn(z, series);
  float two_s = __fadd_rn(s, s);
  float rest = __fadd_rn(two_s, __fmul_rn(two_s, series));
  return __fadd_rn(__fmul_rn(__int2float_rn(n), 0.69314718f), rest);
}

DEV float exact_exp(float x) {
  const float round = 12582912.0f;
  float inside = x < -87.0f ? -87.0f : x;
  float rounded = __fadd_rn(__fmul_rn(inside, 1.44269504f), round);
  float n = __fsub_rn(rounded, round);
  float r = __fsub_rn(__fsub_rn(inside, __fmul_rn(n, 0.6933594f)), __fmul_rn(n, -2.1219444e-4f));
  float sum = __fadd_rn(1.0f / 720.0f, __fmul_rn(r, 1.0f / 5040.0f));
  sum = __fadd_rn(1.0f / 120.0f, __fmul_rn(r, sum));
  sum = __fadd_rn(1.0f / 24.0f, __fmul_rn(r, sum));
  sum = __fadd_rn(1.0f / 6.0f, __fmul_rn(r, sum));
  sum = __fadd_rn(0.5f, __fmul_rn(r, sum));
  sum = __fadd_rn(1.0f, __fmul_rn(r, sum));
  sum = __fadd_rn(1.0f, __fmul_rn(r, sum));
  float power = __uint_as_float((__float_as_uint(rounded) + 127) << 23);
  return x < -87.0f ? 0.0f : __fmul_rn(sum, power);
}

DEV float gumbel(u32 bits) {
  float v = __fmul_rn(__fadd_rn(__uint2float_rn(bits), 0.5f), 0x1p-32f);
  v = fminf(v, 0x1.fffffep-1f);
  float w = __fsub_rn(1.0f, v);
  float e = w == 1.0f ? v : __fmul_rn(v, __fdiv_rn(exact_ln(w), __fsub_rn(w, 1.0f)));
  return -exact_ln(e);
}
