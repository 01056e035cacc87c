// Rows whose numbers are put into another order, on the emulator.
#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/rows/rows_launch.h"
#include "cuda_fixture.h"

namespace pb::test {
namespace {

constexpr int kRows = 3;
constexpr uint64_t kOrders = 5;

int64_t padded(int cols) { return (cols + 15) / 16 * 16; }

template <typename T>
std::vector<T> permuted(DType dtype, int n_rows, const std::vector<float>& x, int cols,
                        const std::vector<int32_t>& order) {
  const DeviceArray<float> from(x);
  const DeviceArray<int32_t> lies(order);
  DeviceArray<T> out(static_cast<size_t>(n_rows * padded(cols)));
  const auto l = cuda::permute_launch(dtype, n_rows,
                                      {.x = from.get(),
                                       .x_stride = padded(cols),
                                       .order = lies.get(),
                                       .cols = cols,
                                       .out = out.get(),
                                       .row_stride = padded(cols)});
  launch(l.kernel, dim3(l.grid.x, l.grid.y, l.grid.z), dim3(l.threads), l.shared_bytes, l.params);
  return out.host();
}

TEST(permuted_rows_and_their_padding) {
  for (const int cols : {1, 16, 300, 1000}) {
    const auto stride = static_cast<size_t>(padded(cols));
    const std::vector<float> x = Numbers(12).floats(kRows * stride);
    std::vector<int32_t> order(static_cast<size_t>(cols));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, std::mt19937(5));
    for (uint64_t seed = 0; seed < n_orders(kOrders); ++seed) {
      set_order(seed);
      const auto plain = permuted<float>(DType::kF32, kRows, x, cols, order);
      const auto narrow = permuted<uint16_t>(DType::kBF16, kRows, x, cols, order);
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t i = 0; i < stride; ++i) {
          const bool inside = i < order.size();
          const float e = inside ? x[r * stride + static_cast<size_t>(order[i])] : 0.0f;
          EXPECT_EQ(plain[r * stride + i], e);
          EXPECT_EQ(narrow[r * stride + i], __float2bfloat16_rn(e).bits);
        }
      }
    }
  }
}

TEST(a_permuted_row_is_the_same_alone) {
  const std::vector<float> x = Numbers(13).floats(size_t{kRows} * 48);
  std::vector<int32_t> order(48);
  std::iota(order.rbegin(), order.rend(), 0);
  const auto all = permuted<float>(DType::kF32, kRows, x, 48, order);
  const auto one = permuted<float>(DType::kF32, 1, x, 48, order);
  EXPECT(std::equal(one.begin(), one.end(), all.begin()));
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
