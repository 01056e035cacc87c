// Rows of a weight by index, as CUDA reads them: the exact numbers that the weight holds.
#include <cmath>

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

struct Table {
  std::vector<float> numbers;  // that it holds
  HostWeight host;
};

Table table_of(int n_rows, int n_in, DType dtype) {
  if (is_native_only(dtype)) {
    const NativeWeight native(n_rows, n_in, dtype, static_cast<uint64_t>(n_in));
    const TensorView view = native.view();
    return {native.values(), packed({&view, 1}, n_rows, n_in, dtype)};
  }
  const std::vector<float> numbers = Numbers(n_in).floats(size_t(n_rows) * n_in);
  return {held(numbers, n_in, dtype), packed(numbers, n_rows, n_in, dtype)};
}

TEST(rows_are_looked_up_and_added) {
  constexpr int kRows = 19;
  const std::vector<int32_t> ids = {3, 0, 18, 3, 7};
  for (const DType dtype : kAllDTypes) {
    if (cuda::native_dtype(dtype) != dtype) continue;  // becomes int8 or bf16
    const bool is_plain = !is_native_only(dtype);
    for (const int n_in : is_plain                 ? std::vector{8, 100, 300, 576}
                          : in_super_blocks(dtype) ? std::vector{256, 2304}
                                                   : std::vector{32, 96, 832}) {
      const auto [table, host] = table_of(kRows, n_in, dtype);
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
