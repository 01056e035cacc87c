// The emulated driver's tensor maps: refuses what cuda.h says that the driver refuses.
#include <cstring>

#include "emulated_state.h"
#include "tensor_map.h"

namespace cuda_on_cpu {
namespace {

using namespace pb::cuda;

constexpr unsigned kMostRank = 5;
constexpr unsigned kMostBox = 256;
constexpr uint64_t kMostSize = uint64_t{1} << 32;
constexpr uint64_t kMostStride = uint64_t{1} << 40;

// Bytes of a number of CU_TENSOR_MAP_DATA_TYPE_*; 0: none.
unsigned element_bytes(int type) {
  constexpr unsigned kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
  return type >= 0 && type < 10 ? kBytes[type] : 0;
}

// Bytes that a swizzle moves 16 bytes within; the most that a box's row may have.
unsigned swizzle_span(int swizzle) { return swizzle == 0 ? 0 : 16U << swizzle; }

Result encode_tensor_map(TensorMap* map, int type, unsigned rank, void* data, const uint64_t* sizes,
                         const uint64_t* strides, const unsigned* box, const unsigned* steps,
                         int interleave, int swizzle, int promotion, int outside) {
  CUDA_ON_CPU_ENTER("cuTensorMapEncodeTiled");
  const unsigned element = element_bytes(type);
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0 || element == 0 || rank == 0 || rank > kMostRank ||
      data == nullptr || address % 16 != 0 || swizzle < 0 || swizzle > 3 || promotion < 0 ||
      promotion > 3 || outside < 0 || outside > 1) {
    return kErrorInvalidValue;
  }
  for (unsigned i = 0; i < rank; ++i) {
    if (sizes[i] == 0 || sizes[i] > kMostSize || box[i] == 0 || box[i] > kMostBox ||
        steps[i] == 0 || steps[i] > 8) {
      return kErrorInvalidValue;
    }
  }
  uint64_t least_stride = sizes[0] * element;
  for (unsigned i = 0; i + 1 < rank; ++i) {
    if (strides[i] % 16 != 0 || strides[i] >= kMostStride || strides[i] < least_stride) {
      return kErrorInvalidValue;
    }
    least_stride = strides[i] * sizes[i + 1];
  }
  const unsigned row_bytes = box[0] * element;
  if (row_bytes % 16 != 0 || (swizzle != 0 && row_bytes > swizzle_span(swizzle))) {
    return kErrorInvalidValue;
  }
  // The rest is allowed, and not modelled.
  if (rank != 2 || interleave != 0 || outside != 0 || steps[0] != 1 || steps[1] != 1) {
    return kErrorInvalidValue;
  }
  EmulatedTensorMap made{.magic = EmulatedTensorMap::kMagic,
                         .data = static_cast<const unsigned char*>(data),
                         .dims = {sizes[0], sizes[1]},
                         .row_stride = strides[0],
                         .box = {box[0], box[1]},
                         .element = element,
                         .swizzle = swizzle_span(swizzle),
                         .sum = 0};
  made.sum = made.checksum();
  std::memset(map->opaque, 0, sizeof map->opaque);
  std::memcpy(map->opaque, &made, sizeof made);
  return kSuccess;
}

}  // namespace

void add_tensor_map_functions(DriverApi& table) {
  table.encode_tensor_map.call = encode_tensor_map;
}

}  // namespace cuda_on_cpu
