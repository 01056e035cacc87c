// CUDA's matrix products on wgmma: the bits of those on mma.sync under the model of Hopper.
#include "cuda/kernels/gemm.cuh"
#include "cuda/kernels/gemm_finish.cuh"
#include "cuda/kernels/gemm_sm90.cuh"
#include "gemm_fixture.h"

namespace pb::test {
namespace {

TEST(wgmma_gives_the_bits_of_mma) {
  for (const int n_in : cases({40, 520, 2112, 200})) {
    const Problem p = Problem::random({150, 141, n_in, DType::kBF16}, true, 31);
    const Product product(p);
    for (const MmaModel model : {MmaModel::kSequential, MmaModel::kHopper}) {
      if (model == MmaModel::kHopper && n_in > 520) continue;  // slow
      set_order(1, model);
      const std::vector<float> expected =
          product.run({&cuda::gemm_kernels(DType::kBF16).back(), false});
      EXPECT(same_bits(product.run({&cuda::wgmma_kernel(), false}), expected));
      EXPECT(same_bits(product.run({&cuda::wgmma_kernel(), n_in > cuda::kSegmentK}), expected));
    }
  }
}

TEST(the_order_of_threads_does_not_matter) {
  const Problem p = Problem::random({70, 70, 600, DType::kBF16}, true, 32);
  const Product product(p);
  const std::vector<float> expected = chained(p);
  for (uint64_t seed = 1; seed <= orders(); ++seed) {
    set_order(seed);
    EXPECT(same_bits(product.run({&cuda::wgmma_kernel(), false}), expected));
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
