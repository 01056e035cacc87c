// Weights as the tile unit takes them: for 32 k's ("a step") of a tile of 32 columns, bf16 in pairs
// of k, (16, 32, 2). Quantised weights become whole number * scale, rounded to the nearest bf16 (of
// two as near, the greater), in a scratch that the nearest cache holds.
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

// Pairs (first[c], second[c]) of 16 columns. Adding half a unit of bf16 to the bits and cutting
// them off takes half as long as the instruction that rounds.
PB_INLINE void store_pairs(uint16_t* to, Vec first, Vec second) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i low = _mm512_add_epi32(_mm512_castps_si512(first), half);
  const __m512i high = _mm512_add_epi32(_mm512_castps_si512(second), half);
  _mm512_store_si512(to, _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(low, 16), high));
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

  static PB_INLINE void expand(const uint8_t* step, int unit, uint16_t* to) {
    const int v = unit % 2;
    const __m512i quads = _mm512_loadu_si512(step + kAmxScales + unit * 64);
    const Vec scale = load_f16(reinterpret_cast<const uint16_t*>(step) + v * kWidth);
    // Of (2^15 + byte) * scale - (2^15 + 128) * scale both products and the difference are exact.
    const Vec offset = mul(scale, set1(-(32768.0f + 128.0f)));
    const auto number = [=](__m512i second_byte) {
      return mul_add(above_power(second_byte, 0xff00, 15), scale, offset);
    };
    uint16_t* pairs = to + unit / 2 * 4 * kAmxColumns + v * 2 * kWidth;
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

  static PB_INLINE void expand(const uint8_t* step, int unit, uint16_t* to) {
    const int v = unit % 2;
    const __m512i octets = _mm512_loadu_si512(step + kAmxScales + unit * 64);
    const Vec scale = load_f16(reinterpret_cast<const uint16_t*>(step) + v * kWidth);
    // As above; of 2^e + 8 and a scale the product is exact up to e = 15.
    const Vec offsets[3] = {mul(scale, set1(-(32768.0f + 8.0f))),
                            mul(scale, set1(-(2048.0f + 8.0f))),
                            mul(scale, set1(-(128.0f + 8.0f)))};
    // The nibble that starts at bit 8 + 4 i.
    const auto number = [&](__m512i bits, int i) {
      return mul_add(above_power(bits, 0xf00 << (4 * i), 15 - 4 * i), scale, offsets[i]);
    };
    const __m512i first = _mm512_slli_epi32(octets, 8);
    const __m512i last = _mm512_srli_epi32(octets, 12);
    uint16_t* low = to + unit / 2 * 4 * kAmxColumns + v * 2 * kWidth;
    uint16_t* high = low + kStepNumbers / 2;
    store_pairs(low, number(first, 0), number(octets, 0));
    store_pairs(high, number(first, 1), number(octets, 1));
    store_pairs(low + 2 * kAmxColumns, number(octets, 2), number(last, 1));
    store_pairs(high + 2 * kAmxColumns, number(last, 0), number(last, 2));
  }
};

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
