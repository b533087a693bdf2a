// The choice of a token from a whole row of logits, by the threads of a block; and the parts that a
// choice from slices of a row has in common with it.
#pragma once
#include "filter.cuh"

DEV void penalize(const Sample& p, const Wish& wish, const Entry& entry, u32 position,
                  float* logits, u32* seen) {
  const u32* pages = p.step.pages + (size_t)entry.lane * p.step.pages_max;
  auto token_at = [&](u32 at) { return p.step.page_tokens[pages[at / PAGE] * PAGE + at % PAGE]; };
  for (u32 i = threadIdx.x; i < (p.vocab + 31) / 32; i += THREADS) seen[i] = 0;
  __syncthreads();
  for (u32 i = threadIdx.x; i < position; i += THREADS) {
    u32 token = token_at(i), bit = 1u << token % 32;
    if (p.vocab <= token || (atomicOr(&seen[token / 32], bit) & bit) != 0) continue;
    u32 times = 0;
    for (u32 j = entry.outputs_start; j < position; ++j) times += token_at(j) == token;
    float value = logits[token];
    value = 0.0f < value ? __fdiv_rn(value, wish.repetition) : __fmul_rn(value, wish.repetition);
    value = __fsub_rn(value, __fmul_rn(wish.frequency, __uint2float_rn(times)));
    logits[token] = __fsub_rn(value, 0 < times ? wish.presence : 0.0f);
  }
  __syncthreads();
}

DEV void adjust(const Sample& p, const Wish& wish, const Entry& entry, u32 chooser, u32 position,
                float* logits, u32* seen) {
  const u32* inbox = p.step.inbox;
  for (u32 i = threadIdx.x; i < wish.biases; i += THREADS) {
    u32 token = inbox[wish.bias_at + i * 2];
    float add = __uint_as_float(inbox[wish.bias_at + i * 2 + 1]);
    if (token < p.vocab) atomicAdd(&logits[token], add);
  }
  __syncthreads();
  if (wish.presence != 0.0f || wish.frequency != 0.0f || wish.repetition != 1.0f) {
    penalize(p, wish, entry, position, logits, seen);
  }
  if (wish.mask_at == NONE) return;
  u32 words = (p.vocab + 31) / 32;
  const u32* mask = inbox + wish.mask_at + (chooser - entry.choice) * words;
  for (u32 i = threadIdx.x; i < p.vocab; i += THREADS) {
    if ((mask[i / 32] >> i % 32 & 1) == 0) logits[i] = NEGATIVE_INFINITY;
  }
  __syncthreads();
}

// Forbids the tokens that would end the output, and gives back what they had: `with` false.
DEV void forbid_stops(const Sample& p, const Wish& wish, float* logits, bool with, Scratch& s) {
  u32 i = threadIdx.x;
  u32 token = i < wish.stops ? p.step.inbox[wish.stop_at + i] : NONE;
  bool is_one = i < STOPS_MAX && token < p.vocab;
  if (with && is_one) s.saved[i] = logits[token];
  __syncthreads();
  if (is_one) logits[token] = with ? NEGATIVE_INFINITY : s.saved[i];
  __syncthreads();
}

