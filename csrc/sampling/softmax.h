// The softmax of logits: the largest logit, weights, their sum, log-probabilities.
// Sums are in double and in an order fixed by token id.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "sampling/fast_exp.h"

namespace pb {

// The index of the largest value, of equals the first.
int32_t argmax(std::span<const float> values);

// exp((score - largest) / temperature)
class Weight {
 public:
  Weight(float largest, double temperature)
      : largest_(largest), inverse_(static_cast<float>(std::min(1.0 / temperature, 1e30))) {}

  float operator()(float score) const { return exp_not_positive((score - largest_) * inverse_); }

 private:
  float largest_;
  float inverse_;
};

// The sum of all weights.
double total_weight(std::span<const float> scores, const Weight& weight);

// log softmax(logits). The logits must outlive it, be finite, and one at least.
class LogSoftmax {
 public:
  explicit LogSoftmax(std::span<const float> logits);

  float largest() const { return largest_; }  // of the logits
  float operator()(int32_t token) const;

 private:
  std::span<const float> logits_;
  float largest_;
  double log_total_;
};

}  // namespace pb
