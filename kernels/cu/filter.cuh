// Which tokens of a row of logits the filters keep, and which of them the noise makes the loudest.
#pragma once
#include "collective.cuh"
#include "sample.cuh"

#define THREADS 512
#define BINS 256
#define LISTED 2048   // tokens of a list, at most
#define NEAR 8        // distances that are looked at for one

struct Scratch {
  float partial[THREADS / WARP];
  u32 where[THREADS / WARP];
  double sums[THREADS / WARP];
  u64 weights[BINS];
  u64 left;
  u32 digit;
  u32 count;
  float saved[STOPS_MAX];
  u64 listed[LISTED];
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

// ---- the likeliest tokens in order: what filters keep is a prefix of them

// Of the tokens as near to the likeliest as each of `NEAR` distances, then of all: mass and number.
struct Near {
  u64 mass[NEAR + 1];
  u32 count[NEAR + 1];
};

DEV float nearness(const Row& row, int step) {
  const float distances[NEAR] = {1.5f, 3.0f, 4.5f, 6.0f, 8.0f, 10.0f, 13.0f, 17.0f};
  return __fsub_rn(row.most, __fmul_rn(distances[step], row.temperature));
}

// Every thread has the sums of all.
DEV Near survey(const Row& row, Cut before, Scratch& s) {
  // A mass and, from bit 48 on, a number: of a warp they fit for a million tokens.
  u64 own[NEAR + 1] = {};
  float least[NEAR];
#pragma unroll
  for (int i = 0; i < NEAR; ++i) least[i] = nearness(row, i);
  scan<4>(row.logits, row.vocab, [&](float value, u32 token) {
    const float logit = Row::as_logit(value);
    if (!before.keeps(logit, token)) return;
    const u64 weight = mass(row.distance(logit)) + (1ull << 48);
#pragma unroll
    for (int i = 0; i < NEAR; ++i) own[i] += least[i] <= logit ? weight : 0;
    own[NEAR] += weight;
  });
  __syncthreads();
  if (threadIdx.x < 2 * (NEAR + 1)) s.weights[threadIdx.x] = 0;
  __syncthreads();
  u64 *masses = s.weights, *counts = s.weights + NEAR + 1;
#pragma unroll
  for (int i = 0; i <= NEAR; ++i) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) own[i] += __shfl_xor_sync(FULL, own[i], step);
    if (threadIdx.x % WARP != 0) continue;
    add_weight(&masses[i], own[i] & ((1ull << 48) - 1)), add_weight(&counts[i], own[i] >> 48);
  }
  __syncthreads();
  Near near;
#pragma unroll
  for (int i = 0; i <= NEAR; ++i) near.mass[i] = masses[i], near.count[i] = (u32)counts[i];
  return near;
}

// Lists the tokens from `least` on that `before` keeps, `count` of them: the likeliest first, of
// equal ones the lower token.
DEV void list(const Row& row, Cut before, float least, u32 count, Scratch& s) {
  u32 places = 2;
  while (places < count) places *= 2;
  __syncthreads();
  if (threadIdx.x == 0) s.count = 0;
  for (u32 i = threadIdx.x; i < places; i += THREADS) s.listed[i] = ~0ull;
  __syncthreads();
  scan<8>(row.logits, row.vocab, [&](float value, u32 token) {
    const float logit = Row::as_logit(value);
    if (!(least <= logit) || !before.keeps(logit, token)) return;
    s.listed[atomicAdd(&s.count, 1)] = (u64)~key_of(logit) << 32 | token;
  });
  for (u32 size = 2; size <= places; size *= 2) {
    for (u32 gap = size / 2; gap > 0; gap /= 2) {
      __syncthreads();
      for (u32 i = threadIdx.x; i < places / 2; i += THREADS) {
        const u32 one = 2 * i - (i & (gap - 1)), two = one + gap;
        const u64 a = s.listed[one], b = s.listed[two];
        if ((b < a) == ((one & size) == 0)) s.listed[one] = b, s.listed[two] = a;
      }
    }
  }
  __syncthreads();
}

DEV float listed_logit(u64 of) { return value_of(~(u32)(of >> 32)); }

// The mass that `share` of `all` is.
DEV u64 share_of(float share, u64 all) {
  return max(__double2ull_ru(__dmul_rn((double)share, (double)all)), (u64)1);
}

