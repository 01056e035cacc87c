#include "cpu/weights/pack_fp8.h"

#include <cmath>
#include <cstring>

#include "formats/fp8.h"

namespace pb::cpu {
namespace {

constexpr int kPair = 2;  // contiguous bytes per column

int64_t block_at(int64_t index, int tile_columns) {
  return index * tile_columns * static_cast<int64_t>(sizeof(Fp8Block));
}
int64_t scale_at(int column) { return int64_t{column} * 4; }
// Returns the offset of bytes i and i + 1 of a block. i is even.
int64_t pair_at(int i, int tile_columns, int column) {
  return scale_at(tile_columns) + (int64_t{i} / kPair * tile_columns + column) * kPair;
}

}  // namespace

size_t fp8_tile_bytes(int n_in, int tile_columns) {
  return static_cast<size_t>(block_at(n_in / kFp8Block, tile_columns));
}

void pack_fp8(Stack& stack, int64_t row, int64_t k, const TileLayout& layout, int column,
              std::byte* tile) {
  if (k % kFp8Block != 0) return;
  const Stack::Row from = stack.row(row);
  const Fp8Block block = read_block<Fp8>(*from.view, from.row, k / kGroup);
  const bool scale_fits = std::isfinite(block.scale * kGreatestE4m3);  // also for numbers times 2^8
  std::byte* to = tile + block_at(k / kFp8Block, layout.columns);
  std::memcpy(to + scale_at(column), &block.scale, sizeof(block.scale));
  for (int i = 0; i < kFp8Block; i += kPair) {
    for (int at = i; at < i + kPair; ++at) {
      if (!scale_fits || is_no_e4m3(block.bytes[at])) stack.note_bad(row, k + at);
    }
    std::memcpy(to + pair_at(i, layout.columns, column), block.bytes + i, kPair);
  }
}

Fp8::Parts unpack_fp8(const std::byte* tile, int64_t group, int tile_columns, int column) {
  const std::byte* from = tile + block_at(group / kGroupsOfBlock<Fp8>, tile_columns);
  const auto first = static_cast<int>(group % kGroupsOfBlock<Fp8>) * kGroup;
  Fp8::Parts parts;
  std::memcpy(parts.factors, from + scale_at(column), sizeof(parts.factors));
  for (int i = 0; i < kGroup; i += kPair) {
    std::memcpy(parts.codes + i, from + pair_at(first + i, tile_columns, column), kPair);
  }
  return parts;
}

}  // namespace pb::cpu
