#include "cuda/weights/pack.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "cuda/weights/weight_formats.h"
#include "formats/dtype.h"
#include "formats/tensors/read_tensor.h"

namespace pb::cuda {
namespace {

constexpr int kKPadding = 32;
static_assert(kKPadding == kGroup);

int round_up(int n, int to) { return (n + to - 1) / to * to; }

// The sizes of a row.
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
#define PB_CASE(constant, name, Type) \
  case DType::constant:               \
    return sizes_of<Type##Format>(k_padded);
      PB_CUDA_FORMATS(PB_CASE)
#undef PB_CASE
    default:
      return sizes_of<F32Format>(k_padded);
  }
}

// Packs a row in f32 or bf16.
template <DType kDType>
void pack_plain_row(Stack& stack, int64_t row, const PackedRow& packed) {
  std::byte* const to = packed.values;
  float values[kReadBlock];
  uint16_t narrow[kReadBlock];
  const Stack::Row from = stack.row(row);
  for (int64_t k = 0; k < stack.cols(); k += kReadBlock) {
    const int n = static_cast<int>(std::min<int64_t>(kReadBlock, stack.cols() - k));
    read_row(*from.view, from.row, k, n, values);
    stack.note_bad(row, k, n, kDType, values);
    if (kDType == DType::kF32) {
      std::memcpy(to + k * sizeof(float), values, n * sizeof(float));
    } else {
      for (int i = 0; i < n; ++i) narrow[i] = f32_to_bf16(values[i]);
      std::memcpy(to + k * sizeof(uint16_t), narrow, n * sizeof(uint16_t));
    }
  }
}

// Packs a row in groups. Layout is that of Format in device memory.
template <typename Format, typename Layout>
void pack_groups_row(Stack& stack, int64_t row, const PackedRow& to) {
  for (int64_t g = 0; g * kGroup < stack.cols(); ++g) {
    Layout::write(packed_group<Format>(stack, row, g), g, to);
  }
}

using PackRow = void (*)(Stack&, int64_t, const PackedRow&);
PackRow row_packer(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return pack_plain_row<DType::kBF16>;
#define PB_CASE(constant, name, Type) \
  case DType::constant:               \
    return pack_groups_row<Type, Type##Format>;
      PB_CUDA_FORMATS(PB_CASE)
#undef PB_CASE
    default:
      return pack_plain_row<DType::kF32>;
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

DType native_dtype(DType tensor) {
  switch (tensor) {
    case DType::kF32:
    case DType::kBF16:
#define PB_CASE(constant, name, Type) case DType::constant:
      PB_CUDA_FORMATS(PB_CASE)
#undef PB_CASE
      return tensor;
    default:
      return int8_holds(tensor) ? DType::kInt8 : DType::kBF16;
  }
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
  require_native(parts, layout.dtype);
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
      if (values_stride > 0) std::memset(packed.values, 0, values_stride);
      if (scales_stride > 0) std::memset(packed.scales, 0, scales_stride);
      pack_row(stack, row, packed);
    }
  });
  stack.refuse_bad(layout.dtype);
}

}  // namespace pb::cuda
