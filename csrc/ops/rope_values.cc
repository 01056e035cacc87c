#include "ops/rope_values.h"

#include <cmath>
#include <cstdint>

namespace pb {

// Computes the values as transformers does: the angle is an f32 product, its cosine is rounded to
// f32 and then scaled.
void compute_rope(std::span<const float> inv_freq, std::span<const float> factors, ThreadPool& pool,
                  float* cosines, float* sines) {
  pool.parallel_for(std::ssize(factors), 256, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; ++p) {
      for (size_t i = 0; i < inv_freq.size(); ++i) {
        const double angle = static_cast<float>(p) * inv_freq[i];
        const float factor = inv_freq[i] == 0.0f ? 1.0f : factors[static_cast<size_t>(p)];
        const size_t at = static_cast<size_t>(p) * inv_freq.size() + i;
        cosines[at] = static_cast<float>(std::cos(angle)) * factor;
        sines[at] = static_cast<float>(std::sin(angle)) * factor;
      }
    }
  });
}

}  // namespace pb
