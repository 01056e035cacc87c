// A tensor of a checkpoint, in the host's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/dtype.h"

namespace pb {

// A tensor of a checkpoint where it lies, strided. Element (r, c) is number r * row_stride + c *
// col_stride from `data`. Of quantised dtypes, rows are blocks of 32 or 256 neighbours
// (formats/list.h) and strides still count elements.
struct TensorView {
  std::string name;  // for messages
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 1;  // a vector is (n, 1)
  int64_t row_stride = 1;
  int64_t col_stride = 1;
  int64_t bytes = 0;  // of its elements, which progress counts
  // Whether a matrix of it has this dtype too, instead of the one that is asked for; f16 as bf16.
  bool keeps_dtype = false;
  // Around it in a mapped file, which can be dropped once it is read; empty where it is in memory.
  std::span<const std::byte> pages = {};
  // For a matrix that is made when it is needed, and not before: makes it, of this dtype and these
  // sizes, to be kept as long as it is read. May throw. Null: it lies at `data`.
  std::function<std::shared_ptr<const TensorView>()> make = {};
  // Of a matrix whose columns lie in another order than its inputs: the input of each column. What
  // `make` makes has its columns in it too. Null: column c is of input c.
  std::shared_ptr<const std::vector<int32_t>> order = {};
};

}  // namespace pb
