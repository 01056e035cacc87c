// Tensors read in f32 or group by group, stacked, and checked; naming bad ones.
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

// The most elements that read_row reads; whole groups.
inline constexpr int kReadBlock = 2 * kGroup;

// out[i] = view(row, first + i) in f32, exactly. `first` is a multiple of kGroup, n <= kReadBlock.
void read_row(const TensorView& view, int64_t row, int64_t first, int n, float* out);

// The block of Format that holds group number `group` of a row.
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

// The parts of group number `group` of a row of a view in blocks of Format.
template <typename Format>
typename Format::Parts read_group(const TensorView& view, int64_t row, int64_t group) {
  return Format::take(read_block<Format>(view, row, group),
                      static_cast<int>(group % kGroupsOfBlock<Format>));
}

// Tensors of the same width as one, stacked.
class Stack {
 public:
  // Throws kModelFormat where the shapes do not fit each other, or a quantised tensor has not whole
  // blocks of neighbours.
  explicit Stack(std::span<const TensorView> parts);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return parts_[0].cols; }

  struct Row {
    const TensorView* view;
    int64_t row;
  };
  Row row(int64_t row) const;

  // Remembers the first element that `dtype` cannot hold, from any thread.
  void note_bad(int64_t row, int64_t col);
  // The same of values (n), elements [col, col + n) of a row.
  void note_bad(int64_t row, int64_t col, int n, DType dtype, const float* values);
  // Throws kModelFormat naming that element, if there is one.
  void refuse_bad(DType dtype) const;

 private:
  std::span<const TensorView> parts_;
  int64_t rows_ = 0;
  std::atomic<int64_t> first_bad_;  // row * cols + col
};

// Throws kModelFormat, naming the tensor, if `dtype` is native only and a part has another dtype.
void require_native(std::span<const TensorView> parts, DType dtype);

// True if a number becomes a finite one of `dtype`.
bool fits(float value, DType dtype);

// The parts of a group of int8 that holds the numbers of a group of a narrower format: the same
// scale, the same whole numbers. int8_holds(view.dtype).
Int8::Parts read_as_int8(const TensorView& view, int64_t row, int64_t group);

// The parts of group number `group` of a row of the stack as Format: those of the file if the row
// has that dtype or int8 holds its numbers, else the group rounded. Elements beyond the row are 0.
// Notes numbers that do not fit. If Format is native only, all parts of the stack have its dtype.
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

// The biases of stacked parts, padded with zeros to n floats; empty where no part has one. Throws
// kModelFormat.
AlignedBuffer read_biases(std::span<const TensorView> parts, std::span<const TensorView> biases,
                          int64_t n);

// A vector in f32: (view.rows). Throws kModelFormat where a number is not finite, naming tensor and
// element.
AlignedBuffer read_vector(const TensorView& view);

// A matrix of plain numbers, turned round: (view.cols, view.rows). Throws as read_vector.
std::vector<float> read_columns(const TensorView& view);

}  // namespace pb
