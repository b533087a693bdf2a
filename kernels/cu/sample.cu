// choices[c] = the token that follows the row of chooser c: a function of its logits, its request
// and its place, never of what else is in the step.
//
// Penalties, biases and masks change the logits; then top-k, top-p and min-p each set a floor
// under the scores (logit / temperature); then the largest score plus noise wins. Weights are
// summed as integers, so that no sum depends on an order.
#include "sample.cuh"

#define THREADS 512
#define BINS 256

struct Scratch {
  float partial[THREADS / WARP];
  u32 where[THREADS / WARP];
  unsigned long long weights[BINS];
  u32 counts[BINS];
  u32 digit;
  u32 count_left;
  unsigned long long weight_left;
};

// Order-preserving bits: a larger float has larger bits.
DEV u32 key_of(float v) {
  u32 bits = __float_as_uint(v);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
DEV float value_of(u32 key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// exp(score - most) as an integer of 30 bits.
DEV unsigned long long weight_bits(float score, float most) {
  return (unsigned long long)(exp2_fast((score - most) * 1.44269504f) * 0x1p30f);
}

DEV void penalize(const Sample& p, const Wish& wish, const Entry& entry, u32 row, float* logits,
                  u32* seen) {
  const u32* history = p.step.history + (size_t)entry.lane * p.step.positions_max;
  const u32 end = p.step.positions[row] + 1, words = (p.vocab + 31) / 32;
  // Once for each token in prompt or output, then once for each in the output.
  for (int pass = 0; pass < 2; ++pass) {
    for (u32 i = threadIdx.x; i < words; i += THREADS) seen[i] = 0;
    __syncthreads();
    for (u32 i = (pass == 0 ? 0 : entry.outputs_start) + threadIdx.x; i < end; i += THREADS) {
      u32 token = history[i], bit = 1u << token % 32;
      if (p.vocab <= token || (atomicOr(&seen[token / 32], bit) & bit) != 0) continue;
      float value = logits[token];
      if (pass == 1) logits[token] = value - wish.presence;
      else logits[token] = value > 0.0f ? value / wish.repetition : value * wish.repetition;
    }
    __syncthreads();
  }
  for (u32 i = entry.outputs_start + threadIdx.x; i < end; i += THREADS) {
    if (history[i] < p.vocab) atomicAdd(&logits[history[i]], -wish.frequency);
  }
  __syncthreads();
}

DEV void adjust(const Sample& p, const Wish& wish, const Entry& entry, u32 chooser, u32 row,
                u32 output, float* logits, u32* seen) {
  const u32* inbox = p.step.inbox;
  if (wish.presence != 0.0f || wish.frequency != 0.0f || wish.repetition != 1.0f) {
    penalize(p, wish, entry, row, logits, seen);
  }
  for (u32 i = threadIdx.x; i < wish.biases; i += THREADS) {
    u32 token = inbox[wish.bias_at + i * 2];
    if (token < p.vocab) logits[token] += __uint_as_float(inbox[wish.bias_at + i * 2 + 1]);
  }
  __syncthreads();
  if (output < wish.outputs_min) {
    for (u32 i = threadIdx.x; i < wish.stops; i += THREADS) {
      u32 token = inbox[wish.stop_at + i];
      if (token < p.vocab) logits[token] = NEGATIVE_INFINITY;
    }
  }
  if (wish.mask_at != NONE) {
    u32 words = (p.vocab + 31) / 32;
    const u32* mask = inbox + wish.mask_at + (chooser - entry.choice) * words;
    for (u32 i = threadIdx.x; i < p.vocab; i += THREADS) {
      if ((mask[i / 32] >> i % 32 & 1) == 0) logits[i] = NEGATIVE_INFINITY;
    }
  }
  __syncthreads();
}

// The largest `floor` such that the scores at or above it are `count` at least, or weigh `weight`
// at least: digit by digit from the top.
DEV float find_floor(const float* logits, int vocab, float per, float most, float floor, u32 count,
                     unsigned long long weight, bool by_weight, Scratch& s) {
  u32 prefix = 0, floor_key = key_of(floor);
  if (threadIdx.x == 0) s.count_left = count, s.weight_left = weight;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < BINS; i += THREADS) s.counts[i] = 0, s.weights[i] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
      float score = logits[i] * per;
      u32 key = key_of(score);
      if (key < floor_key || (shift < 24 && key >> (shift + 8) != prefix)) continue;
      if (by_weight) atomicAdd(&s.weights[key >> shift & 255], weight_bits(score, most));
      else atomicAdd(&s.counts[key >> shift & 255], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = BINS - 1;
      for (; digit > 0; --digit) {
        if (by_weight ? s.weight_left <= s.weights[digit] : s.count_left <= s.counts[digit]) break;
        s.weight_left -= s.weights[digit];
        s.count_left -= s.counts[digit];
      }
      s.digit = digit;
    }
    __syncthreads();
    prefix = prefix << 8 | s.digit;
  }
  __syncthreads();
  return fmaxf(floor, value_of(prefix));
}

