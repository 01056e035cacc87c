#include "cuda/pack.h"

#include <algorithm>
#include <cstring>

#include "base/quantise.h"
#include "ops/read_tensor.h"

namespace pb::cuda {
namespace {

constexpr int kKPadding = 32;
constexpr int kScalePadding = 8;  // 16 bytes, the least that cp.async aligns to
static_assert(kKPadding == kGroup);

int round_up(int n, int to) { return (n + to - 1) / to * to; }

size_t row_bytes(DType dtype, int k_padded) {
  const auto k = static_cast<size_t>(k_padded);
  if (dtype == DType::kInt4) return k / 2;
  return dtype == DType::kInt8 ? k : k * dtype_size(dtype);
}

// Notes those of values (n), elements [k, k + n) of a row, that `dtype` cannot hold.
void note_bad(Stack& stack, int64_t row, int64_t k, int n, DType dtype, const float* values) {
  for (int i = 0; i < n; ++i) {
    if (!fits(values[i], dtype)) stack.note_bad(row, k + i);
  }
}

// to (n_in) = a row in f32 or bf16.
void pack_plain_row(Stack& stack, int64_t row, DType dtype, std::byte* to) {
  float values[kReadBlock];
  uint16_t narrow[kReadBlock];
  const Stack::Row from = stack.row(row);
  for (int64_t k = 0; k < stack.cols(); k += kReadBlock) {
    const int n = static_cast<int>(std::min<int64_t>(kReadBlock, stack.cols() - k));
    read_row(*from.view, from.row, k, n, values);
    note_bad(stack, row, k, n, dtype, values);
    if (dtype == DType::kF32) {
      std::memcpy(to + k * sizeof(float), values, n * sizeof(float));
    } else {
      for (int i = 0; i < n; ++i) narrow[i] = f32_to_bf16(values[i]);
      std::memcpy(to + k * sizeof(uint16_t), narrow, n * sizeof(uint16_t));
    }
  }
}

void quantise(const float* x, Int8Group& group) { group = quantise_int8(x); }
void quantise(const float* x, Int4Group& group) { group = quantise_int4(x); }
std::span<const std::byte> bytes_of(const Int8Group& group) {
  return std::as_bytes(std::span(group.values));
}
std::span<const std::byte> bytes_of(const Int4Group& group) {
  return std::as_bytes(std::span(group.pairs));
}

// to (n_in), scales (groups of n_in): a row in groups.
template <typename Group>
void pack_groups_row(Stack& stack, int64_t row, DType dtype, std::byte* to, std::byte* scales) {
  float values[kGroup];
  const Stack::Row from = stack.row(row);
  for (int64_t g = 0; g * kGroup < stack.cols(); ++g) {
    const int n = static_cast<int>(std::min<int64_t>(kGroup, stack.cols() - g * kGroup));
    Group group;
    if (from.view->dtype == dtype) {
      read_group(*from.view, from.row, g, group);
      dequantise(group, values);
      note_bad(stack, row, g * kGroup, n, dtype, values);
    } else {
      read_row(*from.view, from.row, g * kGroup, n, values);
      note_bad(stack, row, g * kGroup, n, dtype, values);
      std::fill(values + n, values + kGroup, 0.0f);
      quantise(values, group);
    }
    const auto bytes = bytes_of(group);
    std::memcpy(to + g * static_cast<int64_t>(bytes.size()), bytes.data(), bytes.size());
    std::memcpy(scales + g * static_cast<int64_t>(sizeof(uint16_t)), &group.scale,
                sizeof(uint16_t));
  }
}

}  // namespace

WeightLayout weight_layout(int n_out, int n_in, DType dtype) {
  const int k_padded = round_up(n_in, kKPadding);
  const int scale_stride = is_quantised(dtype) ? round_up(k_padded / kGroup, kScalePadding) : 0;
  const auto n = static_cast<size_t>(n_out);
  return {.dtype = dtype,
          .n_out = n_out,
          .n_in = n_in,
          .k_padded = k_padded,
          .scale_stride = scale_stride,
          .value_bytes = n * row_bytes(dtype, k_padded),
          .scale_bytes = n * scale_stride * sizeof(uint16_t),
          .bias_bytes = n * sizeof(float)};
}

void pack_weight(std::span<const TensorView> parts, const WeightLayout& layout,
                 const PackedWeight& to, ThreadPool& pool) {
  Stack stack(parts);
  const size_t values_stride = row_bytes(layout.dtype, layout.k_padded);
  const size_t scales_stride = layout.scale_stride * sizeof(uint16_t);
  pool.parallel_for(stack.rows(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      std::byte* const values = to.values.data() + row * values_stride;
      std::memset(values, 0, values_stride);
      if (!is_quantised(layout.dtype)) {
        pack_plain_row(stack, row, layout.dtype, values);
        continue;
      }
      std::byte* const scales = to.scales.data() + row * scales_stride;
      std::memset(scales, 0, scales_stride);
      if (layout.dtype == DType::kInt8) {
        pack_groups_row<Int8Group>(stack, row, layout.dtype, values, scales);
      } else {
        pack_groups_row<Int4Group>(stack, row, layout.dtype, values, scales);
      }
    }
  });
  stack.refuse_bad(layout.dtype);
}

}  // namespace pb::cuda
