#include "tensor_map.h"

#include <algorithm>

#include "emulator.h"

namespace cuda_on_cpu {

BulkCopy::BulkCopy(void* tile, const void* map, int column, int row)
    : tile_(static_cast<unsigned char*>(tile)),
      map_(static_cast<const EmulatedTensorMap*>(map)),
      column_(column),
      row_(row) {
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0) fail("a tensor map that is not on 64 bytes");
  if (map_->magic != EmulatedTensorMap::kMagic || map_->sum != map_->checksum()) {
    fail("a tensor map that the driver has not made");
  }
  if (shared_offset(tile) % 128 != 0) fail("cp.async.bulk.tensor: a tile that is not on 128 bytes");
}

BulkSource BulkCopy::source(unsigned row, unsigned byte) const {
  const int64_t r = row_ + row;
  const int64_t b = column_ * map_->element + byte;
  const auto n_bytes = static_cast<int64_t>(map_->dims[0] * map_->element);
  if (r < 0 || r >= static_cast<int64_t>(map_->dims[1]) || b >= n_bytes) return {nullptr, 0};
  if (b < 0) fail("cp.async.bulk.tensor: from before the first column: not modelled");
  return {map_->data + static_cast<uint64_t>(r) * map_->row_stride + b,
          static_cast<unsigned>(std::min<int64_t>(16, n_bytes - b))};
}

unsigned char* BulkCopy::target(unsigned row, unsigned byte) const {
  const uint64_t at = shared_offset(tile_) + uint64_t{row} * row_bytes() + byte;
  const uint64_t span = map_->swizzle;
  const uint64_t mask = span == 0 ? 0 : span / 16 - 1;  // of bits 4..
  return tile_ + ((at ^ (at >> 7 & mask) << 4) - shared_offset(tile_));
}

}  // namespace cuda_on_cpu
