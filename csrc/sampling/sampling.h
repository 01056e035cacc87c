// The sampling parameters of one sequence. The fields have the meanings and ranges of
// pybatcher.SamplingParams; the seed and n_prompt are added for reproducible sampling.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace pb {

inline constexpr int kMaxLogprobs = 32;

struct Sampling {
  double temperature = 0.0;  // 0 = greedy
  int top_k = 0;             // 0 = all
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::vector<std::pair<int32_t, float>> logit_bias;  // (token id, bias)
  int min_tokens = 0;
  std::vector<int32_t> stop_token_ids;  // forbidden until min_tokens tokens are sampled
  bool wants_logprobs = false;
  int top_logprobs = 0;  // 0..kMaxLogprobs, if wants_logprobs
  uint64_t seed = 0;     // the random number depends on the seed and the token's position
  int n_prompt = 0;      // length of the prompt in tokens

  // Returns repetition_penalty for arithmetic in f32, in which a smaller penalty than 1e-30 would
  // divide scores to infinity.
  float repetition_factor() const {
    return std::max(static_cast<float>(repetition_penalty), 1e-30f);
  }

  // Throws kInvalidRequest, naming the field, its value and its range.
  void validate(int vocab_size) const;
};

}  // namespace pb
