// Samples or scores a token for each row of logits. csrc/sampling/sample.h defines the steps and
// their order.
//
// Greedy samples are equal to those of the host's sampler. Random samples differ from the host's
// only if the rounding of a weight decides, and never depend on the other rows of the batch.
#pragma once

#include "cuda/device_code/device_code.h"
#include "cuda/sampling/params_sampling.h"
#include "cuda/sampling/radix_select.cuh"

namespace pb::cuda {
namespace {

// The first token in the order and the smallest score of a row.
struct Extremes {
  TokenKey first;
  unsigned smallest;  // as descending()
};

using SharedExtremes = Extremes[kSampleThreads / 32];

__device__ __forceinline__ void take_in(Extremes& all, const Extremes& more) {
  if (more.first < all.first) all.first = more.first;
  if (more.smallest > all.smallest) all.smallest = more.smallest;
}

// Returns the extremes of all threads. A kernel may call this once.
__device__ __forceinline__ Extremes block_extremes(SharedExtremes& shared, Extremes own) {
  for (int step = 16; step > 0; step /= 2) {
    take_in(own, {__shfl_xor_sync(kAllLanes, own.first, step),
                  __shfl_xor_sync(kAllLanes, own.smallest, step)});
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = own;
  __syncthreads();
  Extremes all = shared[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) take_in(all, shared[w]);
  return all;
}

// Returns mass * fraction / 2^kFractionBits, truncated or rounded up.
__device__ __forceinline__ Mass part_of(Mass mass, uint64_t fraction, bool rounds_up) {
  const auto product = static_cast<unsigned __int128>(mass) * fraction;
  const Mass cut = static_cast<Mass>(product >> kFractionBits);
  const Mass rest = static_cast<Mass>(product) & ((Mass{1} << kFractionBits) - 1);
  return rounds_up && rest != 0 ? cut + 1 : cut;
}

// Samples a token by the row's temperature, top_k, top_p and min_p. Returns `likeliest` if no token
// has a mass, because a score is infinite.
__device__ __forceinline__ int draw_random(Selector& s, const Ranking& ranking,
                                           const RowSampling& row, int likeliest) {
  enum Step { kTopK, kTopP, kDraw };  // each step keeps the tokens up to and including one token
  fill_coarse(s, ranking);
  TokenKey last = ~TokenKey{0};  // the last token that is kept
  Mass mass = total_mass(s);     // of the tokens that are kept
  if (mass == 0) return likeliest;
  for (int step = kTopK; step <= kDraw; ++step) {
    By by = By::kMass;
    Mass target = 0;
    if (step == kTopK) {
      if (row.top_k == 0 || row.top_k >= ranking.size()) continue;
      by = By::kCount;
      target = static_cast<Mass>(row.top_k) - 1;
    } else if (step == kTopP) {
      if (row.top_p >= uint64_t{1} << kFractionBits) continue;
      target = part_of(mass, row.top_p, true) - 1;
    } else {
      if (row.min_p > 0.0f) mass = likely_mass(s, ranking, last, row.min_p);
      target = part_of(mass, row.uniform, false);
    }
    const SelectedToken selected = select_token(s, ranking, by, target);
    last = selected.key;
    mass = selected.mass_before + selected.mass;
  }
  return token_of(last);
}

// Returns the extremes of scores (n), computed by the whole block. With may_forbid, -inf does not
// count as a score.
__device__ __forceinline__ Extremes extremes_of(SharedExtremes& shared, const float* scores, int n,
                                                bool may_forbid) {
  unsigned largest = ~0u;  // as descending(), like the smallest
  unsigned smallest = 0;
  int first = 0;
  for_each_score(scores, n, [&](float score, int id) {
    const unsigned bits = descending(score);
    if (bits < largest) {  // a thread's ids ascend: the first of equals stays
      largest = bits;
      first = id;
    }
    if (bits > smallest && !(may_forbid && bits == kDescendingForbidden)) smallest = bits;
  });
  const TokenKey key = TokenKey{largest} << kIdBits | static_cast<unsigned>(first);
  return block_extremes(shared, {key, smallest});
}

// Checks logits and finds the likeliest token, which is the result of a greedy sample without
// changes.
PB_KERNEL(find_likeliest, SampleParams, kSampleThreads) {
  __shared__ SharedExtremes shared;
  const RowSampling& row = p.rows[blockIdx.x];
  const float* logits = p.logits + static_cast<int64_t>(blockIdx.x) * p.vocab;
  const Extremes extremes = extremes_of(shared, logits, p.vocab, false);
  if (threadIdx.x != 0) return;
  SampledRow& out = p.sampled[blockIdx.x];
  const bool is_finite =
      extremes.first >> kIdBits >= kDescendingLargest && extremes.smallest <= kDescendingSmallest;
  out.status = is_finite ? kSampled : kLogitsNotFinite;
  if (!is_finite) return;
  out.token = row.target >= 0 ? row.target : token_of(extremes.first);
  out.logit = logits[out.token];
  out.logits = {score_of(extremes.first), from_descending(extremes.smallest)};
  out.scores = out.logits;
  out.mass = 0;
  out.n_top = 0;
}

// Computes the scores of rows with changes from their logits, and finds the likeliest token. Runs
// after find_likeliest.
PB_KERNEL(change_scores, SampleParams, kSampleThreads) {
  __shared__ SharedExtremes shared;
  const RowSampling& row = p.rows[blockIdx.x];
  SampledRow& out = p.sampled[blockIdx.x];
  if (row.n_changes == 0 || out.status != kSampled) return;
  const int64_t offset = static_cast<int64_t>(blockIdx.x) * p.vocab;
  const float* logits = p.logits + offset;
  float* scores = p.scores + offset;
  for_each_score(logits, p.vocab, [&](float logit, int id) { scores[id] = logit; });
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < row.n_changes;
       i += static_cast<int>(blockDim.x)) {
    const ScoreChange& change = p.changes[row.first_change + i];
    const float penalty = row.repetition_penalty;
    float v = logits[change.token] + change.bias;
    if (change.is_seen) v = v > 0.0f ? v / penalty : v * penalty;
    v -= change.penalty;
    scores[change.token] = change.is_forbidden ? from_descending(kDescendingForbidden) : v;
  }
  __syncthreads();
  const Extremes extremes = extremes_of(shared, scores, p.vocab, true);
  if (threadIdx.x != 0) return;
  if (extremes.first >> kIdBits == kDescendingForbidden) {
    out.status = kAllForbidden;
    return;
  }
  out.token = token_of(extremes.first);
  out.logit = logits[out.token];
  out.scores = {score_of(extremes.first), from_descending(extremes.smallest)};
}

// Samples a token if the row's temperature is not 0. Runs after find_likeliest and change_scores.
PB_KERNEL(draw_tokens, SampleParams, kSampleThreads) {
  __shared__ Selector selector;
  const RowSampling& row = p.rows[blockIdx.x];
  SampledRow& out = p.sampled[blockIdx.x];
  if (row.target >= 0 || row.inverse_temperature == 0.0f || out.status != kSampled) return;
  const int64_t offset = static_cast<int64_t>(blockIdx.x) * p.vocab;
  const float* logits = p.logits + offset;
  const Ranking ranking(row.n_changes > 0 ? p.scores + offset : logits, p.vocab, out.scores,
                        row.inverse_temperature);
  const int token = draw_random(selector, ranking, row, out.token);
  if (threadIdx.x != 0) return;
  out.token = token;
  out.logit = logits[token];
}

// Collects the host's data for log-probabilities: the mass of all tokens, and the likeliest tokens.
// Runs after find_likeliest.
PB_KERNEL(note_logprobs, SampleParams, kSampleThreads) {
  __shared__ Selector s;
  const RowSampling& row = p.rows[blockIdx.x];
  SampledRow& out = p.sampled[blockIdx.x];
  if (!row.wants_logprobs || out.status != kSampled) return;
  const float* logits = p.logits + static_cast<int64_t>(blockIdx.x) * p.vocab;
  const Ranking ranking(logits, p.vocab, out.logits, 1.0f);
  const int n_top = row.n_top < p.vocab ? row.n_top : p.vocab;
  if (n_top == 0) {
    const Mass mass = likely_mass(s, ranking, ~TokenKey{0}, 0.0f);
    if (threadIdx.x == 0) out.mass = mass;
    return;
  }
  fill_coarse(s, ranking);
  if (threadIdx.x == 0) {
    out.mass = total_mass(s);
    out.n_top = n_top;
  }
  const Mass rank_of_last = static_cast<Mass>(n_top) - 1;
  const TokenKey last = select_token(s, ranking, By::kCount, rank_of_last).key;
  gather(s, ranking, [&](float, TokenKey key) { return key <= last; });
  for (int i = static_cast<int>(threadIdx.x); i < n_top; i += static_cast<int>(blockDim.x)) {
    int rank = 0;
    for (int j = 0; j < n_top; ++j) rank += s.keys[j] < s.keys[i] ? 1 : 0;
    out.top_tokens[rank] = token_of(s.keys[i]);
    out.top_logits[rank] = logits[token_of(s.keys[i])];
  }
}

}  // namespace
}  // namespace pb::cuda
