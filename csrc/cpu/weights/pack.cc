#include "cpu/weights/pack.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/error.h"
#include "cpu/dispatch/kernels.h"
#include "cpu/weights/pack_coded.h"
#include "cpu/weights/pack_fp8.h"
#include "cpu/weights/pack_mxfp4.h"
#include "cpu/weights/pack_super_blocks.h"
#include "formats/quantise.h"
#include "formats/read_tensor.h"

namespace pb::cpu {
namespace {

static_assert(kGroupSize == kGroup);
static_assert(std::ranges::equal(kIq4NlCodes, kIq4NlNumbers));

int groups_of(int n_in) { return (n_in + kGroup - 1) / kGroup; }

// Bytes of the numbers of one output in a group.
constexpr int kFifthBytes = kGroup / 8;
constexpr int kQ5_0Bytes = kFifthBytes + kGroup / 2;
int group_bytes(DType dtype) {
  return dtype == DType::kInt8 ? kGroup : dtype == DType::kQ5_0 ? kQ5_0Bytes : kGroup / 2;
}

// ... and of its scale and zero point.
int factor_bytes(DType dtype) { return dtype == DType::kInt4Zp ? 3 : 2; }

// Of a bf16 tile, padding included.
int64_t bf16_numbers(int n_in, int tile_columns) {
  return int64_t{(n_in + kBf16Padding - 1) / kBf16Padding * kBf16Padding} * tile_columns;
}

size_t tile_bytes_of(int n_in, DType dtype, const TileLayout& layout) {
  const auto columns = static_cast<size_t>(layout.columns);
  const int64_t n = bf16_numbers(n_in, layout.columns);
  switch (dtype) {
    case DType::kBF16:
      return layout.run > 0 ? coded_tile_bytes(n, layout.run) : sizeof(uint16_t) * n;
    case DType::kInt8:
    case DType::kInt4:
    case DType::kInt4Zp:
    case DType::kQ5_0:
    case DType::kIQ4_NL:
      return static_cast<size_t>(groups_of(n_in)) * columns *
             (factor_bytes(dtype) + group_bytes(dtype));
    case DType::kQ4K:
    case DType::kQ5K:
    case DType::kQ6K:
      return super_tile_bytes(n_in, dtype, layout.columns);
    case DType::kMxfp4:
      return mxfp4_tile_bytes(n_in, layout.columns);
    case DType::kFp8:
      return fp8_tile_bytes(n_in, layout.columns);
    default:
      return static_cast<size_t>(n_in) * columns * sizeof(float);
  }
}

// -- plain numbers ------------------------------------------------------------------------------

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

// Elements [k, k + kReadBlock) of one output, as far as there are any, to its column of a tile.
void pack_plain(Stack& stack, int64_t row, int64_t k, DType dtype, const TileLayout& layout,
                int column, std::byte* tile) {
  float values[kReadBlock];
  const int n = static_cast<int>(std::min<int64_t>(kReadBlock, stack.cols() - k));
  const Stack::Row from = stack.row(row);
  read_row(*from.view, from.row, k, n, values);
  stack.note_bad(row, k, n, dtype, values);
  write_column(values, k, n, dtype, layout.columns, column, tile);
}

// -- groups -------------------------------------------------------------------------------------

// Where a group of a column lies: its scale, and its bytes, some at a time every `stride` bytes.
struct GroupPlace {
  std::byte* scale;
  std::byte* zero;  // kInt4Zp
  std::byte* bytes;
  int64_t stride;
  bool is_line;

