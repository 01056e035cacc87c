// Samples the next token of a sequence from the logits of its last row.
//
// A sample is a pure function of the logits, the sequence's Sampling and its tokens; randomness is
// uniform(seed, position) with the position of the token that is sampled. So it is the same
// whatever else is in the batch, and a replay of the same tokens repeats it (invariant 1).
//
// Order of operations (transformers' and vLLM's where they agree, else transformers'):
//   1. log-probabilities, where asked for, of the model's own distribution
//   2. logit bias
//   3. repetition penalty, over prompt and output: positive logits divided by it, others multiplied
//      (Keskar et al. 2019, arXiv:1909.05858)
//   4. presence and frequency penalty, over the output (OpenAI's API)
//   5. stop ids are forbidden while fewer than min_tokens tokens are sampled; so are all tokens
//   that
//      a mask excludes
//   6. greedy: the largest logit, of equals the lowest id. Else:
//   7. temperature
//   8. top-k, then top-p (Holtzman et al. 2019, arXiv:1904.09751) of what is left, renormalised,
//      then min-p (Nguyen et al. 2024, arXiv:2407.01082), over the order "larger logit first, of
//      equals the lower id first": each keeps a prefix of it
//   9. the inverse of the cumulative distribution, in that order, at one uniform number
// Sums are in double and in an order fixed by token id or by that order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sampling/sample.h"
#include "sampling/sampling.h"

namespace pb {

class Sampler {
 public:
  explicit Sampler(int vocab_size);

  // logits (vocab_size). The sequence's tokens are `history` followed by `appended`; the token that
  // is sampled comes after them. mask (mask_words(vocab_size)), null: all may be sampled. Allocates
  // nothing.
  Sample sample(std::span<const float> logits, const Sampling& sampling,
                std::span<const int32_t> history, std::span<const int32_t> appended,
                const uint32_t* mask = nullptr);

  // Scores `token`: returns its log-probability under logits (vocab_size) and those of the n_top
  // likeliest tokens, or a failure. Allocates nothing.
  Sample scored(std::span<const float> logits, int32_t token, int n_top = 0);

 private:
  float& score(int32_t token) { return scores_[static_cast<size_t>(token)]; }
  void penalise(const Sampling& sampling, std::span<const int32_t> history,
                std::span<const int32_t> appended);
  void note_logprobs(std::span<const float> logits, int n_top, Sample& sample);

  std::vector<float> scores_;      // (vocab): logits after penalties, bias and bans
  std::vector<uint64_t> ranking_;  // (vocab): scratch of ranking tokens
  std::vector<int32_t> counts_;    // (vocab): how often in the output; zero between samples
  std::vector<uint8_t> seen_;      // (vocab): in prompt or output; zero between samples
};

}  // namespace pb
