// How one sequence samples its tokens. The meaning and range of each field is that of
// pybatcher.SamplingParams; what a sample needs besides is here too.
#pragma once

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
  std::vector<std::pair<int32_t, float>> logit_bias;  // (token id, added to its logit)
  int min_tokens = 0;
  std::vector<int32_t> stop_token_ids;  // not sampled before min_tokens tokens are
  bool wants_logprobs = false;
  int top_logprobs = 0;  // 0..kMaxLogprobs, where wants_logprobs
  uint64_t seed = 0;     // with a token's absolute position, the key of its sample
  int n_prompt = 0;      // positions below this hold the prompt

  // Throws kInvalidRequest naming the field, its value and its range.
  void validate(int vocab_size) const;
};

}  // namespace pb
