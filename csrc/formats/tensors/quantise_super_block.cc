#include "formats/tensors/quantise_super_block.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace pb {
namespace {

constexpr int kHalf = kGroup / 2;
constexpr int kTopScale = 63;     // greatest scale and min of Q4_K and Q5_K
constexpr int kLowScale6 = -128;  // least scale of Q6_K
// Iterations over a super-block, each of which improves d and d_min.
constexpr int kPasses = 3;

// Rounds x to the nearest integer, ties to even, for |x| < 2^22. The compiler vectorises loops with
// these additions for the baseline CPU, which has no rounding instruction.
inline float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }
inline float clamped(float x, float low, float high) {
  const float at_least = x > low ? x : low;
  return at_least < high ? at_least : high;
}
inline float inverse_of(float scale) { return scale != 0.0f ? 1.0f / scale : 0.0f; }
inline float as_f16(float x) { return f16_to_f32(f32_to_f16(x)); }

// A sum in four parts. The order of the additions is fixed and is the one of the baseline's
// vectors, so that every build computes the same bits.
struct Sum4 {
  float parts[4] = {};
  float total() const { return (parts[0] + parts[1]) + (parts[2] + parts[3]); }
};

// Weighted sums over the codes q of numbers x with weights w: sum(w q), sum(w q q) and sum(w x q).
// A least-squares fit of scale * q - min to x needs these sums.
struct Sums {
  float q, qq, xq;
};

// Writes the codes in [low, top] for which scale * q - min is nearest to x, and returns their sums.
// `inverse` is 1 / scale. n is a multiple of 4.
inline Sums whole_numbers(const float* x, const float* w, int n, float inverse, float min,
                          float low, float top, float* q) {
  Sum4 sq, sqq, sxq;
  for (int i = 0; i < n; i += 4) {
    for (int j = 0; j < 4; ++j) {
      const float whole = nearest(clamped((x[i + j] + min) * inverse, low, top));
      q[i + j] = whole;
      const float weighted = w[i + j] * whole;
      sq.parts[j] += weighted;
      sqq.parts[j] += weighted * whole;
      sxq.parts[j] += weighted * x[i + j];
    }
  }
  return {sq.total(), sqq.total(), sxq.total()};
}

// Returns the weighted squared error of scale * q - min with respect to x.
inline float error_of(const float* x, const float* w, int n, float scale, float min,
                      const float* q) {
  Sum4 errors;
  for (int i = 0; i < n; i += 4) {
    for (int j = 0; j < 4; ++j) {
      const float off = scale * q[i + j] - min - x[i + j];
      errors.parts[j] += w[i + j] * off * off;
    }
  }
  return errors.total();
}

// Returns the weighted squared error with the best codes in [low, top] for a scale and a min.
inline float least_error(const float* x, const float* w, int n, float scale, float min, float low,
                         float top) {
  const float inverse = inverse_of(scale);
  Sum4 errors;
  for (int i = 0; i < n; i += 4) {
    for (int j = 0; j < 4; ++j) {
      const float whole = nearest(clamped((x[i + j] + min) * inverse, low, top));
      const float off = scale * whole - min - x[i + j];
      errors.parts[j] += w[i + j] * off * off;
    }
  }
  return errors.total();
}

void weigh(const float* x, int n, float* w) {
  float squares = 0.0f;
  for (int i = 0; i < n; ++i) squares += x[i] * x[i];
  const float typical = std::sqrt(squares / static_cast<float>(n));
  for (int i = 0; i < n; ++i) w[i] = typical + std::abs(x[i]);
}

// -- a scale and a min: Q4_K and Q5_K -----------------------------------------------------------

struct Affine {
  float scale = 0.0f, min = 0.0f;  // min is at least 0
};

