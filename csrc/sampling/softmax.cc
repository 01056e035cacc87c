#include "sampling/softmax.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace pb {

// The maximum is computed in lanes, so that the loop vectorises.
int32_t argmax(std::span<const float> values) {
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> largest;
  largest.fill(values[0]);
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      largest[lane] = std::max(largest[lane], values[i + lane]);
    }
  }
  for (; i < values.size(); ++i) largest[0] = std::max(largest[0], values[i]);
  const float all = *std::max_element(largest.begin(), largest.end());
  return static_cast<int32_t>(std::find(values.begin(), values.end(), all) - values.begin());
}

// Sums in eight lanes per block, so that the loop vectorises and the order depends only on the
// index.
double total_weight(std::span<const float> scores, const Weight& weight) {
  constexpr size_t kBlock = 256;
  constexpr size_t kLanes = 8;
  std::array<float, kBlock> weights;
  std::array<double, kLanes> sums{};
  for (size_t begin = 0; begin < scores.size(); begin += kBlock) {
    const size_t n = std::min(kBlock, scores.size() - begin);
    for (size_t i = 0; i < n; ++i) weights[i] = weight(scores[begin + i]);
    for (size_t i = n; i < kBlock; ++i) weights[i] = 0.0f;
    for (size_t i = 0; i < kBlock; ++i) sums[i % kLanes] += weights[i];
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

LogSoftmax::LogSoftmax(std::span<const float> logits)
    : logits_(logits),
      largest_(logits[static_cast<size_t>(argmax(logits))]),
      log_total_(std::log(total_weight(logits, Weight(largest_, 1.0)))) {}

float LogSoftmax::operator()(int32_t token) const {
  const double above = double{logits_[static_cast<size_t>(token)]} - double{largest_};
  return static_cast<float>(above - log_total_);
}

}  // namespace pb
