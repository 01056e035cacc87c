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
struct StepEntry {
  int seq_id = 0;
  std::span<const int32_t> tokens;
  bool wants_logits = false;
};

// What was drawn for one sequence, or why nothing could be.
struct StepDraw {
  int seq_id = 0;
  Draw draw;
};

}  // namespace pb