  int at_a_time() const { return is_line ? 2 : 4; }
};
GroupPlace place_of(std::byte* tile, int64_t group, DType dtype, const TileLayout& layout,
                    int column) {
  const int64_t columns = layout.columns;
  std::byte* start = tile + group * columns * (factor_bytes(dtype) + group_bytes(dtype));
  std::byte* zero = start + columns * 2 + column;
  std::byte* numbers = start + columns * factor_bytes(dtype);
  if (layout.lines)
    return {start + column * 2, zero, numbers + column / 4 * 64 + column % 4 * 2, 8, true};
  return {start + column * 2, zero, numbers + column * 4, 4 * columns, false};
}

// The bytes of a group as lines have them, with neighbours in a byte, and back.
void pair_neighbours(const Int4Group& group, uint8_t* bytes) {
  for (int i = 0; i < kGroup / 4; ++i) {
    const uint8_t even = group.pairs[2 * i], odd = group.pairs[2 * i + 1];
    bytes[i] = static_cast<uint8_t>((even & 0xf) | odd << 4);
    bytes[i + kGroup / 4] = static_cast<uint8_t>(even >> 4 | (odd & 0xf0));
  }
}
void part_neighbours(const uint8_t* bytes, Int4Group& group) {
  for (int i = 0; i < kGroup / 4; ++i) {
    const uint8_t low = bytes[i], high = bytes[i + kGroup / 4];
    group.pairs[2 * i] = static_cast<uint8_t>((low & 0xf) | high << 4);
    group.pairs[2 * i + 1] = static_cast<uint8_t>(low >> 4 | (high & 0xf0));
  }
}

void write_bytes(const GroupPlace& to, uint16_t scale, const uint8_t* bytes, int n) {
  std::memcpy(to.scale, &scale, sizeof(scale));
  for (int i = 0; i < n; i += to.at_a_time()) {
    std::memcpy(to.bytes + i / to.at_a_time() * to.stride, bytes + i, to.at_a_time());
  }
}

void write_group(const GroupPlace& to, const Int8Group& group) {
  uint8_t bytes[kGroup];
  for (int i = 0; i < kGroup; ++i)
    bytes[i] = static_cast<uint8_t>(group.values[i] + zero_point(DType::kInt8));
  write_bytes(to, group.scale, bytes, kGroup);
}

void write_group(const GroupPlace& to, const Int4Group& group) {
  if (!to.is_line) return write_bytes(to, group.scale, group.pairs, kGroup / 2);
  uint8_t bytes[kGroup / 2];
  pair_neighbours(group, bytes);
  write_bytes(to, group.scale, bytes, kGroup / 2);
}

void write_group(const GroupPlace& to, const Int4ZpGroup& group) {
  *to.zero = std::byte{group.zero};
  write_bytes(to, group.scale, group.pairs, kGroup / 2);
}

// The fifth bits, byte b of a file's holding those of k = 8 b on: see pack.h for the order here.
void write_group(const GroupPlace& to, const Q5_0Group& group) {
  uint8_t bytes[kQ5_0Bytes] = {};
  std::memcpy(bytes + kFifthBytes, group.pairs, kGroup / 2);
  for (int k = 0; k < kGroup; ++k) {
    const int bit = (group.fifth_bits[k / 8] >> (k % 8)) & 1;
    bytes[k % 4] |= static_cast<uint8_t>(bit << (k / 4));
  }
  write_bytes(to, group.scale, bytes, kQ5_0Bytes);
}

void write_group(const GroupPlace& to, const Iq4NlGroup& group) {
  write_bytes(to, group.scale, group.pairs, kGroup / 2);
}

// Whether what a group stands for fits into its dtype, whatever its whole numbers are: most groups
// need not be looked at any closer.
bool all_fit(const Int8Group& group) {
  return fits(128.0f * f16_to_f32(group.scale), DType::kInt8);
}
bool all_fit(const Int4Group& group) { return fits(8.0f * f16_to_f32(group.scale), DType::kInt4); }
bool all_fit(const Int4ZpGroup& group) { return fits(f16_to_f32(group.scale), DType::kInt4Zp); }
bool all_fit(const Q5_0Group& group) { return fits(f16_to_f32(group.scale), DType::kQ5_0); }
bool all_fit(const Iq4NlGroup& group) { return fits(f16_to_f32(group.scale), DType::kIQ4_NL); }

void quantise(const float* x, Int8Group& group) { group = quantise_int8(x); }
void quantise(const float* x, Int4Group& group) { group = quantise_int4(x); }
template <typename Group>
void quantise(const float*, Group&) {}  // of what is only kept: not called, by require_dtype

// As pack_plain.
template <typename Group>
void pack_groups(Stack& stack, int64_t row, int64_t k, DType dtype, const TileLayout& layout,
                 int column, std::byte* tile) {
  const Stack::Row from = stack.row(row);
  const int64_t end = std::min(stack.cols(), k + kReadBlock);
  float values[kGroup];
  for (int64_t g = k / kGroup; g * kGroup < end; ++g) {
    const int n = static_cast<int>(std::min<int64_t>(kGroup, stack.cols() - g * kGroup));
    Group group;
    if (is_read_as(from.view->dtype, dtype)) {
      read_group(*from.view, from.row, g, group);
      if (!all_fit(group)) {
        dequantise(group, values);
        stack.note_bad(row, g * kGroup, n, dtype, values);
      }
    } else {
      read_row(*from.view, from.row, g * kGroup, n, values);
      stack.note_bad(row, g * kGroup, n, dtype, values);
      std::fill(values + n, values + kGroup, 0.0f);
      quantise(values, group);
    }
    write_group(place_of(tile, g, dtype, layout, column), group);
  }
}

void read_placed(const GroupPlace& from, uint16_t& scale, uint8_t* bytes, int n) {
  std::memcpy(&scale, from.scale, sizeof(scale));
  for (int i = 0; i < n; i += from.at_a_time()) {
    std::memcpy(bytes + i, from.bytes + i / from.at_a_time() * from.stride, from.at_a_time());
  }
}

void read_placed(const GroupPlace& from, Int8Group& group) {
  uint8_t bytes[kGroup];
  read_placed(from, group.scale, bytes, kGroup);
  for (int i = 0; i < kGroup; ++i)
    group.values[i] = static_cast<int8_t>(bytes[i] - zero_point(DType::kInt8));
}

void read_placed(const GroupPlace& from, Int4Group& group) {
  if (!from.is_line) return read_placed(from, group.scale, group.pairs, kGroup / 2);
  uint8_t bytes[kGroup / 2];
  read_placed(from, group.scale, bytes, kGroup / 2);
  part_neighbours(bytes, group);
}

void read_placed(const GroupPlace& from, Int4ZpGroup& group) {
  group.zero = static_cast<uint8_t>(*from.zero);
  read_placed(from, group.scale, group.pairs, kGroup / 2);
}

void read_placed(const GroupPlace& from, Iq4NlGroup& group) {
  read_placed(from, group.scale, group.pairs, kGroup / 2);
}

void read_placed(const GroupPlace& from, Q5_0Group& group) {
  uint8_t bytes[kQ5_0Bytes];
  read_placed(from, group.scale, bytes, kQ5_0Bytes);
  std::memcpy(group.pairs, bytes + kFifthBytes, kGroup / 2);
  std::memset(group.fifth_bits, 0, sizeof(group.fifth_bits));
  for (int k = 0; k < kGroup; ++k) {
    const int bit = (bytes[k % 4] >> (k / 4)) & 1;
    group.fifth_bits[k / 8] |= static_cast<uint8_t>(bit << (k % 8));
  }
}

// -- super-blocks -------------------------------------------------------------------------------

// As pack_plain, of parts of the same dtype.
void pack_super_blocks(Stack& stack, int64_t row, int64_t k, DType dtype, const TileLayout& layout,
                       int column, std::byte* tile) {
  const Stack::Row from = stack.row(row);
  const int64_t end = std::min(stack.cols(), k + kReadBlock);
  for (int64_t g = k / kGroup; g * kGroup < end; ++g) {
    SuperGroup group;
    read_group(*from.view, from.row, g, group);
    if (!fits(f16_to_f32(group.d), dtype) || !fits(f16_to_f32(group.d_min), dtype)) {
      float values[kGroup];
      dequantise(dtype, group, values);
      stack.note_bad(row, g * kGroup, kGroup, dtype, values);
    }
    write_super_group(group, dtype, g, layout.columns, column, tile);
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

// Hands out element k of a column, for each k in ascending order: visit(k, value).
template <typename Group, typename Visit>
void visit_groups(std::byte* tile, const Matrix& m, const TileLayout& layout, int column,
                  Visit visit) {
  float values[kGroup];
  for (int g = 0; g < groups_of(m.n_in); ++g) {
    Group group;
    read_placed(place_of(tile, g, m.dtype, layout, column), group);
    dequantise(group, values);
    for (int i = 0; i < std::min(kGroup, m.n_in - g * kGroup); ++i)
      visit(g * kGroup + i, values[i]);
  }
}

}  // namespace

MatrixBytes packed_bytes(int n_out, int n_in, DType dtype, const TileLayout& layout) {
  const auto n_tiles = static_cast<size_t>(tiles_of(n_out, layout.columns));
  return {.packed = n_tiles * tile_bytes_of(n_in, dtype, layout),
          .bias = n_tiles * layout.columns * sizeof(float)};
}

PackedMatrix pack_matrix(std::span<const TensorView> parts, std::span<const TensorView> biases,
                         DType dtype, const TileLayout& layout, ThreadPool& pool) {
  if (is_only_kept(dtype)) require_dtype(parts, dtype);
  Stack stack(parts);
  PackedMatrix m;
  m.dtype = dtype;
  m.n_in = static_cast<int>(stack.cols());
  m.n_out = static_cast<int>(stack.rows());
  const auto pack = dtype == DType::kInt8     ? pack_groups<Int8Group>
                    : dtype == DType::kInt4   ? pack_groups<Int4Group>
                    : dtype == DType::kInt4Zp ? pack_groups<Int4ZpGroup>
                    : dtype == DType::kQ5_0   ? pack_groups<Q5_0Group>
                    : dtype == DType::kIQ4_NL ? pack_groups<Iq4NlGroup>
                    : in_super_blocks(dtype)  ? pack_super_blocks
                    : dtype == DType::kMxfp4  ? pack_mxfp4
                    : dtype == DType::kFp8    ? pack_fp8
                                              : pack_plain;
  const int64_t n_tiles = tiles_of(m.n_out, layout.columns);
  const size_t tile_bytes = tile_bytes_of(m.n_in, dtype, layout);
  const int64_t n_numbers = bf16_numbers(m.n_in, layout.columns);
  m.coded = layout.run > 0;
  std::atomic<bool> is_plain = m.coded && !can_be_coded(n_numbers, layout.run);
  m.packed = AlignedBuffer(tile_bytes * n_tiles);
  const size_t plain_bytes = m.coded ? static_cast<size_t>(n_numbers) * sizeof(uint16_t) : 0;
  AlignedBuffer plain_tiles(plain_bytes * pool.n_threads());  // that are yet to be coded
  pool.parallel_for(n_tiles, 1, [&](int64_t begin, int64_t end, int thread) {
    std::byte* const plain = plain_tiles.as<std::byte>() + plain_bytes * thread;
    for (int64_t tile = begin; tile < end && !is_plain; ++tile) {
      std::byte* const own = m.packed.as<std::byte>() + tile * tile_bytes;
      std::byte* const to = m.coded ? plain : own;
      const int64_t first = tile * layout.columns;
      const int64_t last = std::min<int64_t>(stack.rows(), first + layout.columns);
      // An earlier tile has left numbers where the last one has no outputs.
      if (m.coded && last - first < layout.columns) std::memset(plain, 0, plain_bytes);
      for (int64_t k = 0; k < stack.cols(); k += kReadBlock) {
        for (int64_t row = first; row < last; ++row) {
          pack(stack, row, k, dtype, layout, static_cast<int>(row - first), to);
        }
      }
      const auto* numbers = reinterpret_cast<const uint16_t*>(plain);
      if (m.coded && !code_tile(numbers, n_numbers, layout.run, own)) is_plain = true;
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
  // Only read here.
  std::byte* tile = const_cast<std::byte*>(m.packed.as<std::byte>()) +
                    row / tile_columns * tile_bytes_of(m.n_in, m.dtype, layout);
  const auto put = [add, out](int64_t k, float value) { out[k] = add ? out[k] + value : value; };
  if (m.dtype == DType::kInt8) {
    visit_groups<Int8Group>(tile, m, layout, column, put);
  } else if (m.dtype == DType::kInt4) {
    visit_groups<Int4Group>(tile, m, layout, column, put);
  } else if (m.dtype == DType::kInt4Zp) {
    visit_groups<Int4ZpGroup>(tile, m, layout, column, put);
  } else if (m.dtype == DType::kQ5_0) {
    visit_groups<Q5_0Group>(tile, m, layout, column, put);
  } else if (m.dtype == DType::kIQ4_NL) {
    visit_groups<Iq4NlGroup>(tile, m, layout, column, put);
  } else if (in_super_blocks(m.dtype) || m.dtype == DType::kMxfp4) {
    float values[kGroup];
    for (int64_t g = 0; g * kGroup < m.n_in; ++g) {
      if (m.dtype == DType::kMxfp4) {
        dequantise(read_mxfp4_group(tile, g, tile_columns, column), values);
      } else {
        dequantise(m.dtype, read_super_group(tile, m.dtype, g, tile_columns, column), values);
      }
      for (int i = 0; i < kGroup; ++i) put(g * kGroup + i, values[i]);
    }
  } else if (m.dtype == DType::kFp8) {
    for (int64_t k = 0; k < m.n_in; ++k) put(k, fp8_number(tile, k, tile_columns, column));
  } else if (m.coded) {
    CodedNumbers numbers(tile, layout.run);
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
