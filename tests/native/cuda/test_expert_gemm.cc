// CUDA's matrix products of mixtures of experts: the bits of each expert's plain product with its
// own rows, from every kernel.
#include "expert_fixture.h"

namespace pb::test {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, PB_CUDA_DTYPES};
constexpr cuda::GemmDevice kHopper{.n_sms = 1, .has_wgmma = true};

// Rows of experts: none, one, fewer than a tile has and more.
const std::vector<int> kRows = {3, 0, 41, 1, 0, 9};

// Those for tiles of one number of rows; of f32 all tiles are alike.
std::vector<int> tile_rows_of(const GemmKernel& kernel) {
  if (kernel.weights != DType::kF32) return {kernel.rows};
  return cases({8, 64, 128, 32});
}

void expect_products(const ExpertProducts& products, DType dtype) {
  const std::vector<float> expected = products.expected();
  for (const GemmKernel& kernel : cuda::expert_kernels(dtype, kHopper)) {
    for (const int rows : tile_rows_of(kernel)) {
      if (!same_bits(products.run(kernel, rows), expected)) {
        fail(__FILE__, __LINE__, std::string(kernel.name) + " of " + std::to_string(rows));
      }
    }
  }
}

TEST(every_kernel_gives_each_expert_the_promised_bits) {
  uint32_t seed = 0;
  for (const DType dtype : kDTypes) {
    for (const int n_out : cases({37, 70})) {
      ++seed;
      set_order(seed);
      expect_products({kRows, n_out, 72, dtype, true, seed}, dtype);
    }
  }
}

TEST(experts_may_have_no_bias) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    expect_products({kRows, 20, 40, dtype, false, 20}, dtype);
  }
}

TEST(segments_are_added_in_order) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kMxfp4}) {
    set_order(3);
    expect_products({{2, 0, 5}, 18, 2112, dtype, true, 21}, dtype);
  }
}

TEST(an_expert_may_have_more_rows_than_a_tile) {
  set_order(4);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt4}) {
    expect_products({{1, 150, 3}, 21, 40, dtype, true, 22}, dtype);
  }
}

TEST(the_order_of_threads_does_not_matter) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kQ6K}) {
    const ExpertProducts products({5, 0, 33}, 34, 40, dtype, true, 23);
    for (uint64_t seed = 1; seed <= orders() / 2; ++seed) {
      set_order(seed);
      expect_products(products, dtype);
    }
  }
}

TEST(tiles_are_about_as_high_as_experts_have_rows) {
  const auto rows = [](int n_rows, int n_experts, int k, bool has_wgmma = false) {
    return cuda::expert_tile_rows({n_rows, n_experts, k}, {.n_sms = 1, .has_wgmma = has_wgmma});
  };
  EXPECT_EQ(rows(1, 128, 8), 8);
  EXPECT_EQ(rows(64, 128, 8), 8);
  EXPECT_EQ(rows(65, 128, 8), 32);
  EXPECT_EQ(rows(256, 128, 8), 32);
  EXPECT_EQ(rows(512, 128, 8, true), 64);
  EXPECT_EQ(rows(513, 128, 8), 64);
  EXPECT_EQ(rows(513, 128, 8, true), 128);
  EXPECT_EQ(rows(1, 1, 1), 8);
}

TEST(there_are_never_more_tiles_than_blocks) {
  uint32_t state = 1;
  for (const int tile_rows : {8, 32, 64, 128}) {
    for (int n_experts = 1; n_experts < 40; n_experts += 3) {
      for (int n_pairs = 1; n_pairs < 300; n_pairs += 7) {
        std::vector<int32_t> counts(n_experts + 1, 0), begins(n_experts + 1, 0);
        for (int i = 0; i < n_pairs; ++i) {
          state = state * 1664525u + 1013904223u;
          ++counts[(state >> 16) % n_experts + 1];
        }
        for (int e = 0; e < n_experts; ++e) begins[e + 1] = begins[e] + counts[e + 1];
        const auto n_tiles = static_cast<int>(tiles_of(begins, tile_rows).size());
        EXPECT(n_tiles <= cuda::most_expert_tiles({n_pairs, n_experts, 1}, tile_rows));
      }
    }
  }
  // Each of 3 experts with one pair more than whole tiles.
  EXPECT_EQ(cuda::most_expert_tiles({3 * 9, 3, 1}, 8), 6);
}

TEST(narrow_tiles_are_for_gpus_that_would_stand_idle) {
  const auto columns = [](int n_rows, int n_out, int n_sms) {
    return cuda::choose_expert_kernel({n_rows, 128, 8}, n_out, DType::kInt8, {.n_sms = n_sms})
        .columns;
  };
  EXPECT_EQ(columns(1, 1024, 1), 64);
  EXPECT_EQ(columns(1, 1024, 64), 64);
  EXPECT_EQ(columns(1, 1024, 65), 32);
  EXPECT_EQ(columns(1, 1024, 129), 16);
  EXPECT_EQ(columns(1, 16, 1000), 16);
  EXPECT_EQ(columns(4096, 16, 1000), 64);
}

TEST(wgmma_is_for_the_largest_tiles_of_gpus_that_have_it) {
  const auto name = [](int n_rows, DType dtype, bool has_wgmma) -> std::string {
    return cuda::choose_expert_kernel({n_rows, 8, 2}, 4096, dtype,
                                      {.n_sms = 1, .has_wgmma = has_wgmma})
        .name;
  };
  EXPECT_EQ(name(512, DType::kInt8, true), "experts_int8_wgmma");
  EXPECT_EQ(name(512, DType::kInt8, false), "experts_int8_64x64");
  EXPECT_EQ(name(32, DType::kInt8, true), "experts_int8_few32");
  EXPECT_EQ(name(512, DType::kF32, true), "experts_f32");
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
