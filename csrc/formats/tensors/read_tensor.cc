#include "formats/tensors/read_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/error.h"

namespace pb {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

template <typename Format>
void read_groups(const TensorView& view, int64_t row, int64_t first, int n, float* out) {
  float values[kGroup];
  for (int i = 0; i < n; i += kGroup) {
    Format::dequantise(read_group<Format>(view, row, (first + i) / kGroup), values);
    std::copy_n(values, std::min(kGroup, n - i), out + i);
  }
}

[[noreturn]] void refuse_value(const TensorView& view, int64_t row, int64_t col, DType dtype) {
  float values[kReadBlock];
  const int64_t first = col / kGroup * kGroup;
  read_row(view, row, first, static_cast<int>(col - first + 1), values);
  const float value = values[col - first];
  std::string at = "[" + std::to_string(row);
  if (view.cols != 1) at += ", " + std::to_string(col);
  // Another dtype helps only if the number is finite but too large for this dtype.
  const bool overflows = std::isfinite(value) && dtype != DType::kF32;
  const char* why = overflows ? ", which overflows " : ", which is not a number of ";
  const char* way_out = overflows ? "; the checkpoint is damaged or needs dtype='f32'"
                                  : "; the checkpoint is damaged: take another copy of it";
  throw Error(ErrorCode::kModelFormat, "tensor '" + view.name + "' holds " + std::to_string(value) +
                                           " at " + at + "]" + why + dtype_name(dtype) + way_out);
}

void require_shape(const TensorView& view, int64_t rows, int64_t cols) {
  if (view.rows == rows && view.cols == cols) return;
  throw Error(ErrorCode::kModelFormat,
              "tensor '" + view.name + "' has shape (" + std::to_string(view.rows) + ", " +
                  std::to_string(view.cols) + "), expected (" + std::to_string(rows) + ", " +
                  std::to_string(cols) + ")");
}

void require_blocks(const TensorView& view) {
  if (!is_quantised(view.dtype)) return;
  const int block = block_elements(view.dtype);
  if (view.cols % block == 0 && view.row_stride % block == 0 && view.col_stride == 1) return;
  throw Error(ErrorCode::kModelFormat, "tensor '" + view.name + "' of " + dtype_name(view.dtype) +
                                           " has rows of " + std::to_string(view.cols) +
                                           " elements; expected whole groups of " +
                                           std::to_string(block));
}

// Reads a vector to values[0, view.rows) as f32.
void read_vector_into(const TensorView& view, float* values) {
  require_shape(view, view.rows, 1);
  require_blocks(view);
  for (int64_t i = 0; i < view.rows; ++i) {
    read_row(view, i, 0, 1, values + i);
    if (!std::isfinite(values[i])) refuse_value(view, i, 0, DType::kF32);
  }
}

}  // namespace

void read_row(const TensorView& view, int64_t row, int64_t first, int n, float* out) {
  const int64_t start = row * view.row_stride + first * view.col_stride;
  const int64_t step = view.col_stride;
  switch (view.dtype) {
    case DType::kF32: {
      const float* from = static_cast<const float*>(view.data) + start;
      for (int i = 0; i < n; ++i) out[i] = from[i * step];
      break;
    }
    case DType::kBF16: {
      const uint16_t* from = static_cast<const uint16_t*>(view.data) + start;
      for (int i = 0; i < n; ++i) out[i] = bf16_to_f32(from[i * step]);
      break;
    }
    case DType::kF16: {
      const uint16_t* from = static_cast<const uint16_t*>(view.data) + start;
      for (int i = 0; i < n; ++i) out[i] = f16_to_f32(from[i * step]);
      break;
    }
    default:
      with_format(view.dtype,
                  [&](auto format) { read_groups<decltype(format)>(view, row, first, n, out); });
  }
}

