// What is left of a key or a value once it is kept as some type: the formula, one number at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "formats/dtype.h"

namespace pb::test {

inline float kept_number(float x, DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return bf16_to_f32(f32_to_bf16(x));
    case DType::kF16:  // what is finite stays finite
      return f16_to_f32(f32_to_f16(std::isfinite(x) ? std::clamp(x, -65504.0f, 65504.0f) : x));
    default:
      return x;
  }
}

// The n numbers of one key or one value of a kv head. int8: whole numbers times the greatest
// magnitude over 127.
inline std::vector<double> kept(const float* numbers, int n, DType dtype) {
  std::vector<double> out;
  out.reserve(n);
  const bool is_finite =
      std::all_of(numbers, numbers + n, [](float x) { return std::isfinite(x); });
  float scale = 0.0f;
  for (int i = 0; i < n; ++i) scale = std::max(scale, std::abs(numbers[i]) / 127.0f);
  for (int i = 0; i < n; ++i) {
    if (dtype != DType::kInt8) {
      out.push_back(kept_number(numbers[i], dtype));
    } else if (!is_finite) {
      out.push_back(std::numeric_limits<double>::quiet_NaN());
    } else {
      const float over = numbers[i] / (scale > 0.0f ? scale : 1.0f);
      out.push_back(double{std::nearbyint(std::clamp(over, -127.0f, 127.0f))} * double{scale});
    }
  }
  return out;
}

}  // namespace pb::test
