// Rows of a weight by index, as CUDA reads them: the exact numbers that the weight holds.
#include <cmath>

#include "cuda/kernels/embed.cuh"
#include "gemm_fixture.h"

namespace pb::test {
namespace {

// numbers (n_out, n_in) as a table of `dtype` holds them.
std::vector<float> held(const std::vector<float>& numbers, int n_in, DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kBF16) return rounded(numbers, n_in, dtype);
  std::vector<float> out = numbers;
  for (size_t row = 0; row < out.size(); row += n_in) {
    for (int k = 0; k < n_in; k += kGroup) {
      float group[kGroup] = {};
      const int n = std::min(kGroup, n_in - k);
      std::copy_n(&numbers[row + k], n, group);
      dtype == DType::kInt8 ? dequantise(quantise_int8(group), group)
                            : dequantise(quantise_int4(group), group);
      std::copy_n(group, n, &out[row + k]);
    }
  }
  return out;
}

TEST(rows_are_looked_up_and_added) {
  constexpr int kRows = 19;
  const std::vector<int32_t> ids = {3, 0, 18, 3, 7};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
    for (const int n_in : {8, 100, 300, 576}) {
      const std::vector<float> numbers = Numbers(n_in).floats(size_t{kRows} * n_in);
      const std::vector<float> table = held(numbers, n_in, dtype);
      const HostWeight host = packed(numbers, kRows, n_in, dtype);
      const DeviceWeight weight(host);
      const DeviceArray<int32_t> on_device(ids);
      const std::vector<float> before = Numbers(1).floats(ids.size() * n_in);
      DeviceArray<float> x(before);
      DeviceArray<float> added(before);
      set_order(n_in);
      const int n = static_cast<int>(ids.size());
      Product::launch_one(
          gather_launch(host.layout, weight.pointers(), on_device.get(), n, x.get(), Store::kSet));
      Product::launch_one(gather_launch(host.layout, weight.pointers(), on_device.get(), n,
                                        added.get(), Store::kAdd));
      const std::vector<float> set = x.host();
      const std::vector<float> sum = added.host();
      for (size_t i = 0; i < set.size(); ++i) {
        const float expected = table[size_t(ids[i / n_in]) * n_in + i % n_in];
        EXPECT_EQ(set[i], expected);
        EXPECT_EQ(sum[i], before[i] + expected);
      }
    }
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
