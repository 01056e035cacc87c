// The kernels of gated short convolutions: against the formula in double precision, and the same
// bits however rows are cut into passes, beside which sequences they are, in any order of threads.
#include <cstring>
#include <vector>

#include "cuda/kernels/short_conv.cuh"
#include "short_conv_kernels.h"

namespace pb::test {
namespace {

const std::vector<int32_t> kBlocks = {4, 1, 0, 3, 5};
constexpr ShortConvShape kShape{150, 4};

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
    ShortConvKernels kernels(shape);
    const auto x = short_conv_rows(37, shape, 56);
    const auto expected = kernels.run_in(37, x, kBlocks);
    const auto last = kernels.state_in(5);
    for (const int n_rows : {1, 2, 5, 8, 17}) {
      set_order(static_cast<uint64_t>(n_rows));
      ShortConvKernels other(shape);
      EXPECT(same_bits(other.run_in(n_rows, x, kBlocks), expected));
      EXPECT(same_bits(other.state_in(5), last));
    }
  }
}

// Of which some are nobody's; what they do not own stays as it was, bit for bit.
TEST(sequences_of_a_pass_do_not_see_each_other) {
  set_order(5);
  for (const int padded_rows : {0, 32}) {
    const auto x = short_conv_rows(10, kShape, 57);
    const auto z = short_conv_rows(7, kShape, 58);
    ShortConvKernels of_x(kShape), of_z(kShape), both(kShape);
    const auto y_x = of_x.run_in(10, x, {2, 5});
    const auto y_z = of_z.run_in(7, z, {3});
    (void)both.run({both.part_of(0, 1, {2, 5})}, both.rows_of(x, 0, 1));
    std::vector<float> rows = both.rows_of(x, 1, 9);
    rows.insert(rows.end(), z.begin(), z.end());
    std::vector<float> expected(y_x.begin() + kShape.width, y_x.end());
    expected.insert(expected.end(), y_z.begin(), y_z.end());
    EXPECT(same_bits(
        both.run({both.part_of(1, 9, {2, 5}), both.part_of(0, 7, {3})}, rows, padded_rows),
        expected));
    const auto of_all = both.states();
    const auto own_x = of_x.states(), own_z = of_z.states();
    for (size_t i = 0; i < of_all.size(); ++i) {
      const size_t block = i / (of_all.size() / 6);
      const float wanted = block == 3 ? own_z[i] : own_x[i];
      EXPECT(std::memcmp(&of_all[i], &wanted, sizeof(float)) == 0);
    }
  }
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
