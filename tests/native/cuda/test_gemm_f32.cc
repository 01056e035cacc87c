// CUDA's matrix products with f32 weights: the bits of a chain of fused multiply-adds.
#include "gemm_fixture.h"

namespace pb::test {
namespace {

TEST(every_output_is_a_chain_of_fused_multiply_adds) {
  uint32_t seed = 0;
  for (const int n_in : cases({1, 5, 32, 40, 520, 2048, 5000, 2049})) {
    for (const int n_out : cases({1, 66})) {
      ++seed;
      const Problem p = Problem::random({35, n_out, n_in, DType::kF32}, seed % 2 == 0, seed);
      const Product product(p);
      const std::vector<float> expected = chained(p);
      set_order(seed);
      for (const GemmChoice& choice : all_choices(p.sizes)) {
        EXPECT(same_bits(product.run(choice), expected));
      }
      expect_near(expected, p);
    }
  }
}

TEST(a_row_has_the_same_bits_among_any_number_of_rows) {
  const Problem p = Problem::random({200, 23, 72, DType::kF32}, true, 11);
  const Product product(p);
  const std::vector<float> expected = chained(p);
  set_order(5);
  for (const int n_rows : row_counts()) {
    GemmSizes sizes = p.sizes;
    sizes.n_rows = n_rows;
    EXPECT(same_bits(product.run(choose_gemm(sizes, {1}), n_rows),
                     {expected.begin(), expected.begin() + ptrdiff_t{n_rows} * 23}));
  }
}

TEST(the_order_of_threads_does_not_matter) {
  const Problem p = Problem::random({40, 70, 2100, DType::kF32}, true, 12);
  const Product product(p);
  const std::vector<float> before = Numbers(15).floats(40 * 70);
  const std::vector<float> expected = chained(p, &before);
  for (uint64_t seed = 1; seed <= orders(); ++seed) {
    set_order(seed);
    for (const GemmChoice& choice : all_choices(p.sizes)) {
      EXPECT(same_bits(product.run(choice, 40, &before), expected));
    }
  }
}

TEST(outputs_may_lie_beside_those_of_others) {
  for (const int n_in : cases({40, 2100}))
    expect_outputs_beside_others({10, 37, n_in, DType::kF32});
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
