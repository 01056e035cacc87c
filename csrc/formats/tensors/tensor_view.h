// A view of a tensor of a checkpoint in host memory.
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

// A strided view of a tensor. Element (r, c) is number r * row_stride + c * col_stride from `data`.
// If the dtype is quantised, rows consist of blocks of consecutive elements (formats/list.h), and
// strides still count elements.
struct TensorView {
  std::string name;  // for messages
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 1;  // a vector has the shape (n, 1)
  int64_t row_stride = 1;
  int64_t col_stride = 1;
  int64_t bytes = 0;  // of all elements; the progress of loading counts them
  // True if a matrix made from this tensor has the tensor's dtype instead of the requested one. f16
  // then becomes bf16.
  bool keeps_dtype = false;
  // The memory of a mapped file that contains the tensor, whose pages can be dropped after reading.
  // Empty if the tensor is not in a mapped file.
  std::span<const std::byte> pages = {};
  // Makes the matrix when it is needed, with this dtype and these sizes. The caller owns the result
  // while it reads it. May throw. Null if the matrix is at `data`.
  std::function<std::shared_ptr<const TensorView>()> make = {};
  // The input that each column multiplies, for a matrix whose columns are not in the order of its
  // inputs. The columns of the matrix that `make` returns are in the same order. Null if column c
  // multiplies input c.
  std::shared_ptr<const std::vector<int32_t>> order = {};
};

}  // namespace pb
