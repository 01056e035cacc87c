// The parts that the weight formats are made of.
//
// A format stores a row in blocks of kElements neighbours. Packing, reading and multiplying work on
// groups of kGroup neighbours: a block is one group or several. A format, one struct in a header of
// its own, describes a group by what packed weights keep of it (GroupParts):
//   shared    f16 numbers that all groups of a block share
//   factors   bytes that belong to the group alone: scales, minimums, zero points
//   codes     kBits of each element
// A format has these members; FormatDefaults has those that most formats share:
//   Block                     the bytes of a block, as files hold them
//   kElements                 elements of a block
//   kBits                     bits of a code: 2, 3, 4, 5, 6 or 8
//   kShared                   shared f16 numbers of a block
//   kFactorSizes              bytes of each factor of a group
//   kNativeOnly               no other numbers are rounded to the format
//   kInt8Holds                an int8 matrix holds all its numbers: one f16 scale times whole
//                             numbers of a signed byte, which number(code) returns
//   kBf16Holds                a bf16 matrix holds all its numbers
//   kGgufName, kGgufType      name and number of the format in GGUF files, if it has them
//   take(block, group)        the parts of a group of a block
//   dequantise(parts, x)      x (kGroup) = the numbers of a group in f32, as ggml computes them
//   is_sound(parts)           true if all numbers of the group are finite whatever the codes are;
//                             otherwise packing looks at every number
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats/half.h"

namespace pb {

inline constexpr int kGroup = 32;
inline constexpr int kSuperBlock = 256;
inline constexpr int kGroupsOfSuperBlock = kSuperBlock / kGroup;

template <int kSharedNumbers, int kFactorBytes>
struct GroupParts {
  uint16_t shared[kSharedNumbers > 0 ? kSharedNumbers : 1] = {};
  uint8_t factors[kFactorBytes] = {};
  uint8_t codes[kGroup] = {};
};

struct FormatDefaults {
  static constexpr int kElements = kGroup;
  static constexpr int kShared = 0;
  static constexpr bool kNativeOnly = true;
  static constexpr bool kInt8Holds = false;
  static constexpr bool kBf16Holds = false;
  static constexpr const char* kGgufName = "";
  static constexpr int kGgufType = -1;
};

template <typename Format>
inline constexpr int kGroupsOfBlock = Format::kElements / kGroup;

template <typename Format>
constexpr int factor_bytes() {
  int bytes = 0;
  for (const int size : Format::kFactorSizes) bytes += size;
  return bytes;
}

inline uint16_t f16_bits(const uint8_t* factor) {
  uint16_t bits;
  std::memcpy(&bits, factor, sizeof(bits));
  return bits;
}
inline float f16_value(const uint8_t* factor) { return f16_to_f32(f16_bits(factor)); }

// Codes of 4 bits of a group: elements i and i + 16 are the low and the high nibble of pairs[i].
inline void take_pairs(const uint8_t* pairs, uint8_t* codes) {
  for (int i = 0; i < kGroup / 2; ++i) {
    codes[i] = pairs[i] & 15;
    codes[i + kGroup / 2] = pairs[i] >> 4;
  }
}

// Bit 4 of the codes of a group: bit i % 8 of bits[i / 8].
inline void take_fifth_bits(const uint8_t* bits, uint8_t* codes) {
  for (int i = 0; i < kGroup; ++i) {
    codes[i] = static_cast<uint8_t>(codes[i] | ((bits[i / 8] >> (i % 8)) & 1) << 4);
  }
}

// Formats with one f16 scale for each group. Self::number(code) is the whole number of a code.
template <typename Self>
struct ScaledGroups : FormatDefaults {
  static constexpr std::array kFactorSizes = {2};
  using Parts = GroupParts<0, 2>;

  template <typename Block>
  static Parts take(const Block& block, int) {
    Parts parts;
    std::memcpy(parts.factors, &block.scale, sizeof(block.scale));
    Self::take_codes(block, parts.codes);
    return parts;
  }
  static void dequantise(const Parts& parts, float* x) {
    const float scale = f16_value(parts.factors);
    for (int i = 0; i < kGroup; ++i) {
      x[i] = scale * static_cast<float>(Self::number(parts.codes[i]));
    }
  }
  static bool is_sound(const Parts& parts) { return is_finite_f16(f16_bits(parts.factors)); }
};

}  // namespace pb
