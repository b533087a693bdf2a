// choices[c] = the token that follows the row of chooser c: a function of its logits, its request
// and its position, never of what else is in the step.
//
// In this order: bias; repetition, frequency and presence penalty; mask and least length;
// log-probabilities are taken; temperature; top-k, top-p, min-p; then the token with the largest
// (logit / temperature + noise), the lowest of equals. Masses are summed as integers, multiples of
// 2^-32, so that no sum depends on an order.
#include "choose.cuh"
#include "together.cuh"

// From a plain row, of which each block of the cluster looks at a slice.
DEV void choose_together(const Sample& p, const Chooser& it, Told (&told)[2], Scratch& s) {
  const Slice slice(p.vocab);
  Row row = {p.logits + (size_t)it.number * p.vocab + slice.first, (int)slice.count};
  Found own;
  find_largest(row, own.value, own.at, s);
  if (own.at != NONE) own.at += slice.first;
  const Found likeliest = largest_of_cluster(told[0], own);
  const bool is_empty = likeliest.value == NEGATIVE_INFINITY;
  u32 chosen = likeliest.at;
  if (!is_empty && it.draws()) {
    row.most = likeliest.value, row.temperature = it.wish.temperature;
    const u64 key = noise_key(it.wish, it.position);
    own = loudest(row, slice.first, any_that_can_win(row), NEGATIVE_INFINITY, key, chosen, s);
    chosen = largest_of_cluster(told[1], own).at;
  }
  if (threadIdx.x == 0 && cluster_rank() == 0) p.choices[it.number] = is_empty ? 0 : chosen;
}

// grid: (blocks of a cluster, choosers); block: 512; shared: a bit for each token. The first block
// alone takes a row that is not plain.
KERNEL __launch_bounds__(THREADS, 1) sample(const Sample p) {
  __shared__ Scratch s;
  __shared__ Told told[2];
  extern __shared__ u32 seen[];
  meet_cluster();
  wait_for_previous();
  let_next_start();
  const u32 row = p.step.chooser_rows[blockIdx.y];
  if (!exists(p, row)) return;
  const Chooser it(p, blockIdx.y, row);
  if (it.is_plain()) choose_together(p, it, told, s);
  else if (cluster_rank() == 0) choose(p, it, seen, s);
}

// ---- from slices, one of each rank

// Tells the likeliest of the own slice, or that it can be fetched.
DEV void tell_likeliest(const Sample& p, const Collective& c, const Chooser& it, u32 mark,
                        Scratch& s) {
  Found own = {0.0f, 0};
  if (it.is_plain()) {
    const u32 first = c.starts[c.rank];
    Row row = {slice_row(c, c.rank, it.number), (int)(c.starts[c.rank + 1] - first)};
    find_largest(row, own.value, own.at, s);
    if (own.at != NONE) own.at += first;
  } else {
    fence();
  }
  tell(c, it.number * 2, mark, own);
}

// Tells the loudest of the own slice: what the one of all is cannot be known without the likeliest.
DEV void tell_loudest(const Collective& c, const Chooser& it, u32 mark, Scratch& s) {
  const Found likeliest = largest_told(c, it.number * 2, mark);
  const u32 first = c.starts[c.rank];
  const Row row = {slice_row(c, c.rank, it.number), (int)(c.starts[c.rank + 1] - first),
                   likeliest.value, it.wish.temperature};
  const u64 key = noise_key(it.wish, it.position);
  const Cut cut = any_that_can_win(row);
  tell(c, it.number * 2 + 1, mark,
       loudest(row, first, cut, NEGATIVE_INFINITY, key, likeliest.at, s));
}

DEV void choose_told(const Sample& p, const Collective& c, const Chooser& it, u32 mark) {
  if (threadIdx.x != 0) return;
  Found chosen = largest_told(c, it.number * 2, mark);
  const bool is_empty = chosen.value == NEGATIVE_INFINITY;
  if (it.draws()) chosen = largest_told(c, it.number * 2 + 1, mark);
  p.choices[it.number] = is_empty ? 0 : chosen.at;
}

DEV void choose_fetched(const Sample& p, const Collective& c, const Chooser& it, u32 mark,
                        u32* seen, Scratch& s) {
  largest_told(c, it.number * 2, mark);
  fence();
  bool by_4 = p.vocab % 4 == 0;
  for (u32 rank = 0; rank < c.ranks; ++rank) by_4 = by_4 && c.starts[rank] % 4 == 0;
  float* logits = p.logits + (size_t)it.number * p.vocab;
  if (by_4) fetch_row<float4>(c, it.number, logits);
  else fetch_row<float>(c, it.number, logits);
  __syncthreads();
  choose(p, it, seen, s);
}

// The same choices, where each rank has a slice of each row: one that is plain costs no more than
// telling what is the largest here.
//
// grid: choosers; block: 512; shared: a bit for each token.
KERNEL __launch_bounds__(THREADS, 1) sample_slices(const Sample p, const Collective c) {
  __shared__ Scratch s;
  extern __shared__ u32 seen[];
  wait_for_previous();
  let_next_start();
  const u32 row = p.step.chooser_rows[blockIdx.x];
  if (!exists(p, row)) return;
  u32* count = choosing_count(c);
  const u32 mark = *count + 1;
  const Chooser it(p, blockIdx.x, row);
  tell_likeliest(p, c, it, mark, s);
  if (!it.is_plain()) {
    choose_fetched(p, c, it, mark, seen, s);
  } else {
    if (it.draws()) tell_loudest(c, it, mark, s);
    choose_told(p, c, it, mark);
  }
  __syncthreads();
  if (threadIdx.x == 0) *count = mark;
}