DEV unsigned long long total_weight(const float* logits, int vocab, float per, float most,
                                    float floor, Scratch& s) {
  if (threadIdx.x == 0) s.weights[0] = 0;
  __syncthreads();
  unsigned long long sum = 0;
  for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
    float score = logits[i] * per;
    if (floor <= score) sum += weight_bits(score, most);
  }
  atomicAdd(&s.weights[0], sum);
  __syncthreads();
  sum = s.weights[0];
  __syncthreads();
  return sum;
}

// Scores below this are not drawn from.
DEV float floor_of(const float* logits, int vocab, const Wish& wish, float per, float most,
                   Scratch& s) {
  float floor = NEGATIVE_INFINITY;
  if (0 < wish.top_k && wish.top_k < vocab) {
    floor = find_floor(logits, vocab, per, most, floor, wish.top_k, 0, false, s);
  }
  if (wish.top_p < 1.0f) {
    double total = (double)total_weight(logits, vocab, per, most, floor, s);
    unsigned long long wanted = (unsigned long long)(total * (double)wish.top_p);
    floor = find_floor(logits, vocab, per, most, floor, 0, max(wanted, 1ull), true, s);
  }
  if (0.0f < wish.min_p) floor = fmaxf(floor, most + logf(wish.min_p));
  return floor;
}

// Natural logarithms of the probabilities of the chosen and of the likeliest.
DEV void report(const Sample& p, const Wish& wish, u32 chooser, const float* logits, float most,
                u32 chosen, Scratch& s) {
  float sum = 0.0f;
  for (u32 i = threadIdx.x; i < p.vocab; i += THREADS) sum += expf(logits[i] - most);
  float all = most + logf(block_sum(sum, s.partial));
  if (threadIdx.x == 0) p.chosen_logprobs[chooser] = logits[chosen] - all;
  float below = 0.0f;
  u32 after = 0;
  for (u32 rank = 0; rank < min(wish.logprobs, LOGPROBS_MAX); ++rank) {
    float best = NEGATIVE_INFINITY;
    u32 at = NONE;
    for (u32 i = threadIdx.x; i < p.vocab; i += THREADS) {
      float value = logits[i];
      bool is_next = rank == 0 || value < below || (value == below && after < i);
      if (is_next && best < value) best = value, at = i;
    }
    argmax_block(best, at, s.partial, s.where);
    below = best, after = at;
    if (threadIdx.x == 0) {
      p.top_tokens[chooser * LOGPROBS_MAX + rank] = at;
      p.top_logprobs[chooser * LOGPROBS_MAX + rank] = best - all;
    }
  }
}

// grid: choosers; block: 512; shared: a bit for each token.
KERNEL __launch_bounds__(THREADS, 1) sample(const Sample p) {
  __shared__ Scratch s;
  extern __shared__ u32 seen[];
  wait_for_previous();
  let_next_start();
  const u32 chooser = blockIdx.x, row = p.step.chooser_rows[chooser];
  if (row == NONE || p.step.row_entries[row] == NONE) return;
  const Entry entry = p.step.entries[p.step.row_entries[row]];
  const Wish wish = *(const Wish*)(p.step.inbox + entry.wish);
  const u32 output = p.step.positions[row] + 1 - entry.outputs_start;
  float* logits = p.logits + (size_t)chooser * p.vocab;
  adjust(p, wish, entry, chooser, row, output, logits, seen);

  float best = NEGATIVE_INFINITY;
  u32 at = NONE;
  for (u32 i = threadIdx.x; i < p.vocab; i += THREADS) {
    float value = logits[i];
    if (best < value) best = value, at = i;
  }
  argmax_block(best, at, s.partial, s.where);
  const float most = best;
  u32 chosen = at;
  if (0.0f < wish.temperature && at != NONE) {
    float per = 1.0f / wish.temperature;
    float floor = floor_of(logits, p.vocab, wish, per, most * per, s);
    const u64 place = noise_place(wish, output);
    best = NEGATIVE_INFINITY, at = NONE;
    for (u32 i = threadIdx.x; i < p.vocab; i += THREADS) {
      float score = logits[i] * per;
      if (score < floor || score == NEGATIVE_INFINITY) continue;
      score += noise(place, i);
      if (best < score) best = score, at = i;
    }
    argmax_block(best, at, s.partial, s.where);
    chosen = at;
  }
  // What is not a number has no largest: the first token, as the CPU's argmax.
  if (chosen == NONE) chosen = 0;
  if (threadIdx.x == 0) p.choices[chooser] = chosen;
  if (wish.logprobs != NONE) report(p, wish, chooser, logits, most, chosen, s);
}
