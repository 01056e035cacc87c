// What one step is asked to do and what comes of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/sampler.h"

namespace pb {

// What one vector is made of: nothing, all rows of an entry, its last one.
enum class Pooling { kNone, kMean, kLast };

// Tokens to append to one sequence. `wants_logits`: those of the last of them are wanted, to draw
// the token after it or to hand them out.
//
// The last n_draft tokens are guesses at what will be drawn. Logits are wanted of all of them,
// and of the token before them. A guess that is what is drawn before it is appended; from the first
// that is not, they are given up. So what is drawn is what steps of one token each would draw.
//
// Instead of drawing, an entry may ask about its own tokens: for the log-probability of a token
// after each of its last rows (targets), and for its rows pooled into one vector (pooling).
struct StepEntry {
  int seq_id = 0;
  std::span<const int32_t> tokens;
  bool wants_logits = false;
  int n_draft = 0;  // fewer than tokens.size(); 0 where no logits are wanted

  std::span<const int32_t> targets = {};  // at most tokens.size()
  float* logprobs = nullptr;              // out: (targets.size())
  Pooling pooling = Pooling::kNone;
  float* embedding = nullptr;  // out: (hidden_size), where something is pooled

  // Rows, the last ones, whose logits are wanted.
  size_t n_wanted() const {
    return wants_logits ? static_cast<size_t>(n_draft) + 1 : targets.size();
  }
  // Rows, the last ones, whose states after the final norm are wanted.
  size_t n_pooled() const {
    if (pooling == Pooling::kNone) return 0;
    return pooling == Pooling::kMean ? tokens.size() : 1;
  }
  bool asks() const { return !targets.empty() || pooling != Pooling::kNone; }
};

// What was drawn for one sequence, or why nothing could be drawn, scored or pooled.
struct StepDraw {
  int seq_id = 0;
  Draw draw;
};

}  // namespace pb
