// Super-blocks near to given numbers: what dtype="q4_k_m" and the other quantisation mixes are made
// with.
#pragma once

#include <cstddef>

#include "formats/dtype.h"

namespace pb {

// True if quantise_super_block makes blocks of `dtype`: what quantisation mixes consist of.
constexpr bool is_quantised_to(DType dtype) {
  return dtype == DType::kQ4K || dtype == DType::kQ5K || dtype == DType::kQ6K;
}

// The super-block of `dtype` with little weighted squared error to x (kSuperBlock), written to
// `block` (block_bytes(dtype) bytes, at any address). A number weighs as much as its magnitude plus
// the root mean square of its group: great weights matter more to a product. Where numbers are not
// finite, or too great for a scale in f16, so are the block's scales.
void quantise_super_block(DType dtype, const float* x, std::byte* block);

}  // namespace pb
