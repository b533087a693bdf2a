// A request's sampling as the device reads it, and the noise that decides. `ops/sample.rs` has both.
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
  u32* top_tokens;        // (choosers, LOGPROBS_MAX)
  float* top_logprobs;
  int vocab;
};

#define LOGPROBS_MAX 20

DEV u64 mix(u64 v) {
  v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9ull;
  v = (v ^ v >> 27) * 0x94d049bb133111ebull;
  return v ^ v >> 31;
}

// Standard Gumbel noise: a function of the request's seed, the place in its output and the token.
DEV float noise(u64 place, u32 token) {
  u64 bits = mix(place ^ ((u64)token + 1) * 0x9e3779b97f4a7c15ull);
  float uniform = ((float)(u32)(bits >> 40) + 0.5f) * 0x1p-24f;
  return -logf(-logf(uniform));
}
DEV u64 noise_place(const Wish& wish, u32 output) {
  u64 seed = (u64)wish.seed_high << 32 | wish.seed_low;
  return mix(seed + ((u64)output + 1) * 0xd1b54a32d192ed03ull);
}