Int8::Parts read_as_int8(const TensorView& view, int64_t row, int64_t group) {
  return with_format(view.dtype, [&](auto format) {
    using Format = decltype(format);
    Int8::Parts out;
    if constexpr (Format::kInt8Holds) {
      const typename Format::Parts narrow = read_group<Format>(view, row, group);
      std::copy_n(narrow.factors, std::size(out.factors), out.factors);
      for (int i = 0; i < kGroup; ++i) {
        out.codes[i] = static_cast<uint8_t>(Format::number(narrow.codes[i]) + Int8::kZero);
      }
    }
    return out;
  });
}

Stack::Stack(std::span<const TensorView> parts) : parts_(parts), first_bad_(kNone) {
  for (const TensorView& view : parts) {
    require_shape(view, view.rows, cols());
    require_blocks(view);
    rows_ += view.rows;
  }
}

Stack::Row Stack::row(int64_t row) const {
  for (const TensorView& view : parts_) {
    if (row < view.rows) return {&view, row};
    row -= view.rows;
  }
  return {nullptr, 0};
}

void Stack::note_bad(int64_t row, int64_t col) {
  const int64_t index = row * cols() + col;
  int64_t seen = first_bad_.load(std::memory_order_relaxed);
  while (index < seen &&
         !first_bad_.compare_exchange_weak(seen, index, std::memory_order_relaxed)) {
  }
}

void Stack::note_bad(int64_t row, int64_t col, int n, DType dtype, const float* values) {
  for (int i = 0; i < n; ++i) {
    if (!fits(values[i], dtype)) note_bad(row, col + i);
  }
}

void Stack::refuse_bad(DType dtype) const {
  if (first_bad_ == kNone) return;
  const Row bad = row(first_bad_ / cols());
  refuse_value(*bad.view, bad.row, first_bad_ % cols(), dtype);
}

void require_native(std::span<const TensorView> parts, DType dtype) {
  if (!is_native_only(dtype)) return;
  for (const TensorView& part : parts) {
    if (part.dtype == dtype) continue;
    throw Error(ErrorCode::kModelFormat, "tensor '" + part.name + "' is of " +
                                             dtype_name(part.dtype) + "; a matrix of " +
                                             dtype_name(dtype) + " is made of such blocks only");
  }
}

bool fits(float value, DType dtype) {
  if (dtype == DType::kBF16) return std::isfinite(bf16_to_f32(f32_to_bf16(value)));
  // Formats that numbers are rounded to have f16 scales, and the scale of a group never exceeds its
  // greatest magnitude. So every number in the range of f16 fits.
  if (is_quantised(dtype) && !is_native_only(dtype)) return std::abs(value) <= kGreatestF16;
  return std::isfinite(value);
}

AlignedBuffer read_biases(std::span<const TensorView> parts, std::span<const TensorView> biases,
                          int64_t n) {
  const bool any = std::any_of(biases.begin(), biases.end(),
                               [](const TensorView& view) { return view.data != nullptr; });
  if (!any) return {};
  AlignedBuffer buffer(static_cast<size_t>(n) * sizeof(float));
  float* to = buffer.as<float>();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (biases[i].data != nullptr) {
      require_shape(biases[i], parts[i].rows, 1);
      read_vector_into(biases[i], to);
    }
    to += parts[i].rows;
  }
  return buffer;
}

AlignedBuffer read_vector(const TensorView& view) {
  AlignedBuffer values(static_cast<size_t>(view.rows) * sizeof(float));
  read_vector_into(view, values.as<float>());
  return values;
}

std::vector<float> read_columns(const TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.cols * view.rows));
  TensorView column = view;
  column.cols = 1;
  for (int64_t i = 0; i < view.cols; ++i) {
    column.data = static_cast<const std::byte*>(view.data) +
                  i * view.col_stride * static_cast<int64_t>(dtype_size(view.dtype));
    read_vector_into(column, values.data() + i * view.rows);
  }
  return values;
}

}  // namespace pb
