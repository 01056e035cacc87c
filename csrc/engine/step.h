// The input and the output of one step.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sampling/sample.h"

namespace pb {

// The rows of an entry that are pooled into one vector: none, all, the first or the last one.
enum class Pooling { kNone, kMean, kFirst, kLast };

// Tokens to append to one sequence. `wants_logits`: compute the logits of the last of them, to
// sample the token after it or to return them.
//
// The last n_draft tokens are a draft of the tokens that will be sampled. Logits are computed for
// all of them and for the token before them. A draft token is accepted, and appended, if it equals
// the token sampled before it. The first rejected draft token and all after it are dropped, so the
// sampled tokens are those that steps of one token each would sample.
//
// Instead of sampling, an entry may want log-probabilities of given tokens, one after each of its
// last rows (targets), with those of the likeliest tokens there (n_top), and its rows pooled into
// one vector (pooling).
struct StepEntry {
  int seq_id = 0;
  std::span<const int32_t> tokens;
  bool wants_logits = false;
  int n_draft = 0;  // fewer than tokens.size(); 0 where no logits are wanted

  std::span<const int32_t> targets = {};  // at most tokens.size()
  float* logprobs = nullptr;              // out: (targets.size())
  int n_top = 0;                          // 0..kMaxLogprobs: likeliest tokens beside each target
  TokenLogprob* top = nullptr;  // out: (targets.size(), n_top), of a row at most vocab are set
  // (n_wanted(), mask_words(vocab)): tokens that may be sampled after each row whose logits are
  // wanted, there once the step's TokenMasks are open; null: all.
  const uint32_t* masks = nullptr;
  Pooling pooling = Pooling::kNone;
  float* embedding = nullptr;  // out: (hidden_size), where something is pooled

  // Rows, the last ones, whose logits are wanted.
  size_t n_wanted() const {
    return wants_logits ? static_cast<size_t>(n_draft) + 1 : targets.size();
  }
  // Rows [first_pooled(), end_pooled()) are those whose states after the final norm are wanted.
  size_t first_pooled() const { return pooling == Pooling::kLast ? tokens.size() - 1 : 0; }
  size_t end_pooled() const {
    if (pooling == Pooling::kNone) return 0;
    return pooling == Pooling::kFirst ? 1 : tokens.size();
  }
  bool wants_scores_or_embedding() const { return !targets.empty() || pooling != Pooling::kNone; }
};

// The sample of one sequence, or the reason why nothing could be sampled, scored or pooled.
struct StepSample {
  int seq_id = 0;
  Sample sample;
};

}  // namespace pb
