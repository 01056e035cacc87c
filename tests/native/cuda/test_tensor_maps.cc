// Tensor maps: what the driver refuses, and what a copy by one leaves in shared memory.
#include <cmath>
#include <functional>
#include <vector>

#include "cuda/device_code/tma.h"
#include "cuda_fixture.h"

namespace pb::cuda {
namespace {

struct CopyTileParams {
  TensorMap map;
  int column;
  int row;
  int n_numbers;    // of a box
  uint16_t* early;  // (n_numbers): the tile before it is waited for, and as it then is
  uint16_t* tile;
};

PB_KERNEL(copy_tile, CopyTileParams, 32) {
#ifdef PB_HAS_WGMMA
  SharedArrays arrays;
  auto* const tile = arrays.take<uint16_t>(static_cast<size_t>(p.n_numbers), kWgmmaAlignment);
  uint64_t* const barrier = arrays.take<uint64_t>(1, 8);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_for_async_proxy();
    mbarrier_arrive_expect(barrier, static_cast<unsigned>(p.n_numbers) * 2);
    tma_copy(tile, p.map, p.column, p.row, barrier);
    for (int i = 0; i < p.n_numbers; ++i) p.early[i] = tile[i];
  }
  __syncthreads();
  mbarrier_wait(barrier, 0);
  for (int i = static_cast<int>(threadIdx.x); i < p.n_numbers; i += 32) p.tile[i] = tile[i];
#endif
}

}  // namespace
}  // namespace pb::cuda

namespace pb::test {
namespace {

constexpr int kRows = 20;
constexpr int kColumns = 72;
constexpr int kBoxRows = 16;

// (kRows, kColumns): 100 row + column.
std::vector<uint16_t> numbers() {
  std::vector<uint16_t> all;
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      all.push_back(static_cast<uint16_t>(100 * row + column));
    }
  }
  return all;
}

TEST(a_tile_is_swizzled_and_zero_outside_of_the_matrix) {
  const DeviceArray<uint16_t> matrix(numbers());
  const size_t n = kBoxRows * 64;
  for (const auto& [column, row] : {std::pair(0, 0), {0, 3}, {64, 10}, {16, 19}, {128, 0}}) {
    DeviceArray<uint16_t> early(n);
    DeviceArray<uint16_t> tile(n);
    const auto map = test_device().make_tensor_map({matrix.get(), kRows, kColumns, kBoxRows});
    EXPECT(map.has_value());
    launch("copy_tile", dim3(1), dim3(32), 2 * n + 8,
           cuda::CopyTileParams{*map, column, row, static_cast<int>(n), early.get(), tile.get()});
    const std::vector<uint16_t> before = early.host();
    const std::vector<uint16_t> copied = tile.host();
    for (int r = 0; r < kBoxRows; ++r) {
      for (int c = 0; c < 64; ++c) {
        const bool is_there = row + r < kRows && column + c < kColumns;
        const auto at = static_cast<size_t>(r * 64 + ((c / 8) ^ (r & 7)) * 8 + c % 8);
        EXPECT_EQ(copied[at], is_there ? 100 * (row + r) + column + c : 0);
        EXPECT_EQ(before[at], 0xffff);  // NaN until it is waited for
      }
    }
  }
}

// What cuTensorMapEncodeTiled is given.
struct Asked {
  int type = cuda::kTensorBf16;
  unsigned rank = 2;
  uintptr_t address = 1 << 20;
  uint64_t sizes[2] = {72, 20};
  uint64_t stride = 144;
  unsigned box[2] = {64, 128};
  unsigned steps[2] = {1, 1};
  int interleave = 0;
  int swizzle = cuda::kTensorSwizzle128;
  int outside = 0;

  cuda::Result encode(cuda::TensorMap* map) const {
    return cuda_on_cpu::emulated_driver().encode_tensor_map.call(
        map, type, rank, reinterpret_cast<void*>(address), &sizes[0], &stride, &box[0], &steps[0],
        interleave, swizzle, cuda::kTensorPromotionTo128, outside);
  }
};

TEST(the_driver_refuses_what_the_hardware_cannot_copy) {
  test_device().finish();  // there is a context
  cuda::TensorMap maps[2];
  EXPECT_EQ(Asked{}.encode(&maps[0]), cuda::kSuccess);
  const std::vector<std::function<void(Asked&)>> kWrong = {
      [](Asked& a) { a.type = 99; },
      [](Asked& a) { a.rank = 0; },
      [](Asked& a) { a.rank = 6; },
      [](Asked& a) { a.address += 8; },
      [](Asked& a) { a.address = 0; },
      [](Asked& a) { a.sizes[0] = 0; },
      [](Asked& a) { a.sizes[1] = (uint64_t{1} << 32) + 1; },
      [](Asked& a) { a.stride = 152; },
      [](Asked& a) { a.stride = 128; },
      [](Asked& a) { a.stride = uint64_t{1} << 40; },
      [](Asked& a) { a.box[0] = 72; },
      [](Asked& a) { a.box[0] = 12; },
      [](Asked& a) { a.box[1] = 0; },
      [](Asked& a) { a.box[1] = 257; },
      [](Asked& a) { a.steps[1] = 0; },
      [](Asked& a) { a.steps[0] = 9; },
      [](Asked& a) { a.swizzle = 2; },
      [](Asked& a) { a.swizzle = 4; },
      [](Asked& a) { a.outside = 2; },
  };
  for (size_t i = 0; i < kWrong.size(); ++i) {
    Asked asked;
    kWrong[i](asked);
    if (asked.encode(&maps[0]) != cuda::kErrorInvalidValue) {
      fail(__FILE__, __LINE__, "not refused: number " + std::to_string(i));
    }
  }
  auto* const beside = reinterpret_cast<cuda::TensorMap*>(maps[0].opaque + 32);
  EXPECT_EQ(Asked{}.encode(beside), cuda::kErrorInvalidValue);
}

TEST(a_driver_may_have_no_tensor_maps) {
  cuda::DriverApi old = cuda_on_cpu::emulated_driver();
  old.encode_tensor_map.call = nullptr;
  cuda::Device device(old);
  const cuda::DeviceMemory memory = device.allocate(4096);
  EXPECT(!device.make_tensor_map({memory.as(), 8, 64, 8}).has_value());
  const cuda::TiledMatrix too_high{memory.as(), 8, 64, 300};
  EXPECT(!test_device().make_tensor_map(too_high).has_value());
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
