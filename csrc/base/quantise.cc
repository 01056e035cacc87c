#include "base/quantise.h"

#include "base/dtype.h"

namespace pb {
namespace {

// The whole number nearest to x, half-way the even one, for |x| < 2^22. The loops that use it
// become vectors of the baseline, which has no rounding instruction.
inline float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

inline float clamped(float x, float low, float high) {
  const float at_least = x > low ? x : low;
  return at_least < high ? at_least : high;
}

// What a scale is divided by: int4 reaches from -8 to 7, so the number of greatest magnitude goes
// to -8 or a little past the end, where it costs less than the finer steps of the others gain.
constexpr float kInt4Ends[] = {-8.0f, -8.5f, -7.5f, -9.0f, -7.0f, 7.0f, 7.5f};

}  // namespace

Int8Group quantise_int8(const float* x) {
  float greatest = 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    const float size = x[i] < 0.0f ? -x[i] : x[i];
    greatest = size > greatest ? size : greatest;
  }
  Int8Group group;
  group.scale = f32_to_f16(greatest / 127.0f);
  const float scale = f16_to_f32(group.scale);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    group.values[i] = static_cast<int8_t>(nearest(clamped(x[i] * inverse, -127.0f, 127.0f)));
  }
  return group;
}

Int4Group quantise_int4(const float* x) {
  float end = 0.0f;  // the number of greatest magnitude
  for (int i = 0; i < kGroup; ++i) {
    const float size = x[i] < 0.0f ? -x[i] : x[i];
    if (size > (end < 0.0f ? -end : end)) end = x[i];
  }
  Int4Group best = {};
  float best_inverse = 0.0f;
  float least = __builtin_inff();
  for (const float divisor : kInt4Ends) {
    const uint16_t scale_bits = f32_to_f16(end / divisor);
    const float scale = f16_to_f32(scale_bits);
    const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    float errors[4] = {};
    for (int i = 0; i < kGroup; i += 4) {
      for (int j = 0; j < 4; ++j) {
        const float q = nearest(clamped(x[i + j] * inverse, -8.0f, 7.0f));
        const float off = x[i + j] - q * scale;
        errors[j] += off * off;
      }
    }
    const float error = (errors[0] + errors[1]) + (errors[2] + errors[3]);
    if (!(error < least)) continue;
    least = error;
    best.scale = scale_bits;
    best_inverse = inverse;
  }
  for (int i = 0; i < kGroup / 2; ++i) {
    const float low = nearest(clamped(x[i] * best_inverse, -8.0f, 7.0f));
    const float high = nearest(clamped(x[i + kGroup / 2] * best_inverse, -8.0f, 7.0f));
    best.pairs[i] =
        static_cast<uint8_t>((static_cast<int>(low) + 8) | (static_cast<int>(high) + 8) << 4);
  }
  return best;
}

void dequantise(const Int8Group& group, float* x) {
  const float scale = f16_to_f32(group.scale);
  for (int i = 0; i < kGroup; ++i) x[i] = scale * static_cast<float>(group.values[i]);
}

void dequantise(const Int4Group& group, float* x) {
  const float scale = f16_to_f32(group.scale);
  for (int i = 0; i < kGroup / 2; ++i) {
    x[i] = scale * static_cast<float>((group.pairs[i] & 15) - 8);
    x[i + kGroup / 2] = scale * static_cast<float>((group.pairs[i] >> 4) - 8);
  }
}

}  // namespace pb
