// The softmax of logits: the largest logit, weights, their sum, and log-probabilities. Sums are
// computed in double and in an order fixed by token id.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "sampling/fast_exp.h"

namespace pb {

// Returns the index of the largest value; of equal ones, the first.
int32_t argmax(std::span<const float> values);

// Computes exp((score - largest) / temperature), the unnormalised probability of a score.
class Weight {
 public:
  Weight(float largest, double temperature)
      : largest_(largest), inverse_(static_cast<float>(std::min(1.0 / temperature, 1e30))) {}

  float operator()(float score) const { return exp_not_positive((score - largest_) * inverse_); }

 private:
  float largest_;
  float inverse_;
};

// Returns the sum of the weights of all scores.
double total_weight(std::span<const float> scores, const Weight& weight);

// Computes log softmax(logits). The logits must be finite, at least one, and outlive this object.
class LogSoftmax {
 public:
  explicit LogSoftmax(std::span<const float> logits);

  float largest() const { return largest_; }  // the largest logit
  float operator()(int32_t token) const;

 private:
  std::span<const float> logits_;
  float largest_;
  double log_total_;
};

}  // namespace pb
