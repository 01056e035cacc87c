// What layers of unlike shapes need row by row: sums that are scaled, and activations times a part
// of other rows.
#include <cmath>
#include <vector>

#include "cuda/rows/rows_launch.h"
#include "cuda_fixture.h"

namespace pb::test {
namespace {

template <typename Params>
void run(const cuda::Launch<Params>& l) {
  launch(l.kernel, dim3(l.grid.x, l.grid.y, l.grid.z), dim3(l.threads), l.shared_bytes, l.params);
}

// x + norm(y), times the scale; of 3 rows.
std::vector<float> added(const std::vector<float>& x, const std::vector<float>& y,
                         const std::vector<float>& weight, float scale) {
  const auto hidden = static_cast<int>(weight.size());
  const DeviceArray<float> from(y), factors(weight);
  DeviceArray<float> out(x);
  run(cuda::norm_rows_launch(3, {.y = from.get(),
                                 .y_stride = hidden,
                                 .weight = factors.get(),
                                 .hidden = hidden,
                                 .eps = 1e-5f,
                                 .out = out.get(),
                                 .out_stride = hidden,
                                 .adds = 1,
                                 .scale = scale}));
  return out.host();
}

TEST(sums_are_scaled_after_they_are_made) {
  set_order(1);
  for (const int hidden : {1, 10, 257, 1000}) {
    const auto n = static_cast<size_t>(3 * hidden);
    const std::vector<float> x = Numbers(1).floats(n), y = Numbers(2).floats(n, 3.0f);
    const std::vector<float> weight = Numbers(3).floats(static_cast<size_t>(hidden));
    const std::vector<float> plain = added(x, y, weight, 1.0f);
    EXPECT(plain != x);
    for (const float scale : {0.7f, -2.0f, 0.0f}) {
      const std::vector<float> scaled = added(x, y, weight, scale);
      for (size_t i = 0; i < n; ++i) EXPECT_EQ(scaled[i], plain[i] * scale);
    }
  }
}

// One is a kernel of its own: models without scales have no product more.
TEST(what_is_not_scaled_has_its_own_kernel) {
  EXPECT_EQ(std::string(cuda::norm_rows_launch(1, {.scale = 1.0f}).kernel), "rms_norm_rows");
  EXPECT_EQ(std::string(cuda::norm_rows_launch(1, {}).kernel), "rms_norm_rows");
  EXPECT_EQ(std::string(cuda::norm_rows_launch(1, {.scale = 0.5f}).kernel), "rms_norm_rows_scaled");
}

TEST(activations_are_multiplied_by_a_part_of_other_rows) {
  set_order(2);
  constexpr int kRows = 3;
  constexpr int kFactors = 61;
  for (const int cols : {1, 10, 50}) {
    for (const int first : {0, 7}) {
      const int64_t stride = (cols + 15) / 16 * 16;
      const std::vector<float> gate = Numbers(4).floats(static_cast<size_t>(kRows * cols), 2.0f);
      const std::vector<float> factors = Numbers(5).floats(size_t{kRows} * kFactors);
      const DeviceArray<float> gates(gate), others(factors);
      DeviceArray<float> out(static_cast<size_t>(kRows * stride));
      run(cuda::activate_launch(Activation::kGeluTanh, DType::kF32, kRows,
                                {.gate = gates.get(),
                                 .gate_stride = cols,
                                 .up = others.get() + first,
                                 .up_stride = kFactors,
                                 .cols = cols,
                                 .out = out.get(),
                                 .row_stride = stride}));
      const std::vector<float> made = out.host();
      for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < stride; ++i) {
          const float found = made[static_cast<size_t>(r * stride + i)];
          if (i >= cols) {
            EXPECT_EQ(found, 0.0f);
            continue;
          }
          const double x = gate[static_cast<size_t>(r * cols + i)];
          const double act =
              x / (1.0 + std::exp(-2.0 * std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
          const double expected = act * factors[static_cast<size_t>(r * kFactors + first + i)];
          EXPECT(std::abs(found - expected) <= 1e-6 * (std::abs(expected) + 0.1));
        }
      }
    }
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
