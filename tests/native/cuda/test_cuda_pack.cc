// Weights as the CUDA backend packs them.
#include <cmath>
#include <limits>
#include <string>

#include "gemm_fixture.h"
#include "random_blocks.h"

namespace pb::test {
namespace {

TensorView view_of(const std::vector<float>& values, int rows, int cols) {
  return {"w", values.data(), DType::kF32, rows, cols, cols, 1};
}

std::vector<float> floats_of(const HostWeight& w) {
  std::vector<float> out(w.values.size() / sizeof(float));
  std::memcpy(out.data(), w.values.data(), w.values.size());
  return out;
}

TEST(rows_are_padded_with_zeros) {
  const std::vector<float> values = Numbers(1).floats(3 * 40);
  const HostWeight w = packed(values, 3, 40, DType::kF32);
  EXPECT_EQ(w.layout.k_padded, 64);
  EXPECT_EQ(w.layout.scale_bytes, size_t{0});
  const std::vector<float> out = floats_of(w);
  EXPECT_EQ(out.size(), size_t{3 * 64});
  for (int r = 0; r < 3; ++r) {
    for (int k = 0; k < 64; ++k) EXPECT_EQ(out[r * 64 + k], k < 40 ? values[r * 40 + k] : 0.0f);
  }
}

TEST(parts_are_stacked_and_rounded_to_bf16) {
  const std::vector<float> a = Numbers(2).floats(2 * 33);
  const std::vector<float> b = Numbers(3).floats(5 * 33);
  const std::vector<TensorView> parts = {view_of(a, 2, 33), view_of(b, 5, 33)};
  const HostWeight w = packed(parts, 7, 33, DType::kBF16);
  const auto* out = reinterpret_cast<const uint16_t*>(w.values.data());
  for (int r = 0; r < 7; ++r) {
    for (int k = 0; k < 64; ++k) {
      const float from = k >= 33 ? 0.0f : r < 2 ? a[r * 33 + k] : b[(r - 2) * 33 + k];
      EXPECT_EQ(out[r * 64 + k], f32_to_bf16(from));
    }
  }
}

TEST(super_blocks_are_rounded_to_the_dtype_asked_for) {
  constexpr int kRows = 3, kCols = 512;
  for (const DType blocks : kSuperBlockDTypes) {
    const RandomBlocks from(kRows, kCols, blocks, 4);
    const std::vector<float> values = from.values();
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
      const std::vector<TensorView> parts = {from.view()};
      const HostWeight made = packed(parts, kRows, kCols, dtype);
      const HostWeight expected = packed(values, kRows, kCols, dtype);
      EXPECT(made.values == expected.values);
      EXPECT(made.scales == expected.scales);
    }
  }
}

template <typename Group>
void expect_groups(DType dtype, const std::vector<Group>& groups, int rows, int cols,
                   const HostWeight& w) {
  constexpr size_t kBytes = sizeof(Group) - sizeof(uint16_t);
  const int n_groups = cols / kGroup;
  EXPECT_EQ(w.layout.scale_stride % 8, 0);
  EXPECT(w.layout.scale_stride >= n_groups && w.layout.dtype == dtype);
  for (int r = 0; r < rows; ++r) {
    for (int g = 0; g < w.layout.scale_stride; ++g) {
      const uint16_t scale = w.scales[size_t(r) * w.layout.scale_stride + g];
      EXPECT_EQ(scale, g < n_groups ? groups[r * n_groups + g].scale : uint16_t{0});
    }
    for (int g = 0; g < n_groups; ++g) {
      const auto* from = reinterpret_cast<const std::byte*>(&groups[r * n_groups + g]) + 2;
      EXPECT(std::memcmp(&w.values[(size_t(r) * n_groups + g) * kBytes], from, kBytes) == 0);
    }
  }
}

TEST(groups_of_a_file_are_taken_as_they_are) {
  constexpr int kRows = 5;
  constexpr int kCols = 96;
  std::vector<Int8Group> eight(kRows * kCols / kGroup);
  std::vector<Int4Group> four(eight.size());
  const std::vector<float> values = Numbers(4).floats(kRows * kCols);
  for (size_t i = 0; i < eight.size(); ++i) {
    eight[i] = quantise_int8(&values[i * kGroup]);
    four[i] = quantise_int4(&values[i * kGroup]);
  }
  const TensorView v8{"w", eight.data(), DType::kInt8, kRows, kCols, kCols, 1};
  const TensorView v4{"w", four.data(), DType::kInt4, kRows, kCols, kCols, 1};
  expect_groups(DType::kInt8, eight, kRows, kCols, packed({&v8, 1}, kRows, kCols, DType::kInt8));
  expect_groups(DType::kInt4, four, kRows, kCols, packed({&v4, 1}, kRows, kCols, DType::kInt4));
  // Other dtypes are quantised in the same way.
  expect_groups(DType::kInt8, eight, kRows, kCols, packed(values, kRows, kCols, DType::kInt8));
  expect_groups(DType::kInt4, four, kRows, kCols, packed(values, kRows, kCols, DType::kInt4));
}

TEST(numbers_that_do_not_fit_are_refused) {
  std::vector<float> values = Numbers(5).floats(4 * 70);
  values[2 * 70 + 69] = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
    EXPECT_THROWS(ErrorCode::kModelFormat, packed(values, 4, 70, dtype));
  }
  values[2 * 70 + 69] = 70000.0f;  // beyond f16, and so beyond a scale
  EXPECT_THROWS(ErrorCode::kModelFormat, packed(values, 4, 70, DType::kInt4));
  EXPECT_EQ(floats_of(packed(values, 4, 70, DType::kF32))[2 * 96 + 69], 70000.0f);
  Int8Group bad = quantise_int8(values.data());
  bad.scale = 0x7c00;  // infinite
  const TensorView view{"w", &bad, DType::kInt8, 1, kGroup, kGroup, 1};
  EXPECT_THROWS(ErrorCode::kModelFormat, packed({&view, 1}, 1, kGroup, DType::kInt8));
}