// Natural logarithms of the probabilities of the chosen and of the likeliest.
DEV void report(const Sample& p, const Wish& wish, u32 chooser, const Row& row, u32 chosen,
                Scratch& s) {
  double sum = 0.0;
  for (u32 i = threadIdx.x; i < row.vocab; i += THREADS) {
    sum += (double)exact_exp(__fsub_rn(row.logit(i), row.most));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(FULL, sum, step);
  if (threadIdx.x % WARP == 0) s.sums[threadIdx.x / WARP] = sum;
  __syncthreads();
  sum = 0.0;
  for (int warp = 0; warp < THREADS / WARP; ++warp) sum += s.sums[warp];
  const double all = log(sum);
  auto logprob = [&](float logit) {
    return __double2float_rn((double)__fsub_rn(logit, row.most) - all);
  };
  if (threadIdx.x == 0) p.chosen_logprobs[chooser] = logprob(row.logit(chosen));
  Cut before = {__int_as_float(0x7f800000), NONE};
  for (u32 rank = 0; rank < min(wish.logprobs, LOGPROBS_MAX); ++rank) {
    float best = NEGATIVE_INFINITY;
    u32 at = NONE;
    for (u32 i = threadIdx.x; i < row.vocab; i += THREADS) {
      float value = row.logit(i);
      bool comes_later = value < before.logit || (value == before.logit && before.token < i);
      if (comes_later && best < value) best = value, at = i;
    }
    argmax_block(best, at, s.partial, s.where);
    before.logit = best, before.token = at;
    if (threadIdx.x == 0) {
      p.top_tokens[chooser * LOGPROBS_MAX + rank] = at;
      p.top_logprobs[chooser * LOGPROBS_MAX + rank] = logprob(best);
    }
  }
}

// Nothing may be chosen: the lowest token of the mask.
DEV u32 lowest_allowed(const Sample& p, const Wish& wish, const Entry& entry, u32 chooser) {
  if (wish.mask_at == NONE) return 0;
  u32 words = (p.vocab + 31) / 32;
  const u32* mask = p.step.inbox + wish.mask_at + (chooser - entry.choice) * words;
  for (u32 i = 0; i < words; ++i) {
    if (mask[i] != 0) return i * 32 + __ffs(mask[i]) - 1;
  }
  return 0;
}

// A row that chooses: whose, with which wish, and for which position.
struct Chooser {
  u32 number, position;
  const Entry& entry;
  const Wish& wish;

  // Row `number`, whose place in the step is `row`.
  MEMBER Chooser(const Sample& p, u32 number, u32 row)
      : number(number), position(p.step.positions[row] + 1),
        entry(p.step.entries[p.step.row_entries[row]]),
        wish(*(const Wish*)(p.step.inbox + entry.wish)) {}

  MEMBER bool draws() const { return 0.0f < wish.temperature; }
  MEMBER bool is_short() const {
    return position - entry.outputs_start < wish.outputs_min && 0 < wish.stops;
  }
  // Whether nothing is adjusted, filtered or reported, so that no more than the largest count.
  MEMBER bool is_plain() const {
    const bool adjusted = wish.biases != 0 || wish.presence != 0.0f || wish.frequency != 0.0f ||
                          wish.repetition != 1.0f || wish.mask_at != NONE || is_short();
    const bool filtered = 0 < wish.top_k || wish.top_p < 1.0f || 0.0f < wish.min_p;
    return !adjusted && !(draws() && filtered) && wish.logprobs == NONE;
  }
};

// Whether a row that is laid out exists.
DEV bool exists(const Sample& p, u32 row) {
  return row != NONE && p.step.row_entries[row] != NONE;
}

// From a whole row of logits.
DEV void choose(const Sample& p, const Chooser& it, u32* seen, Scratch& s) {
  const Wish& wish = it.wish;
  const u32 chooser = it.number;
  float* logits = p.logits + (size_t)chooser * p.vocab;
  adjust(p, wish, it.entry, chooser, it.position, logits, seen);

  Row row = {logits, p.vocab, 0.0f, wish.temperature};
  if (it.is_short()) forbid_stops(p, wish, logits, true, s);
  u32 likeliest;
  find_largest(row, row.most, likeliest, s);
  if (it.is_short() && row.most == NEGATIVE_INFINITY) {
    forbid_stops(p, wish, logits, false, s);
    find_largest(row, row.most, likeliest, s);
  }
  u32 chosen = likeliest;
  const bool is_empty = row.most == NEGATIVE_INFINITY;
  if (!is_empty && it.draws()) chosen = draw(row, wish, it.position, likeliest, s);
  if (threadIdx.x == 0) {
    s.digit = is_empty ? lowest_allowed(p, wish, it.entry, chooser) : chosen;
    p.choices[chooser] = s.digit;
  }
  __syncthreads();
  if (wish.logprobs == NONE) return;
  for (u32 i = threadIdx.x; i < LOGPROBS_MAX; i += THREADS) {
    p.top_tokens[chooser * LOGPROBS_MAX + i] = NONE;
  }
  if (is_empty && threadIdx.x == 0) p.chosen_logprobs[chooser] = 0.0f;
  __syncthreads();
  if (!is_empty) report(p, wish, chooser, row, s.digit, s);
}
