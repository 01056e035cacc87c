#include "cuda/weights/pack.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "cuda/weights/pack_groups.h"
#include "cuda/weights/weight_formats.h"
#include "formats/quantise.h"
#include "formats/read_tensor.h"

namespace pb::cuda {
namespace {

constexpr int kKPadding = 32;
static_assert(kKPadding == kGroup);

int round_up(int n, int to) { return (n + to - 1) / to * to; }

// Sizes of a row.
struct RowSizes {
  int bits;
  int scale_bytes;
};
template <typename Format>
RowSizes sizes_of(int k_padded) {
  return {Format::kBits, Format::scale_row_bytes(k_padded)};
}
RowSizes row_sizes(DType dtype, int k_padded) {
  switch (dtype) {
    case DType::kBF16:
      return sizes_of<Bf16Format>(k_padded);
    case DType::kInt8:
      return sizes_of<Int8Format>(k_padded);
    case DType::kInt4:
      return sizes_of<Int4Format>(k_padded);
    case DType::kInt4Zp:
      return sizes_of<Int4ZpFormat>(k_padded);
    case DType::kQ4K:
      return sizes_of<Q4KFormat>(k_padded);
    case DType::kQ5K:
      return sizes_of<Q5KFormat>(k_padded);
    case DType::kQ6K:
      return sizes_of<Q6KFormat>(k_padded);
    case DType::kMxfp4:
      return sizes_of<Mxfp4Format>(k_padded);
    default:
      return sizes_of<F32Format>(k_padded);
  }
}

// A row in f32 or bf16.
void pack_plain_row(Stack& stack, int64_t row, DType dtype, const PackedRow& packed) {
  std::byte* const to = packed.values;
  float values[kReadBlock];
  uint16_t narrow[kReadBlock];
  const Stack::Row from = stack.row(row);
  for (int64_t k = 0; k < stack.cols(); k += kReadBlock) {
    const int n = static_cast<int>(std::min<int64_t>(kReadBlock, stack.cols() - k));
    read_row(*from.view, from.row, k, n, values);
    stack.note_bad(row, k, n, dtype, values);
    if (dtype == DType::kF32) {
      std::memcpy(to + k * sizeof(float), values, n * sizeof(float));
    } else {
      for (int i = 0; i < n; ++i) narrow[i] = f32_to_bf16(values[i]);
      std::memcpy(to + k * sizeof(uint16_t), narrow, n * sizeof(uint16_t));
    }
  }
}

// `group` = the group nearest to x; of dtypes that something is rounded to.
void quantise(const float* x, Int8Group& group) { group = quantise_int8(x); }
void quantise(const float* x, Int4Group& group) { group = quantise_int4(x); }
template <typename Group>
void quantise(const float*, Group&) {}  // not called: require_dtype

void dequantise_group(DType dtype, const SuperGroup& group, float* x) {
  dequantise(dtype, group, x);
}
template <typename Group>
void dequantise_group(DType, const Group& group, float* x) {
  dequantise(group, x);
}

// A row in groups.
template <typename Group>
void pack_groups_row(Stack& stack, int64_t row, DType dtype, const PackedRow& to) {
  float values[kGroup];
  const Stack::Row from = stack.row(row);
  for (int64_t g = 0; g * kGroup < stack.cols(); ++g) {
    const int n = static_cast<int>(std::min<int64_t>(kGroup, stack.cols() - g * kGroup));
    Group group;
    if (is_read_as(from.view->dtype, dtype)) {
      read_group(*from.view, from.row, g, group);
      dequantise_group(dtype, group, values);
      stack.note_bad(row, g * kGroup, n, dtype, values);
    } else {
      read_row(*from.view, from.row, g * kGroup, n, values);
      stack.note_bad(row, g * kGroup, n, dtype, values);
      std::fill(values + n, values + kGroup, 0.0f);
      quantise(values, group);
    }
    write_group(group, dtype, g, to);
  }
}

using PackRow = void (*)(Stack&, int64_t, DType, const PackedRow&);
PackRow row_packer(DType dtype) {
  if (in_super_blocks(dtype)) return pack_groups_row<SuperGroup>;
  switch (dtype) {
    case DType::kInt8:
      return pack_groups_row<Int8Group>;
    case DType::kInt4:
      return pack_groups_row<Int4Group>;
    case DType::kInt4Zp:
      return pack_groups_row<Int4ZpGroup>;
    case DType::kMxfp4:
      return pack_groups_row<Mxfp4Group>;
    default:
      return pack_plain_row;
  }
}

void require_dtype(std::span<const TensorView> parts, DType dtype) {
  for (const TensorView& part : parts) {
    if (part.dtype == dtype) continue;
    throw Error(ErrorCode::kModelFormat, "tensor '" + part.name + "' is of " +
                                             dtype_name(part.dtype) + "; a matrix of " +
                                             dtype_name(dtype) + " is made of such blocks only");
  }
}

}  // namespace

WeightLayout weight_layout(int n_out, int n_in, DType dtype) {
  const int k_padded = round_up(n_in, kKPadding);
  const RowSizes row = row_sizes(dtype, k_padded);
  const auto n = static_cast<size_t>(n_out);
  return {.dtype = dtype,
          .n_out = n_out,
          .n_in = n_in,
          .k_padded = k_padded,
          .scale_stride = row.scale_bytes / static_cast<int>(sizeof(uint16_t)),
          .bits = row.bits,
          .value_bytes = n * static_cast<size_t>(k_padded / 8 * row.bits),
          .scale_bytes = n * static_cast<size_t>(row.scale_bytes),
          .bias_bytes = n * sizeof(float)};
}

WeightPointers pointers_of(const Matrix& w) {
  const WeightLayout layout = weight_layout(w.n_out, w.n_in, w.dtype);
  const auto* values = w.packed.as<std::byte>();
  const std::byte* const scales = values + w.packed.bytes() - layout.scale_bytes;
  return {.values = values,
          .scales = layout.scale_bytes == 0 ? nullptr : reinterpret_cast<const uint16_t*>(scales),
          .bias = w.bias.as<float>()};
}

void pack_weight(std::span<const TensorView> parts, const WeightLayout& layout,
                 const PackedWeight& to, ThreadPool& pool) {
  if (is_only_kept(layout.dtype)) require_dtype(parts, layout.dtype);
  Stack stack(parts);
  const PackRow pack_row = row_packer(layout.dtype);
  const auto values_stride = static_cast<size_t>(layout.k_padded / 8 * layout.bits);
  const size_t scales_stride = layout.scale_stride * sizeof(uint16_t);
  const int n_tiles = (layout.k_padded + kScaleTile - 1) / kScaleTile;
  pool.parallel_for(stack.rows(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const PackedRow packed{.values = to.values.data() + row * values_stride,
                             .scales = to.scales.data() + row * scales_stride,
                             .n_tiles = n_tiles};
      std::memset(packed.values, 0, values_stride);
      if (scales_stride > 0) std::memset(packed.scales, 0, scales_stride);
      pack_row(stack, row, layout.dtype, packed);
    }
  });
  stack.refuse_bad(layout.dtype);
}

}  // namespace pb::cuda
