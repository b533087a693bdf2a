// The choice of a token from a whole row of logits, by the threads of a block; and the parts that a
// choice from slices of a row has in common with it.
#pragma once
#include "collective.cuh"
#include "sample.cuh"

#define THREADS 512
#define BINS 256

struct Scratch {
  float partial[THREADS / WARP];
  u32 where[THREADS / WARP];
  double sums[THREADS / WARP];
  u64 weights[BINS];
  u64 left;
  u32 digit;
  u32 count;
  float saved[STOPS_MAX];
};

// The last token that is kept, likeliest first; of equal logits the lower token comes first.
struct Cut {
  float logit;
  u32 token;

  MEMBER bool keeps(float other, u32 of) const {
    return logit < other || (logit == other && of <= token);
  }
};

// What every pass reads: finite or minus infinity.
struct Row {
  const float* logits;
  int vocab;
  float most;
  float temperature;

  MEMBER static float as_logit(float value) {
    return value == value ? fminf(value, 3.402823466e38f) : NEGATIVE_INFINITY;
  }
  MEMBER float logit(u32 token) const { return as_logit(logits[token]); }
  MEMBER float distance(float logit) const {
    return __fdiv_rn(__fsub_rn(logit, most), temperature);
  }
  // A logit no larger than any that is at `distance` or nearer.
  MEMBER float logit_below(float distance) const {
    double by = __dmul_rn(__dadd_rn((double)distance, -0.01), (double)temperature);
    return nextafterf(__double2float_rn(__dadd_rn((double)most, by)), NEGATIVE_INFINITY);
  }
};

// Order-preserving bits: a larger float has larger bits.
DEV u32 key_of(float v) {
  u32 bits = __float_as_uint(v == 0.0f ? 0.0f : v);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
DEV float value_of(u32 key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

DEV void add_weight(u64* to, u64 weight) { atomicAdd((unsigned long long*)to, weight); }

DEV u64 mass(float distance) {
  return __double2ull_rn((double)exact_exp(distance) * 4294967296.0);
}

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

// The largest logit and its lowest token, in every thread.
DEV void find_largest(const Row& row, float& most, u32& at, Scratch& s) {
  scan_largest(row.logits, row.vocab, Row::as_logit, most, at);
  argmax_block(most, at, s.partial, s.where);
}

// How many tokens have this logit, are kept by `before` and are at most `last`.
DEV u32 count_equal(const Row& row, Cut before, float logit, u32 last, Scratch& s) {
  __syncthreads();
  if (threadIdx.x == 0) s.count = 0;
  __syncthreads();
  u32 count = 0;
  for (u32 i = threadIdx.x; i < row.vocab && i <= last; i += THREADS) {
    float value = row.logit(i);
    count += value == logit && before.keeps(value, i);
  }
  atomicAdd(&s.count, count);
  __syncthreads();
  return s.count;
}

// The cut that keeps tokens, the likeliest first, until their weights reach `limit`: each weighs 1,
// or its mass.
DEV Cut tighten(const Row& row, Cut before, u64 limit, bool by_mass, Scratch& s) {
  u32 prefix = 0;
  u64 left = limit;
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += THREADS) s.weights[i] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < row.vocab; i += THREADS) {
      float logit = row.logit(i);
      u32 key = key_of(logit);
      if (!before.keeps(logit, i) || (shift < 24 && key >> (shift + 8) != prefix)) continue;
      add_weight(&s.weights[key >> shift & 255], by_mass ? mass(row.distance(logit)) : 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = BINS - 1;
      for (; 0 <= digit && s.weights[digit] < left; --digit) left -= s.weights[digit];
      s.digit = digit < 0 ? NONE : digit;
      s.left = left;
    }
    __syncthreads();
    if (s.digit == NONE) return before;
    prefix = prefix << 8 | s.digit;
    left = s.left;
  }
  Cut cut = {value_of(prefix), NONE};
  u64 each = by_mass ? mass(row.distance(cut.logit)) : 1;
  u64 wanted = (left + each - 1) / each;
  if (wanted >= count_equal(row, before, cut.logit, NONE - 1, s)) {
    cut.token = before.logit == cut.logit ? before.token : NONE - 1;
    return cut;
  }
  u32 low = 0, high = row.vocab - 1;
  while (low < high) {
    u32 middle = (low + high) / 2;
    if (wanted <= count_equal(row, before, cut.logit, middle, s)) high = middle;
    else low = middle + 1;
  }
  cut.token = low;
  return cut;
}

DEV u64 total_mass(const Row& row, Cut cut, Scratch& s) {
  __syncthreads();
  if (threadIdx.x == 0) s.left = 0;
  __syncthreads();
  u64 sum = 0;
  for (u32 i = threadIdx.x; i < row.vocab; i += THREADS) {
    float logit = row.logit(i);
    if (cut.keeps(logit, i)) sum += mass(row.distance(logit));
  }
  add_weight(&s.left, sum);
  __syncthreads();
  return s.left;
}

// The token with the largest noisy score among those that `cut` and `floor` keep, and the likeliest,
// which always is one. `first` is the row's first token. The same in every thread.
DEV Found loudest(const Row& row, u32 first, Cut cut, float floor, u64 key, u32 likeliest,
                  Scratch& s) {
  Found best = {NEGATIVE_INFINITY, NONE};
  for (u32 i = threadIdx.x; i < row.vocab; i += THREADS) {
    const u32 token = first + i;
    float logit = row.logit(i), distance = row.distance(logit);
    bool is_kept = cut.keeps(logit, token) && floor <= distance;
    if (!is_kept && token != likeliest) continue;
    float score = __fadd_rn(distance, gumbel(noise_bits(key, token)));
    if (best.value < score) best = {score, token};
  }
  argmax_block(best.value, best.at, s.partial, s.where);
  return best;
}

// The cut that keeps tokens that can win against the likeliest.
DEV Cut any_that_can_win(const Row& row) {
  return {row.logit_below(__fsub_rn(NOISE_MIN, NOISE_MAX)), NONE};
}

// The token with the largest noisy score among those that the filters keep.
DEV u32 draw(const Row& row, const Wish& wish, u32 position, u32 likeliest, Scratch& s) {
  Cut cut = any_that_can_win(row);
  if (0 < wish.top_k) cut = tighten(row, cut, wish.top_k, false, s);
  if (wish.top_p < 1.0f) {
    double limit = __dmul_rn((double)wish.top_p, (double)total_mass(row, cut, s));
    cut = tighten(row, cut, max(__double2ull_ru(limit), (u64)1), true, s);
  }
  float floor = 0.0f < wish.min_p ? exact_ln(wish.min_p) : NEGATIVE_INFINITY;
  return loudest(row, 0, cut, floor, noise_key(wish, position), likeliest, s).at;
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
