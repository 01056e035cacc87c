// The numbers of blocks as files hold them, of any format.
#pragma once

#include <cstring>
#include <vector>

#include "formats/dtype.h"

namespace pb::test {

// x (Format::kElements) = the numbers of a block.
template <typename Format>
void dequantise_block(const typename Format::Block& block, float* x) {
  for (int g = 0; g < kGroupsOfBlock<Format>; ++g) {
    Format::dequantise(Format::take(block, g), x + g * kGroup);
  }
}

// x (block_elements(dtype)) = the numbers of the block at `bytes`, at any address.
inline void dequantise_bytes(DType dtype, const std::byte* bytes, float* x) {
  with_format(dtype, [&](auto format) {
    using Format = decltype(format);
    typename Format::Block block;
    std::memcpy(&block, bytes, sizeof(block));
    dequantise_block<Format>(block, x);
  });
}

// x = the numbers of one block of a format whose block is unlike that of any other.
#define PB_DEQUANTISE(constant, name, Format)                             \
  inline void dequantise(const typename Format::Block& block, float* x) { \
    dequantise_block<Format>(block, x);                                   \
  }
PB_FORMATS(PB_DEQUANTISE)
#undef PB_DEQUANTISE

}  // namespace pb::test
