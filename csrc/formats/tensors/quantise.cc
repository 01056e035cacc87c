#include "formats/int4.h"
#include "formats/int8.h"

namespace pb {
namespace {

// Rounds x to the nearest integer, ties to even, for |x| < 2^22. The compiler vectorises loops with
// these additions for the baseline CPU, which has no rounding instruction.
inline float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

inline float clamped(float x, float low, float high) {
  const float at_least = x > low ? x : low;
  return at_least < high ? at_least : high;
}

// The candidate scales are the element of greatest magnitude divided by each of these numbers. int4
// represents -8 to 7. Dividing by a number just outside that range clips this element, which can
// cost less than the smaller steps gain for the other elements.
constexpr float kInt4Ends[] = {-8.0f, -8.5f, -7.5f, -9.0f, -7.0f, 7.0f, 7.5f};

inline float whole_int4(float x) { return nearest(clamped(x, -8.0f, 7.0f)); }

inline float inverse_of(float scale) { return scale != 0.0f ? 1.0f / scale : 0.0f; }

// The squared error of x (kGroup) with a scale, and the scale that minimises the error for the same
// integers.
struct Int4Fit {
  float squared_error;
  float better_scale;
};
Int4Fit fit_int4(const float* x, float scale) {
  const float inverse = inverse_of(scale);
  float errors[4] = {}, products[4] = {}, squares[4] = {};
  for (int i = 0; i < kGroup; i += 4) {
    for (int j = 0; j < 4; ++j) {
      const float q = whole_int4(x[i + j] * inverse);
      const float off = x[i + j] - q * scale;
      errors[j] += off * off;
      products[j] += x[i + j] * q;
      squares[j] += q * q;
    }
  }
  const auto sum = [](const float (&v)[4]) { return (v[0] + v[1]) + (v[2] + v[3]); };
  return {sum(errors), sum(squares) > 0.0f ? sum(products) / sum(squares) : 0.0f};
}

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
  float end = 0.0f;  // the element of greatest magnitude
  for (int i = 0; i < kGroup; ++i) {
    const float size = x[i] < 0.0f ? -x[i] : x[i];
    if (size > (end < 0.0f ? -end : end)) end = x[i];
  }
  uint16_t best = 0;
  float least = __builtin_inff();
  const auto try_scale = [&](float scale) {
    const uint16_t bits = f32_to_f16(scale);
    const Int4Fit fit = fit_int4(x, f16_to_f32(bits));
    if (fit.squared_error < least) {
      least = fit.squared_error;
      best = bits;
    }
    return fit.better_scale;
  };
  for (const float divisor : kInt4Ends) try_scale(try_scale(end / divisor));

  Int4Group group;
  group.scale = best;
  const float inverse = inverse_of(f16_to_f32(best));
  for (int i = 0; i < kGroup / 2; ++i) {
    const auto low = static_cast<int>(whole_int4(x[i] * inverse)) + 8;
    const auto high = static_cast<int>(whole_int4(x[i + kGroup / 2] * inverse)) + 8;
    group.pairs[i] = static_cast<uint8_t>(low | high << 4);
  }
  return group;
}

}  // namespace pb
