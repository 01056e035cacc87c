// Tensor maps of the emulated driver, and copies of boxes by them.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace cuda_on_cpu {

// What lies in the 128 bytes of a TensorMap.
struct EmulatedTensorMap {
  static constexpr uint64_t kMagic = 0x70616d20726f7465;

  uint64_t magic;
  const unsigned char* data;
  uint64_t dims[2];     // in elements, the innermost first
  uint64_t row_stride;  // bytes
  uint32_t box[2];      // in elements
  uint32_t element;     // bytes
  uint32_t swizzle;     // span in bytes: 0, 32, 64 or 128
  uint64_t sum;         // of all the others
  uint64_t checksum() const {
    const auto address = reinterpret_cast<uint64_t>(data);
    uint64_t mixed = magic;
    for (const uint64_t v : {address, dims[0], dims[1], row_stride, uint64_t{box[0]},
                             uint64_t{box[1]}, uint64_t{element}, uint64_t{swizzle}}) {
      mixed = (mixed ^ v) * 0x9e3779b97f4a7c15u;
    }
    return mixed;
  }
};
static_assert(sizeof(EmulatedTensorMap) <= 128);

// Bytes in global memory, up to 16; where there are fewer, the rest is outside of the matrix.
struct BulkSource {
  const unsigned char* at;
  unsigned bytes;
};

// A copy of one box. What it copies is done by the wrapper in tma.h.
class BulkCopy {
 public:
  BulkCopy() = default;
  // Fails where the map is none, or the tile does not lie as it has to.
  BulkCopy(void* tile, const void* map, int column, int row);

  unsigned n_rows() const { return map_->box[1]; }
  unsigned row_bytes() const { return map_->box[0] * map_->element; }
  unsigned bytes() const { return n_rows() * row_bytes(); }

  // 16 bytes of a row of the box, from `byte` on.
  BulkSource source(unsigned row, unsigned byte) const;
  // Where they go to: bits 4.. of the address are changed by bits 7.., as many as the span has.
  unsigned char* target(unsigned row, unsigned byte) const;

 private:
  unsigned char* tile_ = nullptr;
  const EmulatedTensorMap* map_ = nullptr;
  int64_t column_ = 0;
  int64_t row_ = 0;
};

}  // namespace cuda_on_cpu
