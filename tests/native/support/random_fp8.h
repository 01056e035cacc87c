// FP8 of random bytes that are numbers, with a scale for each block, as the engine gets them.
#pragma once

#include <string>
#include <vector>

#include "formats/fp8.h"
#include "formats/tensors/tensor_view.h"
#include "sampling/rng.h"

namespace pb::test {

struct RandomFp8 {
  int rows, cols;
  std::vector<Fp8Block> blocks;

  // rows of `cols` numbers, whole blocks.
  RandomFp8(int rows, int cols, uint64_t seed)
      : rows(rows), cols(cols), blocks(static_cast<size_t>(rows) * cols / kFp8Block) {
    uint64_t at = 0;
    for (Fp8Block& block : blocks) {
      block.scale = static_cast<float>(uniform(seed + 1, at) + 0.5) / 4096;
      for (uint8_t& byte : block.bytes) {
        byte = static_cast<uint8_t>(uniform(seed, at++) * 256);
        if (is_no_e4m3(byte)) --byte;
      }
    }
  }

  TensorView view(const std::string& name = "blocks") const {
    return {name, blocks.data(), DType::kFp8, rows, cols, cols, 1};
  }
  // (rows, cols)
  std::vector<float> values() const {
    std::vector<float> x;
    for (const Fp8Block& block : blocks) {
      for (const uint8_t byte : block.bytes) x.push_back(e4m3_to_f32(byte) * block.scale);
    }
    return x;
  }
};

}  // namespace pb::test