// What a function throws says.
template <typename Function>
std::string refusal(Function&& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT(error.code() == ErrorCode::kModelFormat);
    return error.what();
  }
  return "";
}

TEST(weights_are_as_large_as_in_a_file) {
  for (const DType dtype : kAllDTypes) {
    if (!is_quantised(dtype)) continue;
    if (cuda::native_dtype(dtype) != dtype) continue;  // becomes int8 or bf16
    const auto bytes_of = [&](int n_in) {
      const cuda::WeightLayout layout = cuda::weight_layout(24, n_in, dtype);
      return layout.value_bytes + layout.scale_bytes;
    };
    const auto in_file = [&](int n_in) {
      return size_t{24} * (n_in / block_elements(dtype)) * block_bytes(dtype);
    };
    // q3_k has 2 bytes of padding per super-block, because scales take whole 16 bytes per tile.
    const size_t padding = dtype == DType::kQ3K ? size_t{24} * 4096 / kSuperBlock * 2 : 0;
    EXPECT_EQ(bytes_of(4096), in_file(4096) + padding);
    for (int n_in = 256; n_in < 4096; n_in += 256) {  // at most 14 bytes pad a row
      const size_t most = in_file(n_in) + 24 * 14 + padding * static_cast<size_t>(n_in) / 4096;
      EXPECT(bytes_of(n_in) >= in_file(n_in) && bytes_of(n_in) <= most);
    }
  }
}

TEST(native_only_dtypes_take_no_others) {
  const std::vector<float> values = Numbers(6).floats(2 * 256);
  for (const DType dtype : kCudaNativeDTypes) {
    const NativeWeight native(3, 256, dtype, 7);
    const std::vector<TensorView> parts = {native.view(),
                                           {"plain", values.data(), DType::kF32, 2, 256, 256, 1}};
    const std::string said = refusal([&] { packed(parts, 5, 256, dtype); });
    EXPECT(said.find("tensor 'plain' is of f32") != std::string::npos);
    EXPECT(said.find(dtype_name(dtype)) != std::string::npos);
  }
}

TEST(int8_holds_narrower_groups) {
  for (const DType dtype : {DType::kQ5_0, DType::kIQ4_NL}) {
    RandomBlocks blocks(5, 96, dtype, 9);
    const std::vector<float> values = blocks.values();
    const TensorView view = blocks.view();
    std::vector<Int8Group> wide(values.size() / kGroup);
    for (size_t g = 0; g < wide.size(); ++g) {
      std::memcpy(&wide[g].scale, blocks.block(g), sizeof(uint16_t));
      for (int i = 0; i < kGroup; ++i) {
        wide[g].values[i] =
            static_cast<int8_t>(std::lround(values[g * kGroup + i] / f16_to_f32(wide[g].scale)));
      }
    }
    expect_groups(DType::kInt8, wide, 5, 96, packed({&view, 1}, 5, 96, DType::kInt8));
  }
}

TEST(scales_that_are_not_finite_are_refused_by_name) {
  constexpr uint16_t kBad[] = {0x7c00, 0xfc00, 0x7e00};  // both infinities and NaN
  for (const DType dtype : kCudaF16NativeDTypes) {
    for (const uint16_t bad : kBad) {
      RandomBlocks blocks(2, 512, dtype, 8);
      blocks.set_scale(blocks.n_blocks() - 1, bad);
      const auto pack = [&] {
        const TensorView view = blocks.view("bad");
        packed({&view, 1}, 2, 512, dtype);
      };
      EXPECT(refusal(pack).find("tensor 'bad' holds") == 0);
      EXPECT(refusal(pack).find("[1, ") != std::string::npos);
      if (!blocks.has_min()) continue;
      blocks.set_scale(blocks.n_blocks() - 1, 0);
      EXPECT_EQ(refusal(pack), std::string());
      blocks.set_min_scale(blocks.n_blocks() - 1, bad);
      EXPECT(refusal(pack).find("tensor 'bad' holds") == 0);
    }
  }
  RandomMxfp4 groups(2, 64, 9);
  groups.groups[3].scale = kMxfp4NoScale;
  const TensorView view = groups.view("bad");
  EXPECT(refusal([&] { packed({&view, 1}, 2, 64, DType::kMxfp4); }).find("tensor 'bad' holds") ==
         0);
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