// Fits a scale and a min to kGroup numbers, as if both were stored in f32. Tries several step
// sizes, and refits scale and min to the codes of each by least squares.
Affine fit_affine(const float* x, const float* w, float top) {
  float low = 0.0f, high = 0.0f, weight = 0.0f, weighted = 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
    weight += w[i];
    weighted += w[i] * x[i];
  }
  if (!(high > low) || !std::isfinite(high - low)) return {0.0f, -low};
  float q[kGroup];
  Affine best;
  float least = __builtin_inff();
  const auto try_step = [&](float inverse, float min) {
    const Sums s = whole_numbers(x, w, kGroup, inverse, min, 0.0f, top, q);
    const float determinant = weight * s.qq - s.q * s.q;
    Affine fit = {s.qq > 0.0f ? s.xq / s.qq : 0.0f, 0.0f};  // the fit with min = 0
    if (s.qq == 0.0f) {
      fit.min = -weighted / weight;
    } else if (determinant > 1e-6f * weight * s.qq) {  // otherwise all codes are equal
      const Affine both = {(weight * s.xq - weighted * s.q) / determinant,
                           (s.q * s.xq - s.qq * weighted) / determinant};
      if (both.min > 0.0f) fit = both;
    }
    const float error = error_of(x, w, kGroup, fit.scale, fit.min, q);
    if (error < least && fit.scale >= 0.0f) {
      least = error;
      best = fit;
    }
    return fit;
  };
  constexpr int kSteps = 20;
  for (int step = 0; step <= kSteps; ++step) {
    const float levels = top - 1.0f + 0.1f * static_cast<float>(step);
    try_step(levels / (high - low), -low);
  }
  for (int again = 0; again < 2; ++again) try_step(inverse_of(best.scale), best.min);
  return best;
}

// The codes of a super-block, with the integer scales and mins of its groups, which are multiplied
// by d and d_min.
struct AffineBlock {
  float d = 0.0f, d_min = 0.0f;
  int scales[kGroupsOfSuperBlock] = {}, mins[kGroupsOfSuperBlock] = {};
  float q[kSuperBlock] = {};
  float error = __builtin_inff();
};

// Rounds the scales and mins of the groups to integers. For each group, tries the nearest integers
// and their neighbours, and chooses the pair with the least error.
AffineBlock with_whole_scales(const float* x, const float* w, const Affine* fits, float top,
                              float d, float d_min) {
  AffineBlock out;
  out.d = d;
  out.d_min = d_min;
  out.error = 0.0f;
  for (int g = 0; g < kGroupsOfSuperBlock; ++g) {
    const float *of_group = x + g * kGroup, *of_weights = w + g * kGroup;
    const auto whole = [](float v, float unit) {
      return static_cast<int>(
          clamped(nearest(clamped(v * inverse_of(unit), 0, 512)), 0, kTopScale));
    };
    const int scale_near = whole(fits[g].scale, d), min_near = whole(fits[g].min, d_min);
    const int mins[] = {min_near, min_near, min_near, min_near - 1, min_near + 1};
    float least = __builtin_inff();
    // The first three are scales, the last two are mins for the best scale.
    for (int i = 0; i < 5; ++i) {
      const int s = i < 3 ? scale_near + i - 1 : out.scales[g], m = mins[i];
      if (s < 0 || s > kTopScale || m < 0 || m > kTopScale) continue;
      const float error = least_error(of_group, of_weights, kGroup, d * static_cast<float>(s),
                                      d_min * static_cast<float>(m), 0.0f, top);
      if (error < least) {
        least = error;
        out.scales[g] = s;
        out.mins[g] = m;
      }
    }
    const float scale = d * static_cast<float>(out.scales[g]);
    whole_numbers(of_group, of_weights, kGroup, inverse_of(scale),
                  d_min * static_cast<float>(out.mins[g]), 0.0f, top, out.q + g * kGroup);
    out.error += least;
  }
  return out;
}

// Returns the d and the d_min with the least error for the codes, scales and mins of `block`.
Affine fit_units(const float* x, const float* w, const AffineBlock& block) {
  double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;  // a is the factor of d, b the factor of d_min
  for (int i = 0; i < kSuperBlock; ++i) {
    const double a = block.scales[i / kGroup] * block.q[i], b = -block.mins[i / kGroup];
    aa += w[i] * a * a;
    ab += w[i] * a * b;
    bb += w[i] * b * b;
    ax += w[i] * a * x[i];
    bx += w[i] * b * x[i];
  }
  const double determinant = aa * bb - ab * ab;
  if (determinant > 1e-6 * aa * bb) {
    return {static_cast<float>((ax * bb - bx * ab) / determinant),
            static_cast<float>((bx * aa - ax * ab) / determinant)};
  }
  return {aa > 0 ? static_cast<float>(ax / aa) : block.d, block.d_min};
}

