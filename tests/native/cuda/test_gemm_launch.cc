// How matrix products are launched: which kernel, how it is cut, how much scratch it needs.
#include <cstring>
#include <string>

#include "check.h"
#include "cuda/gemm/gemm_launch.h"

namespace pb::cuda {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4, DType::kInt4Zp,
                             DType::kQ4K, DType::kQ5K,  DType::kQ6K,  DType::kMxfp4};
constexpr GemmDevice kDevice{132};

TEST(tiles_hold_the_rows_and_no_more_than_they_must) {
  for (const DType dtype : kDTypes) {
    if (dtype == DType::kF32) continue;
    for (int n_rows = 1; n_rows <= 32; ++n_rows) {
      const GemmChoice choice = choose_gemm({n_rows, 4096, 4096, dtype}, kDevice);
      EXPECT_EQ(choice.kernel->rows, n_rows <= 8 ? 8 : n_rows <= 16 ? 16 : 32);
    }
    EXPECT_EQ(choose_gemm({33, 4096, 4096, dtype}, kDevice).kernel->rows, 64);
    EXPECT_EQ(choose_gemm({4096, 4096, 4096, dtype}, kDevice).kernel->rows, 128);
  }
}

TEST(k_is_split_where_columns_do_not_fill_the_gpu) {
  const auto splits_k = [](int n_rows, int n_out, int n_in, DType dtype) {
    return choose_gemm({n_rows, n_out, n_in, dtype}, kDevice).splits_k;
  };
  for (const int n_rows : {1, 16, 32}) {
    EXPECT(!splits_k(n_rows, 131072, 4096, DType::kBF16));
    EXPECT(!splits_k(n_rows, 28672, 4096, DType::kBF16));
    EXPECT(splits_k(n_rows, 6144, 4096, DType::kBF16));
    EXPECT(!splits_k(n_rows, 6144, 2048, DType::kBF16));  // there is one segment
    // What expands weights has fewer tiles, wide ones.
    EXPECT(!splits_k(n_rows, 131072, 4096, DType::kInt8));
    EXPECT(splits_k(n_rows, 28672, 4096, DType::kInt8));
    EXPECT(!splits_k(n_rows, 28672, 2048, DType::kInt8));
  }
  EXPECT(splits_k(1, 1024, 14336, DType::kBF16));
  EXPECT(!splits_k(1, 1024, 2048, DType::kBF16));
  EXPECT(splits_k(1, 6144, 4096, DType::kInt8));
  EXPECT(!splits_k(1, 6144, 2048, DType::kInt8));
}

// As an H100 is fastest; narrower where the multiprocessors would not have a tile each.
TEST(tiles_of_few_rows_are_as_wide_as_the_rows_and_the_weights_want) {
  const auto columns = [](int n_rows, int n_out, int n_in, DType dtype) {
    return choose_gemm({n_rows, n_out, n_in, dtype}, kDevice).kernel->columns;
  };
  for (const int n_out : {4096, 6144, 28672, 131072}) {
    EXPECT_EQ(columns(1, n_out, 4096, DType::kBF16), 16);
    EXPECT_EQ(columns(9, n_out, 4096, DType::kBF16), 32);
    EXPECT_EQ(columns(32, n_out, 4096, DType::kBF16), 64);
    for (const int n_rows : {1, 9, 32}) EXPECT_EQ(columns(n_rows, n_out, 4096, DType::kInt4), 64);
  }
  EXPECT_EQ(columns(32, 3072, 2048, DType::kBF16), 32);  // 96 tiles for 132 multiprocessors
  EXPECT_EQ(columns(32, 512, 2048, DType::kBF16), 16);
  EXPECT_EQ(columns(1, 512, 2048, DType::kQ4K), 16);
}

TEST(wgmma_is_taken_for_many_rows_where_it_is_there) {
  constexpr GemmDevice kHopper{132, true};
  const auto name = [](const GemmSizes& sizes, const GemmDevice& device) {
    return std::string(choose_gemm(sizes, device).kernel->name);
  };
  EXPECT_EQ(name({2048, 4096, 4096, DType::kBF16}, kHopper), "gemm_bf16_wgmma");
  EXPECT_EQ(name({2048, 4096, 4096, DType::kInt8}, kHopper), "gemm_int8_wgmma");
  EXPECT_EQ(name({2048, 4096, 4096, DType::kInt4}, kHopper), "gemm_int4_wgmma");
  EXPECT_EQ(name({2048, 4096, 4096, DType::kF32}, kHopper), "gemm_f32");
  EXPECT_EQ(name({2048, 4096, 4096, DType::kBF16}, kDevice), "gemm_bf16_128x128");
  EXPECT_EQ(name({512, 4096, 4096, DType::kBF16}, kHopper), "gemm_bf16_wgmma");  // 128 tiles
  EXPECT_EQ(name({128, 4096, 4096, DType::kBF16}, kHopper), "gemm_bf16_64x64");
  EXPECT_EQ(name({8, 151936, 4096, DType::kBF16}, kHopper), "gemm_bf16_few8");
}

TEST(maps_are_taken_where_the_gpu_has_them) {
  constexpr GemmDevice kHopper{.n_sms = 132, .has_wgmma = true, .has_tma = true};
  for (const DType dtype : kDTypes) {
    const GemmSizes sizes{256, 8192, 4096, dtype};
    const GemmChoice choice = choose_gemm(sizes, kHopper);
    EXPECT_EQ(choice.kernel->has_maps, dtype != DType::kF32);
    if (dtype == DType::kF32) continue;
    EXPECT_EQ(choice.kernel, &tma_kernel(dtype));
    EXPECT(choice.kernel->shared_bytes <= kMostSharedBytesOfHopper);
    EXPECT(!choose_gemm({128, 4096, 4096, dtype}, kHopper).kernel->has_maps);
    // A map is of the rows of the pass, and of k as the weight is padded.
    const int x = 0;
    const GemmTiles tiles = gemm_tiles(
        {70, 100, 40, dtype},
        {.x = &x, .x_stride = 48, .w = {.values = &x}, .y = nullptr, .scratch = nullptr});
    EXPECT(tiles.x.data == &x && tiles.x.n_rows == 70 && tiles.x.n_columns == 48);
    EXPECT_EQ(tiles.w.data == nullptr, dtype != DType::kBF16);
    EXPECT(tiles.w.n_rows == 100 && tiles.w.n_columns == 64);
  }
}

