// The input and the output of one step.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "sampling/sample.h"

namespace pb {

// Selects the rows of an entry that are pooled into one vector: none, all, the first or the last.
enum class Pooling { kNone, kMean, kFirst, kLast };

// The least token id that stands for a row of an image. It is above every vocabulary.
inline constexpr int32_t kFirstImageId = kMaxVocab;

// Rows of images that stand for tokens of an entry, one after the other. Their tokens are ids from
// kFirstImageId on; the caller gives equal ids to rows of equal content only.
struct EntryImage {
  int offset = 0;  // index of the first token in the entry
  int n_rows = 0;
  const float* values = nullptr;  // (n_rows, ModelConfig::image_columns())
};

// The tokens to append to one sequence in a step. If wants_logits is set, the logits of the last
// token are computed, to sample the next token or to return them.
//
// The last n_draft tokens are draft tokens. Logits are computed for all of them and for the token
// before them. A draft token is accepted and appended if it equals the token sampled before it. The
// first rejected draft token and all tokens after it are dropped, so the sampled tokens are the
// same as in steps of one token each.
//
// Instead of sampling, an entry may request the log-probabilities of given tokens, one after each
// of its last rows (`targets`), with those of the most likely tokens there (n_top). It may also
// request that its rows are pooled into one vector (`pooling`).
struct StepEntry {
  int seq_id = 0;
  std::span<const int32_t> tokens;
  bool wants_logits = false;
  int n_draft = 0;  // must be less than tokens.size(), and 0 unless wants_logits

  std::span<const int32_t> targets = {};  // at most tokens.size()
  float* logprobs = nullptr;              // out: (targets.size())
  int n_top = 0;                          // 0..kMaxLogprobs: most likely tokens per target
  TokenLogprob* top = nullptr;            // out: (targets.size(), n_top); at most vocab per row
  // (n_wanted(), mask_words(vocab)): the tokens that may be sampled after each row whose logits are
  // wanted. The masks are valid once the step's TokenMasks are open. If null, all tokens may be
  // sampled.
  const uint32_t* masks = nullptr;
  std::span<const EntryImage> images = {};  // in ascending order, without overlap
  Pooling pooling = Pooling::kNone;
  float* embedding = nullptr;  // out: (hidden_size), if pooling is not kNone

  // Returns the number of last rows whose logits are wanted.
  size_t n_wanted() const {
    return wants_logits ? static_cast<size_t>(n_draft) + 1 : targets.size();
  }
  // The rows [first_pooled(), end_pooled()) are pooled: their states after the final norm are
  // needed.
  size_t first_pooled() const { return pooling == Pooling::kLast ? tokens.size() - 1 : 0; }
  size_t end_pooled() const {
    if (pooling == Pooling::kNone) return 0;
    return pooling == Pooling::kFirst ? 1 : tokens.size();
  }
  bool wants_scores_or_embedding() const { return !targets.empty() || pooling != Pooling::kNone; }
};

// A sample of a sequence, or the reason why it could not be sampled, scored or pooled.
struct StepSample {
  int seq_id = 0;
  Sample sample;
};

}  // namespace pb
