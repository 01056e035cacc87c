// Groups of MXFP4 of random codes, with scales about 1, as a file holds them.
#pragma once

#include <string>
#include <vector>

#include "block_numbers.h"
#include "formats/tensors/tensor_view.h"
#include "sampling/rng.h"

namespace pb::test {

struct RandomMxfp4 {
  int rows, cols;
  std::vector<Mxfp4Group> groups;

  // rows of `cols` elements, whole groups.
  RandomMxfp4(int rows, int cols, uint64_t seed)
      : rows(rows), cols(cols), groups(static_cast<size_t>(rows) * cols / kGroup) {
    for (size_t i = 0; i < groups.size(); ++i) {
      groups[i].scale = static_cast<uint8_t>(123 + uniform(seed, i) * 8);
      for (int b = 0; b < kGroup / 2; ++b) {
        groups[i].pairs[b] = static_cast<uint8_t>(uniform(seed + 1, i * kGroup + b) * 256);
      }
    }
  }

  TensorView view(const std::string& name = "mxfp4") const {
    return {name, groups.data(), DType::kMxfp4, rows, cols, cols, 1};
  }

  // (rows, cols)
  std::vector<float> values() const {
    std::vector<float> x(static_cast<size_t>(rows) * cols);
    for (size_t i = 0; i < groups.size(); ++i) dequantise(groups[i], &x[i * kGroup]);
    return x;
  }
};

}  // namespace pb::test
