#include "cpu/weights/pack_super_blocks.h"

#include <cstring>

namespace pb::cpu {
namespace {

constexpr int kHalf = kGroup / 2;
constexpr int kQuad = 4;           // k's of a column that lie together
constexpr int kRowsOfNibbles = 4;  // quads of nibble pairs a group

// Of bits above the nibbles, before them.
int rows_of_high_bits(DType dtype) {
  return dtype == DType::kQ6K ? 2 : dtype == DType::kQ5K ? 1 : 0;
}
int rows_of_quads(DType dtype) { return rows_of_high_bits(dtype) + kRowsOfNibbles; }
int nibble_row(DType dtype, int k) { return rows_of_high_bits(dtype) + k % kHalf / kQuad; }
bool has_min(DType dtype) { return dtype != DType::kQ6K; }

// Of a column.
int bytes_of_group(DType dtype) { return 2 + rows_of_quads(dtype) * kQuad; }

size_t super_block_bytes(DType dtype, int tile_columns) {
  const int of_column = (has_min(dtype) ? 4 : 2) + kGroupsOfSuperBlock * bytes_of_group(dtype);
  return static_cast<size_t>(tile_columns) * static_cast<size_t>(of_column);
}

// Where the parts of a column's group lie. Byte is std::byte or const std::byte.
template <typename Byte>
struct Place {
  Byte* d;
  Byte* d_min;   // null: none
  Byte* scales;  // two, `columns` apart
  Byte* numbers;
  int columns;

  Byte* quad(int row) const { return numbers + static_cast<ptrdiff_t>(row) * columns * kQuad; }
};
template <typename Byte>
Place<Byte> place_of(Byte* tile, DType dtype, int64_t index, int columns, int column) {
  const int64_t group = index % kGroupsOfSuperBlock;
  Byte* start =
      tile + index / kGroupsOfSuperBlock * static_cast<int64_t>(super_block_bytes(dtype, columns));
  Byte* scales = start + ((has_min(dtype) ? 4 : 2) + group * bytes_of_group(dtype)) * columns;
  return {start + column * 2, has_min(dtype) ? start + (columns + column) * 2 : nullptr,
          scales + column, scales + 2 * columns + column * kQuad, columns};
}

// Bits of the numbers of a group from bit 4 on, as bytes of rows.
struct HighBits {
  int row;
  int shift;
  int mask;
};
HighBits high_bits(DType dtype, int k) {
  const int j = k % kHalf / kQuad;
  if (dtype == DType::kQ6K) return {k / kHalf, 2 * j, 3};
  return {0, j + k / kHalf * 4, 1};
}

}  // namespace

size_t super_tile_bytes(int n_in, DType dtype, int tile_columns) {
  const auto n_blocks = static_cast<size_t>((n_in + kSuperBlock - 1) / kSuperBlock);
  return n_blocks * super_block_bytes(dtype, tile_columns);
}

void write_super_group(const SuperGroup& group, DType dtype, int64_t index, int tile_columns,
                       int column, std::byte* tile) {
  const auto to = place_of(tile, dtype, index, tile_columns, column);
  std::memcpy(to.d, &group.d, sizeof(group.d));
  if (to.d_min != nullptr) std::memcpy(to.d_min, &group.d_min, sizeof(group.d_min));
  to.scales[0] = std::byte{group.scales[0]};
  to.scales[tile_columns] = std::byte{group.scales[1]};
  for (int k = 0; k < kGroup; ++k) {
    const int q = group.numbers[k];
    to.quad(nibble_row(dtype, k))[k % kQuad] |= static_cast<std::byte>((q & 15) << k / kHalf * 4);
    if (dtype == DType::kQ4K) continue;
    const HighBits high = high_bits(dtype, k);
    to.quad(high.row)[k % kQuad] |= static_cast<std::byte>((q >> 4 & high.mask) << high.shift);
  }
}

SuperGroup read_super_group(const std::byte* tile, DType dtype, int64_t index, int tile_columns,
                            int column) {
  const auto from = place_of(tile, dtype, index, tile_columns, column);
  SuperGroup group;
  std::memcpy(&group.d, from.d, sizeof(group.d));
  if (from.d_min != nullptr) std::memcpy(&group.d_min, from.d_min, sizeof(group.d_min));
  group.scales[0] = static_cast<uint8_t>(from.scales[0]);
  group.scales[1] = static_cast<uint8_t>(from.scales[tile_columns]);
  for (int k = 0; k < kGroup; ++k) {
    const auto pair = static_cast<int>(from.quad(nibble_row(dtype, k))[k % kQuad]);
    int q = pair >> k / kHalf * 4 & 15;
    if (dtype != DType::kQ4K) {
      const HighBits high = high_bits(dtype, k);
      const auto byte = static_cast<int>(from.quad(high.row)[k % kQuad]);
      q |= (byte >> high.shift & high.mask) << 4;
    }
    group.numbers[k] = static_cast<uint8_t>(q);
  }
  return group;
}

}  // namespace pb::cpu
