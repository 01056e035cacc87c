// Rounds numbers to super-blocks of the K formats, for dtype="q4_k_m" and the other quantisation
// mixes.
#pragma once

#include <cstddef>

#include "formats/dtype.h"

namespace pb {

// True if quantise_super_block() supports `dtype`. Quantisation mixes consist of these dtypes.
constexpr bool is_quantised_to(DType dtype) {
  return dtype == DType::kQ4K || dtype == DType::kQ5K || dtype == DType::kQ6K;
}

// Rounds x (kSuperBlock) to a super-block of `dtype`, minimising the weighted squared error
// approximately. Writes block_bytes(dtype) bytes to `block`, which need not be aligned. The weight
// of a number is its magnitude plus the root mean square of its group, because large weights
// contribute more to a product. If a number is not finite, or too large for an f16 scale, the scale
// of the block is NaN.
void quantise_super_block(DType dtype, const float* x, std::byte* block);

}  // namespace pb
