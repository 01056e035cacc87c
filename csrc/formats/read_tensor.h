// Reading the tensors of a checkpoint, whatever their element type, and refusing bad ones.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "formats/dtype.h"
#include "formats/fp8.h"
#include "formats/mxfp4.h"
#include "formats/quantise.h"
#include "formats/super_block.h"
#include "formats/tensor_view.h"

namespace pb {

// Elements that read_row hands out at most; whole groups.
inline constexpr int kReadBlock = 2 * kGroup;

// out[i] = view(row, first + i) in f32, exactly. `first` is a multiple of kGroup, n <= kReadBlock.
void read_row(const TensorView& view, int64_t row, int64_t first, int n, float* out);

// Whether read_group() hands out groups of a view of dtype `from` as those of `dtype`.
constexpr bool is_read_as(DType from, DType dtype) {
  return from == dtype || (dtype == DType::kInt8 && int8_holds(from));
}

// Group number `group` of a row of a view of kInt8, kInt4, kInt4Zp, kQ5_0, kIQ4_NL or kMxfp4.
// An Int8Group is that of any view that int8_holds().
void read_group(const TensorView& view, int64_t row, int64_t group, Int8Group& out);
void read_group(const TensorView& view, int64_t row, int64_t group, Int4Group& out);
void read_group(const TensorView& view, int64_t row, int64_t group, Int4ZpGroup& out);
void read_group(const TensorView& view, int64_t row, int64_t group, Q5_0Group& out);
void read_group(const TensorView& view, int64_t row, int64_t group, Iq4NlGroup& out);
void read_group(const TensorView& view, int64_t row, int64_t group, Mxfp4Group& out);
// ... of a view in super-blocks.
void read_group(const TensorView& view, int64_t row, int64_t group, SuperGroup& out);
// Block number `block` of a row of a view of kFp8.
Fp8Block read_fp8_block(const TensorView& view, int64_t row, int64_t block);

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

// Whether a number becomes a finite one of `dtype`.
bool fits(float value, DType dtype);

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
