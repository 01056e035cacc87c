#include "cpu/pack.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"

namespace pb::cpu {
namespace {

constexpr int kBlock = 64;  // elements of k that are read at a time
constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// out[i] = view(row, first + i), exactly.
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
    case DType::kInt4:
      break;  // in groups: pack_quantised.cc
  }
}

float as_stored(float value, DType dtype) {
  return dtype == DType::kBF16 ? bf16_to_f32(f32_to_bf16(value)) : value;
}

[[noreturn]] void refuse_value(const TensorView& view, int64_t row, int64_t col, DType dtype) {
  float value = 0.0f;
  read_row(view, row, col, 1, &value);
  std::string at = "[" + std::to_string(row);
  if (view.cols != 1) at += ", " + std::to_string(col);
  const char* why = std::isfinite(value) ? ", which overflows " : ", which is not a number of ";
  throw Error(ErrorCode::kModelFormat, "tensor '" + view.name + "' holds " + std::to_string(value) +
                                           " at " + at + "]" + why + dtype_name(dtype) +
                                           "; the checkpoint is damaged or needs dtype='f32'");
}

void require_shape(const TensorView& view, int64_t rows, int64_t cols) {
  if (view.rows == rows && view.cols == cols) return;
  throw Error(ErrorCode::kModelFormat,
              "tensor '" + view.name + "' has shape (" + std::to_string(view.rows) + ", " +
                  std::to_string(view.cols) + "), expected (" + std::to_string(rows) + ", " +
                  std::to_string(cols) + ")");
}

// values[0, view.rows), in f32.
void read_vector_into(const TensorView& view, float* values) {
  require_shape(view, view.rows, 1);
  for (int64_t i = 0; i < view.rows; ++i) {
    read_row(view, i, 0, 1, values + i);
    if (!std::isfinite(values[i])) refuse_value(view, i, 0, DType::kF32);
  }
}

// Writes elements [first, first + n) of k of one output to its column of a tile.
void write_column(const float* values, int64_t first, int n, DType dtype, int tile_columns,
                  int column, void* tile) {
  if (dtype == DType::kF32) {
    float* to = static_cast<float*>(tile) + first * tile_columns + column;
    for (int i = 0; i < n; ++i) to[static_cast<int64_t>(i) * tile_columns] = values[i];
    return;
  }
  uint16_t* to = static_cast<uint16_t*>(tile) + (first / 2 * tile_columns + column) * 2;
  for (int i = 0; i < n; ++i) {  // first is even
    to[static_cast<int64_t>(i / 2) * tile_columns * 2 + i % 2] = f32_to_bf16(values[i]);
  }
}

// The part that holds row `row` of the stack, and the row in it.
struct PartRow {
  const TensorView* view;
  int64_t row;
};
PartRow part_of(std::span<const TensorView> parts, int64_t row) {
  for (const TensorView& view : parts) {
    if (row < view.rows) return {&view, row};
    row -= view.rows;
  }
  return {nullptr, 0};
}

void lower(std::atomic<int64_t>& least, int64_t value) {
  int64_t seen = least.load(std::memory_order_relaxed);
  while (value < seen && !least.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

Matrix pack_matrix(std::span<const TensorView> parts, std::span<const TensorView> biases,
                   DType dtype, int tile_columns, ThreadPool& pool) {
  Matrix m;
  m.dtype = dtype;
  m.n_in = static_cast<int>(parts[0].cols);
  int64_t rows = 0;
  for (const TensorView& view : parts) {
    require_shape(view, view.rows, m.n_in);
    rows += view.rows;
  }
  m.n_out = static_cast<int>(rows);

  const int64_t n_tiles = tiles_of(m, tile_columns);
  const int64_t padded_in = dtype == DType::kBF16 ? (m.n_in + 1) / 2 * 2 : m.n_in;
  const size_t tile_bytes = static_cast<size_t>(padded_in) * tile_columns * dtype_size(dtype);
  m.packed = AlignedBuffer(tile_bytes * n_tiles);

  std::atomic<int64_t> first_bad{kNone};  // row * n_in + col of the stack
  pool.parallel_for(n_tiles, 1, [&](int64_t begin, int64_t end, int) {
    float values[kBlock];
    for (int64_t tile = begin; tile < end; ++tile) {
      std::byte* to = m.packed.as<std::byte>() + tile * tile_bytes;
      const int columns =
          static_cast<int>(std::min<int64_t>(tile_columns, rows - tile * tile_columns));
      for (int64_t k = 0; k < m.n_in; k += kBlock) {
        const int n = static_cast<int>(std::min<int64_t>(kBlock, m.n_in - k));
        for (int column = 0; column < columns; ++column) {
          const int64_t row = tile * tile_columns + column;
          const PartRow part = part_of(parts, row);
          read_row(*part.view, part.row, k, n, values);
          for (int i = 0; i < n; ++i) {
            if (!std::isfinite(as_stored(values[i], dtype))) lower(first_bad, row * m.n_in + k + i);
          }
          write_column(values, k, n, dtype, tile_columns, column, to);
        }
      }
    }
  });
  if (first_bad != kNone) {
    const PartRow part = part_of(parts, first_bad / m.n_in);
    refuse_value(*part.view, part.row, first_bad % m.n_in, dtype);
  }

  const bool has_bias = std::any_of(biases.begin(), biases.end(),
                                    [](const TensorView& view) { return view.data != nullptr; });
  if (has_bias) {
    m.bias = AlignedBuffer(n_tiles * tile_columns * sizeof(float));
    float* to = m.bias.as<float>();
    for (size_t i = 0; i < parts.size(); ++i) {
      if (biases[i].data != nullptr) {
        require_shape(biases[i], parts[i].rows, 1);
        read_vector_into(biases[i], to);
      }
      to += parts[i].rows;
    }
  }
  return m;
}

Vector read_vector(const TensorView& view) {
  Vector v;
  v.size = static_cast<int>(view.rows);
  v.values = AlignedBuffer(view.rows * sizeof(float));
  read_vector_into(view, v.values.as<float>());
  return v;
}

void unpack_row(const Matrix& matrix, int tile_columns, int row, bool add, float* out) {
  const int64_t tile = row / tile_columns;
  const int column = row % tile_columns;
  if (matrix.dtype == DType::kF32) {
    const float* from = matrix.packed.as<float>() + tile * matrix.n_in * tile_columns + column;
    for (int64_t k = 0; k < matrix.n_in; ++k) {
      const float value = from[k * tile_columns];
      out[k] = add ? out[k] + value : value;
    }
    return;
  }
  const int64_t n_pairs = (matrix.n_in + 1) / 2;
  const uint16_t* from =
      matrix.packed.as<uint16_t>() + (tile * n_pairs * tile_columns + column) * 2;
  for (int64_t k = 0; k < matrix.n_in; ++k) {
    const float value = bf16_to_f32(from[k / 2 * tile_columns * 2 + k % 2]);
    out[k] = add ? out[k] + value : value;
  }
}

}  // namespace pb::cpu
