// Reads tensors as f32 or group by group, stacks them, and reports the tensor and element of
// invalid numbers.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "base/aligned_buffer.h"
#include "formats/dtype.h"
#include "formats/tensors/tensor_view.h"

namespace pb {

// The greatest number of elements that read_row() reads. It is a multiple of kGroup.
inline constexpr int kReadBlock = 2 * kGroup;

// Writes view(row, first + i) to out[i] as f32, exactly. `first` is a multiple of kGroup, and n is
// at most kReadBlock.
void read_row(const TensorView& view, int64_t row, int64_t first, int n, float* out);

// Returns the block that contains group `group` of a row. The dtype of the view is that of Format.
template <typename Format>
typename Format::Block read_block(const TensorView& view, int64_t row, int64_t group) {
  typename Format::Block block;
  const int64_t index =
      row * (view.row_stride / Format::kElements) + group / kGroupsOfBlock<Format>;
  std::memcpy(
      &block,
      static_cast<const std::byte*>(view.data) + index * static_cast<int64_t>(sizeof(block)),
      sizeof(block));
  return block;
}

// Returns the parts of group `group` of a row. The dtype of the view is that of Format.
template <typename Format>
typename Format::Parts read_group(const TensorView& view, int64_t row, int64_t group) {
  return Format::take(read_block<Format>(view, row, group),
                      static_cast<int>(group % kGroupsOfBlock<Format>));
}

// Several tensors of the same width, stacked by rows.
class Stack {
 public:
  // Throws kModelFormat if the widths differ, or if the rows of a quantised tensor are not whole
  // contiguous blocks.
  explicit Stack(std::span<const TensorView> parts);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return parts_[0].cols; }

  struct Row {
    const TensorView* view;
    int64_t row;
  };
  Row row(int64_t row) const;

  // Records an element that `dtype` cannot represent. The first one in row-major order is
  // remembered. Any thread may call this function.
  void note_bad(int64_t row, int64_t col);
  // Records those elements of values (n) that `dtype` cannot represent. The values are elements
  // [col, col + n) of a row.
  void note_bad(int64_t row, int64_t col, int n, DType dtype, const float* values);
  // Throws kModelFormat with the recorded element and the name of its tensor, if there is one.
  void refuse_bad(DType dtype) const;

 private:
  std::span<const TensorView> parts_;
  int64_t rows_ = 0;
  std::atomic<int64_t> first_bad_;  // row * cols + col
};

// Throws kModelFormat with the name of the tensor if `dtype` is native only and a part has another
// dtype.
void require_native(std::span<const TensorView> parts, DType dtype);

// Returns true if rounding the value to `dtype` gives a finite number.
bool fits(float value, DType dtype);

// Converts a group of a narrower format to int8, exactly: the scale and the integers remain the
// same. Requires int8_holds(view.dtype).
Int8::Parts read_as_int8(const TensorView& view, int64_t row, int64_t group);

// Returns the parts of group `group` of a row of the stack as Format. If the row has another dtype,
// converts its numbers to int8 exactly where int8 holds them, and rounds them otherwise. Elements
// beyond the end of the row are 0. Records the numbers that do not fit. If Format is native only,
// all parts of the stack must have its dtype.
template <typename Format>
typename Format::Parts packed_group(Stack& stack, int64_t row, int64_t group) {
  constexpr DType kDType = kDTypeOf<Format>;
  const Stack::Row from = stack.row(row);
  const int64_t first = group * kGroup;
  const int n = static_cast<int>(std::min<int64_t>(kGroup, stack.cols() - first));
  float values[kGroup];
  const auto checked = [&](const typename Format::Parts& parts) {
    if (!Format::is_sound(parts)) {
      Format::dequantise(parts, values);
      stack.note_bad(row, first, n, kDType, values);
    }
    return parts;
  };
  if constexpr (std::is_same_v<Format, Int8>) {
    if (int8_holds(from.view->dtype)) return checked(read_as_int8(*from.view, from.row, group));
  }
  if constexpr (!Format::kNativeOnly) {
    if (from.view->dtype != kDType) {
      read_row(*from.view, from.row, first, n, values);
      stack.note_bad(row, first, n, kDType, values);
      std::fill(values + n, values + kGroup, 0.0f);
      return Format::take(Format::quantise(values), 0);
    }
  }
  return checked(read_group<Format>(*from.view, from.row, group));
}

// Reads the biases of stacked parts, padded with zeros to n floats. The result is empty if no part
// has a bias. Throws kModelFormat.
AlignedBuffer read_biases(std::span<const TensorView> parts, std::span<const TensorView> biases,
                          int64_t n);

// Reads a vector of view.rows numbers as f32. If a number is not finite, throws kModelFormat with
// the name of the tensor and the element.
AlignedBuffer read_vector(const TensorView& view);

// Reads the transpose of a matrix that is not quantised: (view.cols, view.rows). Throws like
// read_vector().
std::vector<float> read_columns(const TensorView& view);

}  // namespace pb