AffineBlock quantise_affine(const float* x, float top) {
  float w[kSuperBlock];
  Affine fits[kGroupsOfSuperBlock];
  Affine greatest;
  for (int g = 0; g < kGroupsOfSuperBlock; ++g) {
    weigh(x + g * kGroup, kGroup, w + g * kGroup);
    fits[g] = fit_affine(x + g * kGroup, w + g * kGroup, top);
    greatest.scale = std::max(greatest.scale, fits[g].scale);
    greatest.min = std::max(greatest.min, fits[g].min);
  }
  Affine units = {greatest.scale / kTopScale, greatest.min / kTopScale};
  AffineBlock best;
  for (int pass = 0; pass < kPasses; ++pass) {
    const AffineBlock block =
        with_whole_scales(x, w, fits, top, as_f16(units.scale), as_f16(units.min));
    if (!(block.error < best.error)) break;
    best = block;
    units = fit_units(x, w, best);
  }
  return best;
}

// -- a signed scale: Q6_K -----------------------------------------------------------------------

struct SignedBlock {
  float d = 0.0f;
  int scales[kSuperBlock / kHalf] = {};
  float q[kSuperBlock] = {};  // codes from -32 to 31
  float error = __builtin_inff();
};

constexpr float kLow6 = -Q6K::kZero, kTop6 = Q6K::kZero - 1;
// The candidate scales are the element of greatest magnitude divided by each of these numbers.
constexpr float kEnds6[] = {-32.0f, -32.5f, -31.5f, -33.0f, -31.0f, -30.0f, 31.0f, 30.5f, 31.5f};

float fit_signed(const float* x, const float* w) {
  float end = 0.0f;
  for (int i = 0; i < kHalf; ++i) {
    if (std::abs(x[i]) > std::abs(end)) end = x[i];
  }
  if (end == 0.0f || !std::isfinite(end)) return 0.0f;
  float q[kHalf];
  float best = end / kLow6, least = __builtin_inff();
  for (const float divisor : kEnds6) {
    const Sums s = whole_numbers(x, w, kHalf, divisor / end, 0.0f, kLow6, kTop6, q);
    const float scale = s.qq > 0.0f ? s.xq / s.qq : 0.0f;
    const float error = error_of(x, w, kHalf, scale, 0.0f, q);
    if (error < least) {
      least = error;
      best = scale;
    }
  }
  return best;
}

SignedBlock with_whole_scales(const float* x, const float* w, const float* fits, float d) {
  SignedBlock out;
  out.d = d;
  out.error = 0.0f;
  for (int g = 0; g < kSuperBlock / kHalf; ++g) {
    const float *of_group = x + g * kHalf, *of_weights = w + g * kHalf;
    const auto near =
        static_cast<int>(nearest(clamped(fits[g] * inverse_of(d), kLowScale6, -kLowScale6 - 1)));
    float least = __builtin_inff();
    for (int s = std::max(near - 1, kLowScale6); s <= std::min(near + 1, -kLowScale6 - 1); ++s) {
      const float error =
          least_error(of_group, of_weights, kHalf, d * static_cast<float>(s), 0.0f, kLow6, kTop6);
      if (error < least) {
        least = error;
        out.scales[g] = s;
      }
    }
    const float scale = d * static_cast<float>(out.scales[g]);
    whole_numbers(of_group, of_weights, kHalf, inverse_of(scale), 0.0f, kLow6, kTop6,
                  out.q + g * kHalf);
    out.error += least;
  }
  return out;
}

SignedBlock quantise_signed(const float* x) {
  float w[kSuperBlock];
  float fits[kSuperBlock / kHalf];
  float greatest = 0.0f;
  for (int g = 0; g < kSuperBlock / kHalf; ++g) {
    weigh(x + g * kHalf, kHalf, w + g * kHalf);
    fits[g] = fit_signed(x + g * kHalf, w + g * kHalf);
    if (std::abs(fits[g]) > std::abs(greatest)) greatest = fits[g];
  }
  SignedBlock best;
  float d = greatest / kLowScale6;
  for (int pass = 0; pass < kPasses; ++pass) {
    const SignedBlock block = with_whole_scales(x, w, fits, as_f16(d));
    if (!(block.error < best.error)) break;
    best = block;
    double aa = 0, ax = 0;
    for (int i = 0; i < kSuperBlock; ++i) {
      const double a = best.scales[i / kHalf] * best.q[i];
      aa += w[i] * a * a;
      ax += w[i] * a * x[i];
    }
    if (aa > 0) d = static_cast<float>(ax / aa);
  }
  return best;
}

