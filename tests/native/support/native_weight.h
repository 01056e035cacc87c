// A weight of random blocks of any dtype of kNativeDTypes.
#pragma once

#include <variant>
#include <vector>

#include "random_blocks.h"
#include "random_mxfp4.h"

namespace pb::test {

class NativeWeight {
 public:
  // rows of `cols` elements, whole blocks.
  NativeWeight(int rows, int cols, DType dtype, uint64_t seed)
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
