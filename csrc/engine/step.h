// What one step is asked to do and what comes of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/sampler.h"

namespace pb {

// Tokens to append to one sequence. `wants_logits`: those of the last of them are wanted, to draw
// the token after it or to hand them out.
//
// The last n_draft tokens are guesses at what will be drawn. Logits are wanted of all of them,
// and of the token before them. A guess that is what is drawn before it is appended; from the first
// that is not, they are given up. So what is drawn is what steps of one token each would draw.
struct StepEntry {
  int seq_id = 0;
  std::span<const int32_t> tokens;
  bool wants_logits = false;
  int n_draft = 0;  // fewer than tokens.size(); 0 where no logits are wanted

  // Rows, the last ones, whose logits are wanted.
  size_t n_wanted() const { return wants_logits ? static_cast<size_t>(n_draft) + 1 : 0; }
};

// What was drawn for one sequence, or why nothing could be.
struct StepDraw {
  int seq_id = 0;
  Draw draw;
};

}  // namespace pb