// How many of the first `count` listed tokens it takes to reach top-p of the mass `all`, or of
// theirs if it is 0.
DEV u32 reach(const Row& row, u32 count, float top_p, u64 all, Scratch& s) {
  const u32 each = LISTED / THREADS, first = threadIdx.x * each;
  u64 masses[each], own = 0;
#pragma unroll
  for (u32 i = 0; i < each; ++i) {
    const bool is_one = first + i < count;
    masses[i] = is_one ? mass(row.distance(listed_logit(s.listed[first + i]))) : 0;
    own += masses[i];
  }
  u64 until = own;   // with those of the lanes before
#pragma unroll
  for (int step = 1; step < WARP; step *= 2) {
    const u64 other = __shfl_up_sync(FULL, until, step);
    if (step <= threadIdx.x % WARP) until += other;
  }
  __syncthreads();
  if (threadIdx.x % WARP == WARP - 1) s.weights[threadIdx.x / WARP] = until;
  if (threadIdx.x == 0) s.count = count;
  __syncthreads();
  u64 sum = 0;
  for (u32 warp = 0; warp < THREADS / WARP; ++warp) {
    if (warp < threadIdx.x / WARP) until += s.weights[warp];
    sum += s.weights[warp];
  }
  const u64 limit = share_of(top_p, all == 0 ? sum : all);
  u64 before = until - own;
#pragma unroll
  for (u32 i = 0; i < each; ++i) {
    if (before < limit && limit <= before + masses[i]) s.count = first + i + 1;
    before += masses[i];
  }
  __syncthreads();
  return s.count;
}

// How many of the likeliest tokens top-k and top-p keep, which then are listed; NONE where the row
// is too flat for a list.
DEV u32 list_kept(const Row& row, const Wish& wish, Cut before, Scratch& s) {
  const Near near = survey(row, before, s);
  const u64 all = near.mass[NEAR], limit = share_of(wish.top_p, all);
  float least = NEGATIVE_INFINITY;
  u32 count = NONE;
#pragma unroll
  for (int i = NEAR - 1; i >= 0; --i) {
    const bool enough = 0 < wish.top_k ? wish.top_k <= near.count[i] : limit <= near.mass[i];
    if (enough) count = near.count[i], least = nearness(row, i);
  }
  if (LISTED < count) return NONE;
  list(row, before, least, count, s);
  if (0 < wish.top_k) count = min(count, wish.top_k);
  if (wish.top_p < 1.0f) count = reach(row, count, wish.top_p, 0 < wish.top_k ? 0 : all, s);
  return count;
}

// ---- noise

// No less than the noise of these bits.
DEV float gumbel_most(u32 bits) { return 0.6932f * (__clz(bits) + 1) + 0.001f; }

// A token's noisy score if it is better than the best, or as good and lower.
DEV void listen(Found& best, u32 token, float distance, u64 key) {
  const float score = __fadd_rn(distance, gumbel(noise_bits(key, token)));
  if (best.value < score || (best.value == score && token < best.at)) best = {score, token};
}

// The token with the largest noisy score among those that `cut` and `floor` keep, and the
// likeliest, which always is one. `first` is the row's first token. The same in every thread.
DEV Found loudest(const Row& row, u32 first, Cut cut, float floor, u64 key, u32 likeliest,
                  Scratch& s) {
  Found best = {NEGATIVE_INFINITY, NONE};
  listen(best, likeliest, 0.0f, key);
  const float by = 1.0f / row.temperature;
  scan<4>(row.logits, row.vocab, [&](float value, u32 i) {
    const u32 token = first + i;
    const float logit = Row::as_logit(value);
    // Hardly any token can win, and a bound tells without a division or a logarithm.
    const float most = (logit - row.most) * by + gumbel_most(noise_bits(key, token));
    if (most < best.value) return;
    const float distance = row.distance(logit);
    if (cut.keeps(logit, token) && floor <= distance) listen(best, token, distance, key);
  });
  argmax_block(best.value, best.at, s.partial, s.where);
  return best;
}

// The same of the first `count` listed tokens.
DEV Found loudest_listed(const Row& row, u32 count, float floor, u64 key, u32 likeliest,
                         Scratch& s) {
  Found best = {NEGATIVE_INFINITY, NONE};
  listen(best, likeliest, 0.0f, key);
  for (u32 i = threadIdx.x; i < count; i += THREADS) {
    const float distance = row.distance(listed_logit(s.listed[i]));
    if (floor <= distance) listen(best, (u32)s.listed[i], distance, key);
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
  const u64 key = noise_key(wish, position);
  const float floor = 0.0f < wish.min_p ? exact_ln(wish.min_p) : NEGATIVE_INFINITY;
  Cut cut = any_that_can_win(row);
  if (0 < wish.top_k || wish.top_p < 1.0f) {
    const u32 kept = list_kept(row, wish, cut, s);
    if (kept != NONE) return loudest_listed(row, kept, floor, key, likeliest, s).at;
  }
  if (0 < wish.top_k) cut = tighten(row, cut, wish.top_k, false, s);
  if (wish.top_p < 1.0f) {
    cut = tighten(row, cut, share_of(wish.top_p, total_mass(row, cut, s)), true, s);
  }
  return loudest(row, 0, cut, floor, key, likeliest, s).at;
}