TEST(k_is_split_for_wgmma_where_tiles_are_few) {
  constexpr GemmDevice kHopper{.n_sms = 132, .has_wgmma = true, .has_tma = true};
  const GemmChoice split = choose_gemm({256, 4096, 14336, DType::kBF16}, kHopper);
  EXPECT(split.kernel == &tma_kernel(DType::kBF16) && split.splits_k);
  const GemmChoice whole = choose_gemm({512, 4096, 14336, DType::kBF16}, kHopper);
  EXPECT(whole.kernel == &tma_kernel(DType::kBF16) && !whole.splits_k);
}

TEST(very_many_rows_have_weights_expanded_first) {
  constexpr GemmDevice kHopper{.n_sms = 132, .has_wgmma = true, .has_tma = true};
  EXPECT_EQ(choose_gemm({383, 28672, 4096, DType::kInt8}, kHopper).expanded_columns, 0);
  const GemmSizes many{384, 28672, 4096, DType::kInt8};
  EXPECT_EQ(choose_gemm(many, kHopper).expanded_columns, 28672);
  EXPECT_EQ(gemm_scratch_bytes(many, choose_gemm(many, kHopper)), size_t{2} * 28672 * 4096);
  EXPECT_EQ(choose_gemm({384, 128256, 4096, DType::kQ4K}, kHopper).expanded_columns, 32768);
  EXPECT_EQ(choose_gemm({384, 28672, 4096, DType::kBF16}, kHopper).expanded_columns, 0);
  EXPECT_EQ(choose_gemm(many, {.n_sms = 132, .has_wgmma = true}).expanded_columns, 0);
}

TEST(every_dtype_has_kernels_of_its_own) {
  for (const DType dtype : kDTypes) {
    const std::string stem = std::string("gemm_") + dtype_name(dtype);
    for (const GemmKernel& kernel : gemm_kernels(dtype)) {
      EXPECT(kernel.weights == dtype && std::string(kernel.name).starts_with(stem));
    }
    const WeightLayout layout = weight_layout(3, 256, dtype);
    const auto gather = gather_launch(layout, {}, nullptr, 1, nullptr, Store::kSet);
    EXPECT_EQ(std::string(gather.kernel), std::string("gather_rows_") + dtype_name(dtype));
    if (dtype == DType::kF32) continue;
    EXPECT_EQ(std::string(wgmma_kernel(dtype).name), stem + "_wgmma");
    EXPECT_EQ(std::string(tma_kernel(dtype).name), stem + "_tma");
  }
}

TEST(outputs_lie_one_behind_another_unless_a_stride_says_else) {
  const GemmSizes sizes{1, 1024, 14336, DType::kQ4K};
  const GemmChoice choice = choose_gemm(sizes, kDevice);
  for (const int stride : {0, 1500}) {
    const GemmLaunches l = gemm_launches(sizes, choice, {.y_stride = stride}, Store::kSet);
    EXPECT_EQ(l.product.params.y_stride, stride == 0 ? 1024 : stride);
    EXPECT(l.finish.has_value() && l.finish->params.y_stride == l.product.params.y_stride);
  }
}

TEST(blocks_cover_every_output_and_every_segment) {
  for (const DType dtype : kDTypes) {
    for (const int n_rows : {1, 30, 100, 1000}) {
      for (const int n_out : {1, 100, 151936}) {
        for (const int n_in : {40, 2048, 2049, 14336}) {
          const GemmSizes sizes{n_rows, n_out, n_in, dtype};
          const GemmChoice choice = choose_gemm(sizes, kDevice);
          const GemmLaunches l = gemm_launches(sizes, choice, {}, Store::kAdd);
          EXPECT_EQ(std::string(l.product.kernel), choice.kernel->name);
          EXPECT_EQ(l.product.grid.x, unsigned(n_rows - 1) / choice.kernel->rows + 1);
          EXPECT_EQ(l.product.grid.y, unsigned(n_out - 1) / choice.kernel->columns + 1);
          EXPECT_EQ(l.product.grid.z, choice.splits_k ? unsigned(n_in + 2047) / 2048 : 1);
          EXPECT(l.product.grid.y < 65536 && l.product.shared_bytes <= kMostSharedBytes);
          EXPECT_EQ(l.finish.has_value(), choice.splits_k);
          EXPECT_EQ(gemm_scratch_bytes(sizes, choice),
                    choice.splits_k ? size_t{4} * n_rows * n_out * l.product.grid.z : 0);
          EXPECT_EQ(l.product.params.k_padded, (n_in + 31) / 32 * 32);
          EXPECT(l.product.params.adds);
          if (!l.finish) continue;
          EXPECT(l.finish->params.adds);
          EXPECT_EQ(l.finish->params.n_segments, int(l.product.grid.z));
          EXPECT_EQ(l.finish->grid.y, unsigned(n_rows));
          EXPECT(l.finish->grid.x * l.finish->threads * kFinishedPerThread >= unsigned(n_out));
        }
      }
    }
  }
}

}  // namespace
}  // namespace pb::cuda

PB_TEST_MAIN()
