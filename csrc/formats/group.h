// The interface of the weight formats, and parts that several formats share.
//
// A format stores a row in blocks of kElements consecutive elements. Packing, reading and
// multiplication work on groups of kGroup elements; a block consists of one or more groups. Each
// format is a struct in a header of its own. It describes a group by the data that packed weights
// contain for the group (GroupParts):
//   shared    f16 numbers that all groups of a block share
//   factors   bytes that belong to one group: scales, minimums, zero points
//   codes     kBits for each element
// A format has these members, of which FormatDefaults defines the most common values:
//   Block                     the bytes of a block, as in files
//   kElements                 number of elements in a block
//   kBits                     number of bits in a code: 2, 3, 4, 5, 6 or 8
//   kShared                   number of shared f16 numbers in a block
//   kFactorSizes              bytes of each factor of a group
//   kNativeOnly               true if numbers are never rounded to the format
//   kInt8Holds                true if an int8 matrix represents the format exactly: each element is
//                             an f16 scale times a signed byte, which number(code) returns
//   kBf16Holds                true if a bf16 matrix represents the format exactly
//   kGgufName, kGgufType      name and number of the format in GGUF files, if it has them
//   take(block, group)        returns the parts of a group of a block
//   dequantise(parts, x)      writes the f32 numbers of a group to x (kGroup), computed as in ggml
//   is_sound(parts)           returns true if all numbers of the group are finite for any codes;
//                             otherwise packing checks every number
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

// Reads the 4-bit codes of a group. Elements i and i + 16 are the low and the high nibble of
// pairs[i].
inline void take_pairs(const uint8_t* pairs, uint8_t* codes) {
  for (int i = 0; i < kGroup / 2; ++i) {
    codes[i] = pairs[i] & 15;
    codes[i + kGroup / 2] = pairs[i] >> 4;
  }
}

// Adds bit 4 of the codes of a group. The bit of element i is bit i % 8 of bits[i / 8].
inline void take_fifth_bits(const uint8_t* bits, uint8_t* codes) {
  for (int i = 0; i < kGroup; ++i) {
    codes[i] = static_cast<uint8_t>(codes[i] | ((bits[i / 8] >> (i % 8)) & 1) << 4);
  }
}

// The base of formats with one f16 scale for each group. Self::number(code) is the integer that a
// code represents; the element is this integer times the scale.
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
