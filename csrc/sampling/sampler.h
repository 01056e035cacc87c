// Samples the next token of a sequence from the logits of its last row.
//
// A sample is a pure function of the logits, the sequence's Sampling and its tokens. The only
// randomness is uniform(seed, position), where `position` is the position of the sampled token. So
// a sample does not depend on the rest of the batch, and a replay of the same tokens repeats it
// (invariant 1).
//
// The operations are applied in this order (that of transformers and vLLM where they agree, else
// that of transformers):
//   1. Log-probabilities of the model's own distribution are computed, if requested.
//   2. The logit bias is added.
//   3. The repetition penalty is applied to tokens of the prompt and the output: positive logits
//      are divided by it, others are multiplied (Keskar et al. 2019, arXiv:1909.05858).
//   4. The presence and frequency penalties are applied to tokens of the output (OpenAI's API).
//   5. Stop ids are forbidden while fewer than min_tokens tokens are sampled, and so are all tokens
//      that a mask excludes.
//   6. Greedy sampling returns the largest logit; of equal ones, the lowest id. Random sampling
//      continues:
//   7. Logits are divided by the temperature.
//   8. Tokens are sorted by descending logit, then by ascending id. Three filters each keep a
//      prefix of this order: top-k, then top-p (Holtzman et al. 2019, arXiv:1904.09751) after
//      renormalisation, then min-p (Nguyen et al. 2024, arXiv:2407.01082).
//   9. One uniform number selects a token by the inverse of the cumulative distribution, in the
//      same order.
//
// Sums are computed in double, in the order of token ids or in the sorted order, so that they are
// reproducible.
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

  // Samples a token from logits (vocab_size). The sequence's tokens are `history` followed by
  // `appended`, and the sampled token comes after them. mask (mask_words(vocab_size)) selects the
  // tokens that may be sampled; null allows all. Allocates no memory.
  Sample sample(std::span<const float> logits, const Sampling& sampling,
                std::span<const int32_t> history, std::span<const int32_t> appended,
                const uint32_t* mask = nullptr);

  // Scores `token`: returns its log-probability under logits (vocab_size) and those of the n_top
  // most likely tokens, or a failure. Allocates no memory.
  Sample scored(std::span<const float> logits, int32_t token, int n_top = 0);

 private:
  float& score(int32_t token) { return scores_[static_cast<size_t>(token)]; }
  void penalise(const Sampling& sampling, std::span<const int32_t> history,
                std::span<const int32_t> appended);
  void note_logprobs(std::span<const float> logits, int n_top, Sample& sample);

  std::vector<float> scores_;      // (vocab): logits after bias, penalties and masks
  std::vector<uint64_t> ranking_;  // (vocab): scratch of RankedTokens
  std::vector<int32_t> counts_;    // (vocab): occurrences in the output; zero between calls
  std::vector<uint8_t> seen_;      // (vocab): 1 if penalised; zero between calls
};

}  // namespace pb
