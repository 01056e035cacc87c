// Weights as the tile unit takes them: for 32 k's ("a step") of a tile of 32 columns, bf16 in pairs
// of k, (16, 32, 2). Quantised weights become whole number * scale, rounded to bf16, in a scratch
// that the nearest cache holds.
//
// Rounding is a scale that is a little too great and a cut: of f = m * 2^e what is cut off makes
// 2/3 of a unit at most, on average over m in [1, 2) nothing. A cut is free, where adding half a
// unit before it would be a quarter of all work. The error is 6 % more than that of the nearest
// bf16; what a bf16 can say stays as it is.
//
// A step of quantised weights is expanded unit by unit: a unit is 64 neighbouring bytes, some k's
// of 16 columns, so that tile products and expansion can take turns in small bites.
#pragma once

#include "cpu/kernels.h"
#include "cpu/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kStepK = kGroupSize;                  // k's of one tile product
constexpr int kAmxColumns = 2 * kWidth;             // of a weight tile
constexpr int kStepNumbers = kStepK * kAmxColumns;  // of a step
constexpr int kAmxScales = kAmxColumns * 2;         // bytes of a step's f16 scales

// Scales of 16 columns, a little too great: of all factors 1 + c the one with the least squared
// error where mantissas are spread evenly over a logarithmic scale. They have 14 significant bits,
// so that their products with the 10 bits of an offset (below) are exact, and zero stays zero.
PB_INLINE Vec cut_scales(const uint8_t* step, int v) {
  constexpr float kCutScale = 1.0f + 2.0f / 3.0f / 256.0f;
  constexpr int kMost14Bits = -(1 << 10);
  const Vec scale = load_f16(reinterpret_cast<const uint16_t*>(step) + v * kWidth);
  const __m512i bits = _mm512_castps_si512(mul(scale, set1(kCutScale)));
  return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(kMost14Bits)));
}

// Pairs (first[c], second[c]) of 16 columns, cut to bf16.
PB_INLINE void store_pairs(uint16_t* to, Vec first, Vec second) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(first), 16);
  const __m512i high = _mm512_castps_si512(second);
  _mm512_store_si512(to, _mm512_mask_blend_epi16(0xaaaaaaaau, low, high));
}

// 2^exponent + the whole number that lies in the bits of `field`, whose lowest is 23 - exponent.
PB_INLINE Vec above_power(__m512i bits, int field, int exponent) {
  constexpr int kAAndBOrC = 0xea;
  const __m512i power = _mm512_set1_epi32((127 + exponent) << 23);
  return _mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(bits, _mm512_set1_epi32(field), power, kAAndBOrC));
}

struct NoExpansion {
  static constexpr int kStepBytes = kStepNumbers * 2;
  static constexpr int kUnits = 0;  // nothing to expand
};

// See pack.h: 8 rows of four k's of every column, a byte each, 128 above its value.
struct Int8Expansion {
  static constexpr int kStepBytes = kAmxScales + kStepNumbers;
  static constexpr int kUnits = 16;

  // Of columns 16 v to 16 v + 15: (2^15 + byte) * scale + offset is a number.
  struct Scales {
    Vec scale, offset;
  };
  static PB_INLINE Scales scales(const uint8_t* step, int v) {
    const Vec scale = cut_scales(step, v);
    return {scale, mul(scale, set1(-(32768.0f + 128.0f)))};
  }

  // The columns are those of v = unit % 2.
  static PB_INLINE void expand(const uint8_t* step, int unit, const Scales& s, uint16_t* to) {
    const __m512i quads = _mm512_loadu_si512(step + kAmxScales + unit * 64);
    const auto number = [&](__m512i second_byte) {
      return mul_add(above_power(second_byte, 0xff00, 15), s.scale, s.offset);
    };
    uint16_t* pairs = to + unit / 2 * 4 * kAmxColumns + unit % 2 * 2 * kWidth;
    store_pairs(pairs, number(_mm512_slli_epi32(quads, 8)), number(quads));
    store_pairs(pairs + 2 * kAmxColumns, number(_mm512_srli_epi32(quads, 8)),
                number(_mm512_srli_epi32(quads, 16)));
  }
};

// See pack.h: 4 rows of bytes; row j holds k's 4 j to 4 j + 3 in the low nibbles and 16 more in the
// high ones, 8 above their value.
struct Int4Expansion {
  static constexpr int kStepBytes = kAmxScales + kStepNumbers / 2;
  static constexpr int kUnits = 8;

  // (2^(12 - 4 i) + nibble) * scale + offsets[i] is a number.
  struct Scales {
    Vec scale;
    Vec offsets[3];
  };
  static PB_INLINE Scales scales(const uint8_t* step, int v) {
    const Vec scale = cut_scales(step, v);
    return {scale,
            {mul(scale, set1(-(4096.0f + 8.0f))), mul(scale, set1(-(256.0f + 8.0f))),
             mul(scale, set1(-(16.0f + 8.0f)))}};
  }

  static PB_INLINE void expand(const uint8_t* step, int unit, const Scales& s, uint16_t* to) {
    const __m512i octets = _mm512_loadu_si512(step + kAmxScales + unit * 64);
    // The nibble that starts at bit 11 + 4 i.
    const auto number = [&](__m512i bits, int i) {
      return mul_add(above_power(bits, 0xf << (11 + 4 * i), 12 - 4 * i), s.scale, s.offsets[i]);
    };
    const __m512i first = _mm512_slli_epi32(octets, 11);  // nibbles 0, 1, 2
    const __m512i second = _mm512_srli_epi32(octets, 1);  // 3, 4, 5
    const __m512i third = _mm512_srli_epi32(octets, 13);  // 6, 7
    uint16_t* low = to + unit / 2 * 4 * kAmxColumns + unit % 2 * 2 * kWidth;
    uint16_t* high = low + kStepNumbers / 2;
    store_pairs(low, number(first, 0), number(first, 2));
    store_pairs(high, number(first, 1), number(second, 0));
    store_pairs(low + 2 * kAmxColumns, number(second, 1), number(third, 0));
    store_pairs(high + 2 * kAmxColumns, number(second, 2), number(third, 1));
  }
};

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
