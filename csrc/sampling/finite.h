#pragma once

#include <cmath>
#include <limits>
#include <span>

namespace pb {

// Returns true if no value is NaN or infinite. The loop has no branch, so that it vectorises.
inline bool all_finite(std::span<const float> values) {
  bool finite = true;
  for (float v : values) finite &= std::abs(v) <= std::numeric_limits<float>::max();
  return finite;
}

}  // namespace pb
