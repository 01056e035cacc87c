// Super-blocks: kSuperBlock neighbours of a row in groups whose scales are whole numbers too.
//
// The blocks are those of GGUF's Q4_K, Q5_K and Q6_K, so that its files load without loss:
// https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. With whole numbers q,
//   Q4_K, Q5_K  element = d scale q - d_min min, a scale and a min (6 bits each) for each group of
//   32 Q6_K        element = d scale (q - 32), a signed scale for each 16
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/dtype.h"
#include "formats/fp8.h"
#include "formats/mxfp4.h"
#include "formats/quantise.h"

namespace pb {

inline constexpr int kSuperBlock = 256;
inline constexpr int kGroupsOfSuperBlock = kSuperBlock / kGroup;
inline constexpr int kQ6Zero = 32;  // subtracted from the whole numbers of Q6_K

// The types in files.
struct Q4KBlock {
  uint16_t d, d_min;   // f16
  uint8_t scales[12];  // 8 scales and 8 mins, 6 bits each
  uint8_t pairs[kSuperBlock / 2];
};
static_assert(sizeof(Q4KBlock) == 144);

struct Q5KBlock {
  uint16_t d, d_min;
  uint8_t scales[12];
  uint8_t fifth_bits[kSuperBlock / 8];
  uint8_t pairs[kSuperBlock / 2];
};
static_assert(sizeof(Q5KBlock) == 176);

struct Q6KBlock {
  uint8_t pairs[kSuperBlock / 2];
  uint8_t high_bits[kSuperBlock / 4];
  int8_t scales[kSuperBlock / 16];
  uint16_t d;
};
static_assert(sizeof(Q6KBlock) == 210);

// Elements of a block of a quantised dtype, and the bytes of one in a file.
constexpr int block_elements(DType t) {
  return in_super_blocks(t) ? kSuperBlock : t == DType::kFp8 ? kFp8Block : kGroup;
}
constexpr size_t block_bytes(DType t) {
  switch (t) {
    case DType::kQ4K:
      return sizeof(Q4KBlock);
    case DType::kQ5K:
      return sizeof(Q5KBlock);
    case DType::kQ6K:
      return sizeof(Q6KBlock);
    case DType::kInt4:
      return sizeof(Int4Group);
    case DType::kMxfp4:
      return sizeof(Mxfp4Group);
    case DType::kInt4Zp:
      return sizeof(Int4ZpGroup);
    case DType::kQ5_0:
      return sizeof(Q5_0Group);
    case DType::kIQ4_NL:
      return sizeof(Iq4NlGroup);
    case DType::kFp8:
      return sizeof(Fp8Block);
    default:
      return sizeof(Int8Group);
  }
}

// A group of 32 of any super-block, taken apart.
struct SuperGroup {
  uint16_t d = 0, d_min = 0;  // f16, of the super-block; no d_min in Q6_K
  uint8_t scales[2] = {};     // scale and min; Q6_K: the signed scales of both halves
  uint8_t numbers[kGroup] = {};
};

// Group `group` of the super-block of `dtype` that lies at `block`, at any address.
SuperGroup read_super_group(DType dtype, const std::byte* block, int group);

// x (kGroup) = the numbers that a group stands for. But for the difference in Q4_K and Q5_K, which
// is rounded to f32 once, all is exact.
void dequantise(DType dtype, const SuperGroup& group, float* x);

}  // namespace pb
