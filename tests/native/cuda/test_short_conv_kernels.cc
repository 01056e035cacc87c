// The kernels of gated short convolutions: against the formula in double precision, and the same
// bits however rows are cut into passes, beside which sequences they are, in any order of threads.
#include <array>
#include <vector>

#include "short_conv_kernels.h"

namespace pb::test {
namespace {

const std::vector<int32_t> kBlocks = {4, 1, 0, 3, 5};
constexpr ShortConvShape kShape{150, 4};
constexpr std::array kCuts = {1, 2, 5, 8, 17};

TEST(rows_are_those_of_the_formula) {
  uint64_t order = 0;
  for (const ShortConvShape& shape : short_conv_shapes()) {
    set_order(++order);
    const auto x = short_conv_rows(30, shape, 55);
    const auto y = ShortConvKernels(shape).run_in(30, x, kBlocks);
    EXPECT(distance_of(y, exact_short_conv(shape, x)) < 1e-6);
  }
}

TEST(the_same_bits_however_rows_are_cut) {
  for (const ShortConvShape& shape : short_conv_shapes()) {
    const auto x = short_conv_rows(37, shape, 56);
    expect_same_bits_in_parts<ShortConvKernels>(shape, x, kBlocks, kCuts);
  }
}

TEST(sequences_of_a_pass_do_not_see_each_other) {
  set_order(5);
  expect_sequences_apart<ShortConvKernels>(kShape, short_conv_rows(10, kShape, 57),
                                           short_conv_rows(7, kShape, 58));
}

// A block that is gone on from is read, and another is written to: a step can be taken back. A
// later pass of the same step goes on in place.
TEST(what_is_gone_on_from_stays_as_it_is) {
  for (const ShortConvShape& shape : {kShape, ShortConvShape{3, 9}}) {
    ShortConvKernels kernels(shape);
    const auto x = short_conv_rows(12, shape, 59);
    const auto expected = kernels.run_in(12, x, {0, 1});
    (void)kernels.run_in(5, kernels.rows_of(x, 0, 5), {2});
    const auto kept = kernels.state_in(2);
    for (const int32_t block : {3, 4, 2}) {
      set_order(static_cast<uint64_t>(block));
      const auto y = kernels.run({{7, 5, 2, {block, 5}}}, kernels.rows_of(x, 5, 7));
      EXPECT(same_bits(y, {expected.end() - ptrdiff_t(y.size()), expected.end()}));
      EXPECT(same_bits(kernels.state_in(2), block == 2 ? kernels.state_in(0) : kept));
      EXPECT(same_bits(kernels.state_in(block), kernels.state_in(0)));
      EXPECT(same_bits(kernels.state_in(5), kernels.state_in(1)));
    }
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
