// CUDA's matrix products on wgmma: the bits of those on mma.sync under the model of Hopper.
#include "gemm_fixture.h"

namespace pb::test {
namespace {

constexpr DType kDTypes[] = {DType::kBF16, PB_CUDA_DTYPES};

TEST(wgmma_gives_the_bits_of_mma) {
  for (const DType dtype : kDTypes) {
    for (const int n_in :
         is_native_only(dtype) ? cases({2112, 200}) : cases({40, 520, 2112, 200})) {
      const Problem p = Problem::random({150, 141, n_in, dtype}, true, 31);
      const Product product(p);
      for (const MmaModel model : {MmaModel::kSequential, MmaModel::kHopper}) {
        if (model == MmaModel::kHopper && n_in > 520) continue;  // slow
        set_order(1, model);
        const std::vector<float> expected = product.run({&cuda::gemm_kernels(dtype).back(), false});
        EXPECT(same_bits(product.run({&cuda::wgmma_kernel(dtype), false}), expected));
        if (n_in <= cuda::kSegmentK) continue;
        EXPECT(same_bits(product.run({&cuda::wgmma_kernel(dtype), true}), expected));
      }
    }
  }
}

TEST(a_row_has_the_same_bits_among_any_number_of_rows) {
  constexpr cuda::GemmDevice kHopper{1, true};
  for (const DType dtype : kDTypes) {
    const Problem p = Problem::random({200, 23, 72, dtype}, true, 33);
    const Product product(p);
    for (const MmaModel model : {MmaModel::kSequential, MmaModel::kHopper}) {
      set_order(5, model);
      const std::vector<float> expected = product.run({&cuda::wgmma_kernel(dtype), false});
      for (const int n_rows : cases({1, 8, 31, 32, 33, 64, 128, 129, 19})) {
        GemmSizes sizes = p.sizes;
        sizes.n_rows = n_rows;
        const GemmChoice choice = choose_gemm(sizes, kHopper);
        EXPECT_EQ(choice.kernel == &cuda::wgmma_kernel(dtype), n_rows > 32);
        EXPECT(same_bits(product.run(choice, n_rows),
                         {expected.begin(), expected.begin() + ptrdiff_t{n_rows} * 23}));
      }
    }
  }
}

TEST(the_order_of_threads_does_not_matter) {
  for (const DType dtype : kDTypes) {
    const Problem p = Problem::random({70, 70, 600, dtype}, true, 32);
    const Product product(p);
    const std::vector<float> expected = chained(p);
    for (uint64_t seed = 1; seed <= orders(); ++seed) {
      set_order(seed);
      EXPECT(same_bits(product.run({&cuda::wgmma_kernel(dtype), false}), expected));
    }
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
