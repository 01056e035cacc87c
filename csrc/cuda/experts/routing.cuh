// The routing of the rows of a pass to experts: first each row's choice, then the numbers of all
// pairs, by counting. Only whole numbers are added atomically.
#pragma once

#include "cuda/device_code/device_code.h"
#include "cuda/experts/params_experts.h"
#include "cuda/rows/activation.cuh"

namespace pb::cuda {
namespace {

constexpr unsigned kEveryLane = 0xffffffffu;

// Maps a score to an unsigned number of the same order, with equal numbers for equal scores (0 and
// -0 too). A NaN is above or below all other scores.
__device__ __forceinline__ unsigned ordered(float score) {
  const unsigned bits = __float_as_uint(score + 0.0f);  // -0 becomes 0
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// The choice of a row's experts by a warp. Lane l has experts l, l + 32 ... Bit l of word i of
// `chosen` is expert 32 i + l.
class Choice {
 public:
  // chosen (n_experts / 32, rounded up) is shared by the warp.
  __device__ __forceinline__ Choice(const RouteParams& p, unsigned* chosen)
      : logits_(p.logits + static_cast<int64_t>(blockIdx.x) * p.n_experts),
        bias_(p.bias),
        is_sigmoid_(p.sigmoid != 0),
        n_experts_(p.n_experts),
        n_words_((p.n_experts + 31) / 32),
        lane_(static_cast<int>(threadIdx.x)),
        chosen_(chosen) {
    for (int i = lane_; i < n_words_; i += 32) chosen_[i] = 0;
    __syncwarp();
    if (is_sigmoid_ || bias_ == nullptr) return;
    float top = logits_[0];
    for (int i = lane_; i < n_experts_; i += 32) top = logits_[i] > top ? logits_[i] : top;
    greatest_ = warp_max(top);
    float own = 0.0f;
    for (int i = lane_; i < n_experts_; i += 32) own += exp_of(logits_[i] - greatest_);
    sum_ = warp_sum(own);
  }

  // Chooses the expert with the greatest score that is not chosen yet; among equal scores, the
  // lowest number. Returns the expert's logit.
  __device__ __forceinline__ float take_greatest() {
    unsigned best = 0;
    int expert = kMostExperts;  // no expert
    for (int i = 0; i < n_words_; ++i) {
      if (!is_there(i) || is_chosen(i)) continue;
      const unsigned key = ordered(score(32 * i + lane_));
      if (expert < kMostExperts && key <= best) continue;
      best = key;
      expert = 32 * i + lane_;
    }
    for (int step = 16; step > 0; step /= 2) {
      const unsigned other = __shfl_xor_sync(kEveryLane, best, step);
      const int of_other = __shfl_xor_sync(kEveryLane, expert, step);
      // A lane without experts has kMostExperts and loses to all others.
      const bool is_better =
          expert == kMostExperts || other > best || (other == best && of_other < expert);
      if (of_other == kMostExperts || !is_better) continue;
      best = other;
      expert = of_other;
    }
    __syncwarp();  // all lanes have read chosen_
    if (lane_ == 0) chosen_[expert / 32] |= 1u << expert % 32;
    __syncwarp();
    return logits_[expert];
  }

  __device__ __forceinline__ bool is_there(int word) const {
    return 32 * word + lane_ < n_experts_;
  }
  __device__ __forceinline__ bool is_chosen(int word) const {
    return (chosen_[word] >> lane_ & 1u) != 0;
  }
  // Returns the number of chosen experts in a word that are before the lane's expert.
  __device__ __forceinline__ int before(int word) const {
    return __popc(chosen_[word] & ((1u << lane_) - 1));
  }
  __device__ __forceinline__ int n_chosen(int word) const { return __popc(chosen_[word]); }
  __device__ __forceinline__ int n_words() const { return n_words_; }
  __device__ __forceinline__ int expert(int word) const { return 32 * word + lane_; }
  __device__ __forceinline__ float logit(int word) const { return logits_[expert(word)]; }
  // Returns whether experts are chosen by the parts of a softmax, and the greatest logit then.
  __device__ __forceinline__ bool is_by_softmax() const { return !is_sigmoid_ && bias_ != nullptr; }
  __device__ __forceinline__ float greatest() const { return greatest_; }

 private:
  __device__ __forceinline__ float score(int expert) const {
    const float logit = logits_[expert];
    if (is_sigmoid_) return bias_ == nullptr ? sigmoid(logit) : sigmoid(logit) + bias_[expert];
    return bias_ == nullptr ? logit : exp_of(logit - greatest_) / sum_ + bias_[expert];
  }

  const float* logits_;
  const float* bias_;
  bool is_sigmoid_;
  float greatest_ = 0.0f;  // of the logits, and the sum of the exponentials below it: of a softmax
  float sum_ = 1.0f;       // with biases
  int n_experts_;
  int n_words_;
  int lane_;
  unsigned* chosen_;
};

// Returns the weight of an expert before the division by a sum.
__device__ __forceinline__ float weight_of(float logit, float greatest, bool is_sigmoid) {
  return is_sigmoid ? sigmoid(logit) : exp_of(logit - greatest);
}

// In each sum, a lane adds its experts in ascending order, and lanes are added by a fixed tree.
PB_KERNEL(route_rows, RouteParams, 32) {
  __shared__ unsigned chosen[kMostExperts / 32];
  Choice choice(p, chosen);
  float greatest = choice.take_greatest();
  for (int i = 1; i < p.n_per_row; ++i) {
    const float logit = choice.take_greatest();
    greatest = logit > greatest ? logit : greatest;  // with biases, it may not come first
  }
  const bool is_sigmoid = p.sigmoid != 0;
  const bool of_chosen = p.normalised != 0 || is_sigmoid;
  if (choice.is_by_softmax() && !of_chosen) greatest = choice.greatest();
  float own = 0.0f;
  for (int i = 0; i < choice.n_words(); ++i) {
    if (!choice.is_there(i) || (of_chosen && !choice.is_chosen(i))) continue;
    own += weight_of(choice.logit(i), greatest, is_sigmoid);
  }
  const float all = warp_sum(own);
  const float sum = !is_sigmoid ? all : p.normalised != 0 ? all + p.sum_eps : 1.0f;
  int64_t at = static_cast<int64_t>(blockIdx.x) * p.n_per_row;
  for (int i = 0; i < choice.n_words(); ++i) {
    if (choice.is_there(i) && choice.is_chosen(i)) {
      const int64_t to = at + choice.before(i);
      const float weight = weight_of(choice.logit(i), greatest, is_sigmoid) / sum * p.scale;
      p.experts[to] = choice.expert(i);
      p.weights[to] = p.scales == nullptr ? weight : weight * p.scales[choice.expert(i)];
    }
    at += choice.n_chosen(i);
  }
}

using PairWarps = int[kNumberPairsThreads / 32];  // shared by a block: a number for each warp

// Returns the sum of all threads' v; every thread gets it.
__device__ __forceinline__ int block_sum(int v, PairWarps& warps) {
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(kEveryLane, v, step);
  __syncthreads();  // all threads have read the previous sum
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  int sum = 0;
  for (const int of_warp : warps) sum += of_warp;
  return sum;
}

// Every block counts the pairs of all experts, so that it knows the number of pairs before its own.
PB_KERNEL(number_pairs, NumberPairsParams, kNumberPairsThreads) {
  __shared__ PairWarps warps;
  DYNAMIC_SHARED(int, counts);  // (n_experts)
  const int expert = static_cast<int>(blockIdx.x);
  const int t = static_cast<int>(threadIdx.x);
  for (int e = t; e < p.n_experts; e += kNumberPairsThreads) counts[e] = 0;
  __syncthreads();
  for (int i = t; i < p.n_pairs; i += kNumberPairsThreads) atomicAdd(&counts[p.experts[i]], 1);
  __syncthreads();
  int pairs_before = 0;
  int tiles_before = 0;
  for (int e = t; e < expert; e += kNumberPairsThreads) {
    pairs_before += counts[e];
    tiles_before += (counts[e] + p.tile_rows - 1) / p.tile_rows;
  }
  const int begin = block_sum(pairs_before, warps);
  const int first_tile = block_sum(tiles_before, warps);
  const int n_own = counts[expert];
  const int n_own_tiles = (n_own + p.tile_rows - 1) / p.tile_rows;
  if (t == 0) {
    p.begins[expert] = begin;
    if (expert == p.n_experts - 1) {
      p.begins[p.n_experts] = begin + n_own;
      p.tiles->n_tiles = first_tile + n_own_tiles;
    }
  }
  for (int i = t; i < n_own_tiles; i += kNumberPairsThreads) {
    const int left = n_own - i * p.tile_rows;
    p.tiles->tiles[first_tile + i] = {expert, begin + i * p.tile_rows,
                                      left < p.tile_rows ? left : p.tile_rows};
  }
  int next = begin;
  for (int first = 0; next < begin + n_own; first += kNumberPairsThreads) {
    const bool is_own = first + t < p.n_pairs && p.experts[first + t] == expert;
    const unsigned own = __ballot_sync(kEveryLane, is_own);
    __syncthreads();  // all threads have read the previous counts
    if (t % 32 == 0) warps[t / 32] = __popc(own);
    __syncthreads();
    int number = next + __popc(own & ((1u << t % 32) - 1));
    for (int w = 0; w < kNumberPairsThreads / 32; ++w) {
      if (w < t / 32) number += warps[w];
      next += warps[w];
    }
    if (is_own) p.pairs[first + t] = number;
  }
}

}  // namespace
}  // namespace pb::cuda
