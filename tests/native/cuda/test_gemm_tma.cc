// CUDA's matrix products whose tiles are copied by tensor maps: the bits of those by cp.async, and
// those in their place where the driver makes no maps.
#include "gemm_fixture.h"

namespace pb::test {
namespace {

constexpr DType kDTypes[] = {DType::kBF16, PB_CUDA_DTYPES};

GemmChoice by_maps(DType dtype, bool splits_k = false) {
  return {&cuda::tma_kernel(dtype), splits_k};
}
GemmChoice by_cp_async(DType dtype) { return {&cuda::wgmma_kernel(dtype), false}; }

// More stages than there are, fewer, and sums of several segments.
TEST(maps_give_the_bits_of_cp_async_and_of_mma) {
  for (const DType dtype : kDTypes) {
    for (const int n_in :
         is_native_only(dtype) ? cases({2112, 200}) : cases({40, 520, 2112, 200})) {
      const Problem p = Problem::random({150, 141, n_in, dtype}, true, 51);
      const Product product(p);
      for (const MmaModel model : {MmaModel::kSequential, MmaModel::kHopper}) {
        if (model == MmaModel::kHopper && n_in > 520) continue;  // slow
        set_order(1, model);
        const std::vector<float> expected = product.run(by_cp_async(dtype));
        EXPECT(same_bits(product.run({&cuda::gemm_kernels(dtype).back(), false}), expected));
        EXPECT(same_bits(product.run(by_maps(dtype)), expected));
        if (n_in <= cuda::kSegmentK) continue;
        EXPECT(same_bits(product.run(by_maps(dtype, true)), expected));
      }
    }
  }
}

// Fewer blocks than tiles: each goes on with the next one's stages while it puts sums away.
TEST(blocks_take_tiles_in_turn) {
  const Problem p = Problem::random({300, 141, 520, DType::kBF16}, true, 54);
  const Product product(p);
  set_order(0);
  const std::vector<float> expected = product.run(by_cp_async(DType::kBF16));
  for (const int n_blocks : cases({1, 2, 5, 6, 9, 4})) {
    set_order(static_cast<uint64_t>(n_blocks));
    GemmChoice choice = by_maps(DType::kBF16);
    choice.most_blocks = n_blocks;
    EXPECT(same_bits(product.run(choice), expected));
  }
  const Problem split = Problem::random({140, 129, 4200, DType::kBF16}, false, 55);
  const Product of_segments(split);
  GemmChoice choice = by_maps(DType::kBF16, true);
  choice.most_blocks = 3;
  EXPECT(same_bits(of_segments.run(choice), of_segments.run(by_cp_async(DType::kBF16))));
}

// Weights that become bf16 first, all at once and some columns at a time.
TEST(expanded_weights_have_the_bits_of_expanded_tiles) {
  for (const DType dtype : kDTypes) {
    if (dtype == DType::kBF16) continue;
    const Problem p = Problem::random({140, 300, 520, dtype}, true, 56);
    const Product product(p);
    const std::vector<float> before = Numbers(57).floats(size_t{140} * 300);
    for (const int n_columns : cases({300, 256, 128})) {
      const GemmChoice choice{&cuda::tma_kernel(DType::kBF16), false, 2, n_columns};
      EXPECT(same_bits(product.run(choice), product.run(by_maps(dtype))));
      EXPECT(
          same_bits(product.run(choice, 140, &before), product.run(by_maps(dtype), 140, &before)));
    }
  }
}

TEST(a_row_has_the_same_bits_among_any_number_of_rows) {
  constexpr cuda::GemmDevice kHopper{.n_sms = 1, .has_wgmma = true, .has_tma = true};
  for (const DType dtype : kDTypes) {
    const Problem p = Problem::random({200, 23, 72, dtype}, true, 53);
    const Product product(p);
    set_order(5);
    const std::vector<float> expected = product.run(by_maps(dtype));
    for (const int n_rows : cases({1, 32, 33, 64, 128, 129, 19})) {
      GemmSizes sizes = p.sizes;
      sizes.n_rows = n_rows;
      const GemmChoice choice = choose_gemm(sizes, kHopper);
      EXPECT_EQ(choice.kernel == &cuda::tma_kernel(dtype), n_rows > 32);
      EXPECT(same_bits(product.run(choice, n_rows),
                       {expected.begin(), expected.begin() + ptrdiff_t{n_rows} * 23}));
    }
  }
}

TEST(the_order_of_threads_and_copies_does_not_matter) {
  for (const DType dtype : kDTypes) {
    const Problem p = Problem::random({70, 70, 600, dtype}, true, 52);
    const Product product(p);
    const std::vector<float> expected = chained(p);
    for (uint64_t seed = 1; seed <= orders(); ++seed) {
      set_order(seed);
      EXPECT(same_bits(product.run(by_maps(dtype)), expected));
    }
  }
}

TEST(outputs_may_be_added_and_lie_beside_those_of_others) {
  for (const DType dtype : {DType::kBF16, DType::kInt4}) {
    const Problem p = Problem::random({10, 37, 88, dtype}, true, 54);
    const Product product(p);
    set_order(2);
    for (const Store store : {Store::kSet, Store::kAdd}) {
      const std::vector<float> before = Numbers(55).floats(size_t{10} * 43);
      EXPECT(same_bits(product.run_beside(by_maps(dtype), 3, 43, before, store),
                       product.run_beside(by_cp_async(dtype), 3, 43, before, store)));
    }
  }
}

TEST(cp_async_takes_the_place_of_maps_that_a_driver_does_not_make) {
  const char* const kEncode = "cuTensorMapEncodeTiled";
  for (const DType dtype : {DType::kBF16, DType::kInt8}) {
    const Problem p = Problem::random({40, 37, 88, dtype}, true, 56);
    const Product product(p);
    set_order(2);
    const std::vector<float> expected = product.run(by_cp_async(dtype));
    const int n_maps = dtype == DType::kBF16 ? 2 : 1;
    for (int refused = 1; refused <= n_maps; ++refused) {
      cuda_on_cpu::fail_call(kEncode, refused, cuda::kErrorInvalidValue);
      const uint64_t before = cuda_on_cpu::counters().bulk_copies;
      EXPECT(same_bits(product.run(by_maps(dtype)), expected));
      EXPECT_EQ(cuda_on_cpu::counters().bulk_copies, before);
    }
    const uint64_t before = cuda_on_cpu::counters().bulk_copies;
    EXPECT(same_bits(product.run(by_maps(dtype)), expected));
    EXPECT_EQ(cuda_on_cpu::counters().bulk_copies - before, uint64_t(2 * n_maps));
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
