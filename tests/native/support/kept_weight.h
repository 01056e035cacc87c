// A weight of random blocks of any dtype that matrices only keep.
#pragma once

#include <variant>
#include <vector>

#include "random_blocks.h"
#include "random_mxfp4.h"

namespace pb::test {

// Those that is_only_kept holds for.
inline constexpr DType kAllKeptDTypes[] = {DType::kQ4K,    DType::kQ5K,   DType::kQ6K,
                                           DType::kInt4Zp, DType::kMxfp4, DType::kQ5_0,
                                           DType::kIQ4_NL};
// ... and that GPUs have products of.
inline constexpr DType kAllGpuKeptDTypes[] = {DType::kQ4K, DType::kQ5K, DType::kQ6K, DType::kInt4Zp,
                                              DType::kMxfp4};

class KeptWeight {
 public:
  // rows of `cols` elements, whole blocks.
  KeptWeight(int rows, int cols, DType dtype, uint64_t seed)
      : blocks_(dtype == DType::kMxfp4 ? Blocks(RandomMxfp4(rows, cols, seed))
                                       : Blocks(RandomBlocks(rows, cols, dtype, seed))) {}

  TensorView view() const {
    return std::visit([](const auto& blocks) { return blocks.view("w"); }, blocks_);
  }
  // (rows, cols)
  std::vector<float> values() const {
    return std::visit([](const auto& blocks) { return blocks.values(); }, blocks_);
  }

 private:
  using Blocks = std::variant<RandomBlocks, RandomMxfp4>;
  Blocks blocks_;
};

}  // namespace pb::test
