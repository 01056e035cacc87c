#include "formats/read_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/error.h"

namespace pb {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
constexpr float kGreatestF16 = 65504.0f;

template <typename Group>
void read_block(const TensorView& view, int64_t row, int64_t group, Group& out) {
  const auto* blocks = static_cast<const std::byte*>(view.data);
  const int64_t index = row * (view.row_stride / kGroup) + group;
  std::memcpy(&out, blocks + index * static_cast<int64_t>(sizeof(Group)), sizeof(Group));
}

template <typename Group>
void read_groups(const TensorView& view, int64_t row, int64_t first, int n, float* out) {
  float values[kGroup];
  for (int i = 0; i < n; i += kGroup) {
    Group group;
    read_block(view, row, (first + i) / kGroup, group);
    dequantise(group, values);
    std::copy_n(values, std::min(kGroup, n - i), out + i);
  }
}

void read_super_groups(const TensorView& view, int64_t row, int64_t first, int n, float* out) {
  float values[kGroup];
  for (int i = 0; i < n; i += kGroup) {
    SuperGroup group;
    read_group(view, row, (first + i) / kGroup, group);
    dequantise(view.dtype, group, values);
    std::copy_n(values, std::min(kGroup, n - i), out + i);
  }
}

// As read_row. A block may begin before `first`, and end after it.
void read_fp8(const TensorView& view, int64_t row, int64_t first, int n, float* out) {
  Fp8Block block{};
  for (int i = 0; i < n; ++i) {
    const int64_t at = (first + i) % kFp8Block;
    if (i == 0 || at == 0) block = read_fp8_block(view, row, (first + i) / kFp8Block);
    out[i] = e4m3_to_f32(block.bytes[at]) * block.scale;
  }
}

// `out` = a group of narrower numbers: the same scale, the same numbers.
template <typename Group>
void widen(const TensorView& view, int64_t row, int64_t group, Int8Group& out) {
  Group narrow;
  read_block(view, row, group, narrow);
  out.scale = narrow.scale;
  narrow.scale = f32_to_f16(1.0f);
  float values[kGroup];
  dequantise(narrow, values);
  for (int i = 0; i < kGroup; ++i) out.values[i] = static_cast<int8_t>(values[i]);
}

[[noreturn]] void refuse_value(const TensorView& view, int64_t row, int64_t col, DType dtype) {
  float values[kReadBlock];
  const int64_t first = col / kGroup * kGroup;
  read_row(view, row, first, static_cast<int>(col - first + 1), values);
  const float value = values[col - first];
  std::string at = "[" + std::to_string(row);
  if (view.cols != 1) at += ", " + std::to_string(col);
  // Only what is finite, and too large, is helped by another dtype.
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

// values[0, view.rows), in f32.
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
    case DType::kInt8:
      read_groups<Int8Group>(view, row, first, n, out);
      break;
    case DType::kInt4:
      read_groups<Int4Group>(view, row, first, n, out);
      break;
    case DType::kInt4Zp:
      read_groups<Int4ZpGroup>(view, row, first, n, out);
      break;
    case DType::kQ5_0:
      read_groups<Q5_0Group>(view, row, first, n, out);
      break;
    case DType::kIQ4_NL:
      read_groups<Iq4NlGroup>(view, row, first, n, out);
      break;
    case DType::kFp8:
      read_fp8(view, row, first, n, out);
      break;
    case DType::kMxfp4:
      read_groups<Mxfp4Group>(view, row, first, n, out);
      break;
    case DType::kQ4K:
    case DType::kQ5K:
    case DType::kQ6K:
      read_super_groups(view, row, first, n, out);
      break;
  }
}

void read_group(const TensorView& view, int64_t row, int64_t group, Int8Group& out) {
  if (view.dtype == DType::kInt4) return widen<Int4Group>(view, row, group, out);
  if (view.dtype == DType::kQ5_0) return widen<Q5_0Group>(view, row, group, out);
  if (view.dtype == DType::kIQ4_NL) return widen<Iq4NlGroup>(view, row, group, out);
  read_block(view, row, group, out);
}

void read_group(const TensorView& view, int64_t row, int64_t group, Int4Group& out) {
  read_block(view, row, group, out);
}

void read_group(const TensorView& view, int64_t row, int64_t group, Mxfp4Group& out) {
  read_block(view, row, group, out);
}

void read_group(const TensorView& view, int64_t row, int64_t group, Int4ZpGroup& out) {
  read_block(view, row, group, out);
}

void read_group(const TensorView& view, int64_t row, int64_t group, Q5_0Group& out) {
  read_block(view, row, group, out);
}

void read_group(const TensorView& view, int64_t row, int64_t group, Iq4NlGroup& out) {
  read_block(view, row, group, out);
}

void read_group(const TensorView& view, int64_t row, int64_t group, SuperGroup& out) {
  const auto* blocks = static_cast<const std::byte*>(view.data);
  const int64_t index = row * (view.row_stride / kSuperBlock) + group / kGroupsOfSuperBlock;
  out = read_super_group(view.dtype, blocks + index * static_cast<int64_t>(block_bytes(view.dtype)),
                         static_cast<int>(group % kGroupsOfSuperBlock));
}

Fp8Block read_fp8_block(const TensorView& view, int64_t row, int64_t block) {
  const int64_t index = row * (view.row_stride / kFp8Block) + block;
  Fp8Block out;
  std::memcpy(&out, static_cast<const std::byte*>(view.data) + index * int64_t{sizeof(out)},
              sizeof(out));
  return out;
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

bool fits(float value, DType dtype) {
  if (dtype == DType::kBF16) return std::isfinite(bf16_to_f32(f32_to_bf16(value)));
  // Scales of int8 and int4 are f16, and no number of a group is less than its scale.
  if (dtype == DType::kInt8 || dtype == DType::kInt4) return std::abs(value) <= kGreatestF16;
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