// -- the bytes of a block -----------------------------------------------------------------------

// Writes the scales and mins in the layout that take_scale_and_min() reads.
void write_scales(const AffineBlock& from, uint8_t* packed) {
  for (int g = 0; g < 4; ++g) {
    const int scale = from.scales[g + 4], min = from.mins[g + 4];
    packed[g] = static_cast<uint8_t>(from.scales[g] | scale >> 4 << 6);
    packed[g + 4] = static_cast<uint8_t>(from.mins[g] | min >> 4 << 6);
    packed[g + 8] = static_cast<uint8_t>((scale & 15) | (min & 15) << 4);
  }
}

void write_pairs(const float* q, uint8_t* pairs) {
  for (int g = 0; g < kGroupsOfSuperBlock; ++g) {
    for (int i = 0; i < kGroup; ++i) {
      const int low = static_cast<int>(q[g * kGroup + i]) & 15;
      pairs[g / 2 * kGroup + i] |= static_cast<uint8_t>(low << g % 2 * 4);
    }
  }
}

void write(const AffineBlock& from, Q4KBlock& to) { write_pairs(from.q, to.pairs); }

void write(const AffineBlock& from, Q5KBlock& to) {
  write_pairs(from.q, to.pairs);
  for (int i = 0; i < kSuperBlock; ++i) {
    const int fifth = static_cast<int>(from.q[i]) >> 4;
    to.fifth_bits[i % kGroup] |= static_cast<uint8_t>(fifth << i / kGroup);
  }
}

template <typename Block>
void quantise_affine_block(const float* x, float top, bool is_sound, std::byte* block) {
  const AffineBlock found = is_sound ? quantise_affine(x, top) : AffineBlock{};
  Block b = {};
  b.d = f32_to_f16(is_sound ? found.d : __builtin_nanf(""));
  b.d_min = f32_to_f16(found.d_min);
  write_scales(found, b.scales);
  write(found, b);
  std::memcpy(block, &b, sizeof(b));
}

void quantise_q6_k(const float* x, bool is_sound, std::byte* block) {
  const SignedBlock found = is_sound ? quantise_signed(x) : SignedBlock{};
  Q6KBlock b = {};
  b.d = f32_to_f16(is_sound ? found.d : __builtin_nanf(""));
  for (int g = 0; g < kSuperBlock / kHalf; ++g) b.scales[g] = static_cast<int8_t>(found.scales[g]);
  for (int i = 0; i < kSuperBlock; ++i) {
    // Each 128 elements share 64 bytes with the low 4 bits and 32 bytes with the high 2 bits of
    // codes.
    const int q = static_cast<int>(found.q[i]) + Q6K::kZero;
    const int half = i / 128, within = i % 128;
    b.pairs[half * 64 + within % 64] |= static_cast<uint8_t>((q & 15) << within / 64 * 4);
    b.high_bits[half * 32 + within % 32] |= static_cast<uint8_t>(q >> 4 << within / 32 * 2);
  }
  std::memcpy(block, &b, sizeof(b));
}

}  // namespace

void quantise_super_block(DType dtype, const float* x, std::byte* block) {
  // Numbers for which the scale might overflow f16 are treated like numbers that are not finite.
  constexpr float kGreatest = 65504.0f;
  const bool is_sound =
      std::all_of(x, x + kSuperBlock, [](float v) { return std::abs(v) <= kGreatest; });
  if (dtype == DType::kQ4K) {
    quantise_affine_block<Q4KBlock>(x, 15.0f, is_sound, block);
  } else if (dtype == DType::kQ5K) {
    quantise_affine_block<Q5KBlock>(x, 31.0f, is_sound, block);
  } else {
    quantise_q6_k(x, is_sound, block);
  }
}

}  // namespace pb
