#include "cpu/weights/pack.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/error.h"
#include "cpu/dispatch/kernels.h"
#include "cpu/weights/group_tiles.h"
#include "cpu/weights/pack_compressed_bf16.h"
#include "cpu/weights/pack_fp8.h"
#include "formats/dtype.h"
#include "formats/tensors/read_tensor.h"

namespace pb::cpu {
namespace {

static_assert(kGroupSize == kGroup && kFp8BlockSize == kFp8Block);

// -- quantised numbers --------------------------------------------------------------------------

// Packs a row of Format in groups with the layout of group_tiles.h.
template <typename Format>
struct Packer {
  static size_t tile_bytes(int n_in, int columns) {
    return GroupTiles<Format>::tile_bytes(n_in, columns);
  }
  // Packs like pack_plain.
  static void pack(Stack& stack, int64_t row, int64_t k, const TileLayout& layout, int column,
                   std::byte* tile) {
    const int64_t end = std::min(stack.cols(), k + kReadBlock);
    for (int64_t g = k / kGroup; g * kGroup < end; ++g) {
      GroupTiles<Format>::write(packed_group<Format>(stack, row, g), g, layout, column, tile);
    }
  }
  static typename Format::Parts unpack(const std::byte* tile, int64_t group,
                                       const TileLayout& layout, int column) {
    return GroupTiles<Format>::read(tile, group, layout, column);
  }
};

template <>
struct Packer<Fp8> {
  static size_t tile_bytes(int n_in, int columns) { return fp8_tile_bytes(n_in, columns); }
  static void pack(Stack& stack, int64_t row, int64_t k, const TileLayout& layout, int column,
                   std::byte* tile) {
    pack_fp8(stack, row, k, layout, column, tile);
  }
  static Fp8::Parts unpack(const std::byte* tile, int64_t group, const TileLayout& layout,
                           int column) {
    return unpack_fp8(tile, group, layout.columns, column);
  }
};

// -- plain numbers ------------------------------------------------------------------------------

// Returns the numbers of a bf16 tile, including padding.
int64_t bf16_numbers(int n_in, int tile_columns) {
  return int64_t{(n_in + kBf16Padding - 1) / kBf16Padding * kBf16Padding} * tile_columns;
}

size_t tile_bytes_of(int n_in, DType dtype, const TileLayout& layout) {
  if (is_quantised(dtype)) {
    return with_format(dtype, [&](auto format) {
      return Packer<decltype(format)>::tile_bytes(n_in, layout.columns);
    });
  }
  if (dtype == DType::kBF16) {
    const int64_t n = bf16_numbers(n_in, layout.columns);
    return layout.run > 0 ? compressed_tile_bytes(n, layout.run) : sizeof(uint16_t) * n;
  }
  return static_cast<size_t>(n_in) * static_cast<size_t>(layout.columns) * sizeof(float);
}

// Writes elements [first, first + n) of k of one output to its column of a tile.
void write_column(const float* values, int64_t first, int n, DType dtype, int tile_columns,
                  int column, std::byte* tile) {
  if (dtype == DType::kF32) {
    float* to = reinterpret_cast<float*>(tile) + first * tile_columns + column;
    for (int i = 0; i < n; ++i) to[static_cast<int64_t>(i) * tile_columns] = values[i];
    return;
  }
  uint16_t* to = reinterpret_cast<uint16_t*>(tile) + (first / 2 * tile_columns + column) * 2;
  for (int i = 0; i < n; ++i) {  // first is even
    to[static_cast<int64_t>(i / 2) * tile_columns * 2 + i % 2] = f32_to_bf16(values[i]);
  }
}

// Packs elements [k, k + kReadBlock) of one output, as far as they exist, into its column of a
// tile.
template <DType kDType>
void pack_plain(Stack& stack, int64_t row, int64_t k, const TileLayout& layout, int column,
                std::byte* tile) {
  float values[kReadBlock];
  const int n = static_cast<int>(std::min<int64_t>(kReadBlock, stack.cols() - k));
  const Stack::Row from = stack.row(row);
  read_row(*from.view, from.row, k, n, values);
  stack.note_bad(row, k, n, kDType, values);
  write_column(values, k, n, kDType, layout.columns, column, tile);
}

using Pack = void (*)(Stack&, int64_t row, int64_t k, const TileLayout&, int column,
                      std::byte* tile);
Pack packer(DType dtype) {
  if (dtype == DType::kF32) return pack_plain<DType::kF32>;
  if (dtype == DType::kBF16) return pack_plain<DType::kBF16>;
  return with_format(dtype, [](auto format) -> Pack { return Packer<decltype(format)>::pack; });
}

}  // namespace

MatrixBytes packed_bytes(int n_out, int n_in, DType dtype, const TileLayout& layout) {
  const auto n_tiles = static_cast<size_t>(tiles_of(n_out, layout.columns));
  return {.packed = n_tiles * tile_bytes_of(n_in, dtype, layout),
          .bias = n_tiles * layout.columns * sizeof(float)};
}

PackedMatrix pack_matrix(std::span<const TensorView> parts, std::span<const TensorView> biases,
                         DType dtype, const TileLayout& layout, ThreadPool& pool) {
  require_native(parts, dtype);
  Stack stack(parts);
  PackedMatrix m;
  m.dtype = dtype;
  m.n_in = static_cast<int>(stack.cols());
  m.n_out = static_cast<int>(stack.rows());
  const Pack pack = packer(dtype);
  const int64_t n_tiles = tiles_of(m.n_out, layout.columns);
  const size_t tile_bytes = tile_bytes_of(m.n_in, dtype, layout);
  const int64_t n_numbers = bf16_numbers(m.n_in, layout.columns);
  m.compressed = layout.run > 0;
  std::atomic<bool> is_plain = m.compressed && !can_be_compressed(n_numbers, layout.run);
  m.packed = AlignedBuffer(tile_bytes * n_tiles);
  const size_t plain_bytes = m.compressed ? static_cast<size_t>(n_numbers) * sizeof(uint16_t) : 0;
  AlignedBuffer plain_tiles(plain_bytes * pool.n_threads());  // tiles before their compression
  pool.parallel_for(n_tiles, 1, [&](int64_t begin, int64_t end, int thread) {
    std::byte* const plain = plain_tiles.as<std::byte>() + plain_bytes * thread;
    for (int64_t tile = begin; tile < end && !is_plain; ++tile) {
      std::byte* const own = m.packed.as<std::byte>() + tile * tile_bytes;
      std::byte* const to = m.compressed ? plain : own;
      const int64_t first = tile * layout.columns;
      const int64_t last = std::min<int64_t>(stack.rows(), first + layout.columns);
      // Clears the numbers of an earlier tile, because the last tile has fewer outputs.
      if (m.compressed && last - first < layout.columns) std::memset(plain, 0, plain_bytes);
      for (int64_t k = 0; k < stack.cols(); k += kReadBlock) {
        for (int64_t row = first; row < last; ++row) {
          pack(stack, row, k, layout, static_cast<int>(row - first), to);
        }
      }
      const auto* numbers = reinterpret_cast<const uint16_t*>(plain);
      if (m.compressed && !compress_tile(numbers, n_numbers, layout.run, own)) is_plain = true;
    }
  });
  if (is_plain) {
    return pack_matrix(parts, biases, dtype, {layout.columns, layout.lines}, pool);
  }
  stack.refuse_bad(dtype);
  m.bias = read_biases(parts, biases, n_tiles * layout.columns);
  return m;
}

void unpack_row(const Matrix& m, const TileLayout& layout, int row, bool add, float* out) {
  const int tile_columns = layout.columns;
  const int column = row % tile_columns;
  const std::byte* tile =
      m.packed.as<std::byte>() + row / tile_columns * tile_bytes_of(m.n_in, m.dtype, layout);
  const auto put = [add, out](int64_t k, float value) { out[k] = add ? out[k] + value : value; };
  if (is_quantised(m.dtype)) {
    with_format(m.dtype, [&](auto format) {
      using Format = decltype(format);
      float values[kGroup];
      for (int64_t g = 0; g * kGroup < m.n_in; ++g) {
        Format::dequantise(Packer<Format>::unpack(tile, g, layout, column), values);
        const int64_t n = std::min<int64_t>(kGroup, m.n_in - g * kGroup);
        for (int64_t i = 0; i < n; ++i) put(g * kGroup + i, values[i]);
      }
    });
  } else if (m.compressed) {
    CompressedNumbers numbers(tile, layout.run);
    for (int64_t k = 0; k < m.n_in; ++k) {
      put(k, bf16_to_f32(numbers.at((k / 2 * tile_columns + column) * 2 + k % 2)));
    }
  } else if (m.dtype == DType::kBF16) {
    const uint16_t* from = reinterpret_cast<const uint16_t*>(tile) + column * 2;
    for (int64_t k = 0; k < m.n_in; ++k) {
      put(k, bf16_to_f32(from[k / 2 * tile_columns * 2 + k % 2]));
    }
  } else {
    const float* from = reinterpret_cast<const float*>(tile) + column;
    for (int64_t k = 0; k < m.n_in; ++k) put(k, from[k * tile_columns]);
  }
}

}  // namespace pb::cpu
