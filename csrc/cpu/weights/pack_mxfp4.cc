#include "cpu/weights/pack_mxfp4.h"

#include <algorithm>
#include <cstring>

namespace pb::cpu {
namespace {

// Exponents of mxfp4 up to this are those of finite numbers, whatever their codes are: 6 times
// 2^(252 - 127) is below 2^128.
constexpr uint8_t kGreatestScaleOfAny = 252;

constexpr int kQuad = 4;  // bytes of a column that lie together
constexpr int kQuads = kGroup / 2 / kQuad;

int64_t group_at(int64_t index, int tile_columns) {
  return index * tile_columns * static_cast<int64_t>(sizeof(Mxfp4Group));
}
int64_t quad_at(int j, int tile_columns, int column) {
  return tile_columns + (int64_t{j} * tile_columns + column) * kQuad;
}

}  // namespace

size_t mxfp4_tile_bytes(int n_in, int tile_columns) {
  return static_cast<size_t>(group_at((n_in + kGroup - 1) / kGroup, tile_columns));
}

void write_mxfp4_group(const Mxfp4Group& group, int64_t index, int tile_columns, int column,
                       std::byte* tile) {
  std::byte* to = tile + group_at(index, tile_columns);
  to[column] = std::byte{group.scale};
  for (int j = 0; j < kQuads; ++j) {
    std::memcpy(to + quad_at(j, tile_columns, column), group.pairs + j * kQuad, kQuad);
  }
}

void pack_mxfp4(Stack& stack, int64_t row, int64_t k, DType dtype, const TileLayout& layout,
                int column, std::byte* tile) {
  const Stack::Row from = stack.row(row);
  const int64_t end = std::min(stack.cols(), k + kReadBlock);
  for (int64_t g = k / kGroup; g * kGroup < end; ++g) {
    Mxfp4Group group;
    read_group(*from.view, from.row, g, group);
    if (group.scale > kGreatestScaleOfAny) {
      float values[kGroup];
      dequantise(group, values);
      stack.note_bad(row, g * kGroup, kGroup, dtype, values);
    }
    write_mxfp4_group(group, g, layout.columns, column, tile);
  }
}

Mxfp4Group read_mxfp4_group(const std::byte* tile, int64_t index, int tile_columns, int column) {
  const std::byte* from = tile + group_at(index, tile_columns);
  Mxfp4Group group;
  group.scale = static_cast<uint8_t>(from[column]);
  for (int j = 0; j < kQuads; ++j) {
    std::memcpy(group.pairs + j * kQuad, from + quad_at(j, tile_columns, column), kQuad);
  }
  return group;
}

}  // namespace pb::cpu
