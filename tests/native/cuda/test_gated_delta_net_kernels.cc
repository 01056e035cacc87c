// The gated delta rule's kernels: against the formulas in double precision, and the same bits
// however rows are cut into passes, beside which sequences they are, in any order of threads.
#include <array>
#include <cmath>
#include <vector>

#include "gated_delta_net_kernels.h"

namespace pb::test {
namespace {

constexpr GatedDeltaNetShape kSmall{2, 6, 12, 20, 4};
constexpr GatedDeltaNetShape kWide{1, 2, 200, 33,
                                   4};  // of the kernel that takes more than 128 keys
const std::vector<int32_t> kBlocks = {4, 1, 0, 3, 5};

// Where a sanitizer looks on, one of each kind.
#ifdef PB_SLOWED
std::vector<GatedDeltaNetShape> shapes() { return {{1, 2, 33, 40, 3}, kWide}; }
constexpr std::array kCuts = {5};
#else
constexpr std::array kCuts = {1, 2, 5, 8, 17};
std::vector<GatedDeltaNetShape> shapes() {
  std::vector<GatedDeltaNetShape> all = gated_delta_net_shapes();
  all.push_back(kWide);
  all.push_back({1, 1, 256, 300, 2});  // values that a warp takes twice
  return all;
}
#endif

TEST(rows_are_those_of_the_formulas) {
  uint64_t order = 0;
  for (const GatedDeltaNetShape& shape : shapes()) {
    set_order(++order);
    GatedDeltaNetKernels kernels(shape);
    const auto x = GatedDeltaNetNumbers::rows(30, shape, 55);
    const auto y = kernels.run_in(30, x, kBlocks);
    EXPECT(distance_of(y, exact_gated_delta_net(shape, kernels.numbers, x)) < 2e-6);
  }
}

TEST(gates_are_right_where_they_are_nearly_0_or_1) {
  set_order(3);
  const GatedDeltaNetShape shape{1, 3, 8, 8, 2};
  GatedDeltaNetKernels kernels(shape);
  auto x = GatedDeltaNetNumbers::rows(24, shape, 60);
  const float extremes[] = {-100.0f, -20.0f, -1e-3f, 0.0f, 1e-3f, 15.0f, 80.0f, 100.0f};
  for (size_t row = 0; row < 24; ++row) {
    float* const gates = x.data() + (row + 1) * size_t(shape.row_size()) - 6;
    for (size_t i = 0; i < 6; ++i) gates[i] = extremes[(3 * row + 5 * i) % 8];
  }
  const auto y = kernels.run_in(24, x, kBlocks);
  EXPECT(distance_of(y, exact_gated_delta_net(shape, kernels.numbers, x)) < 2e-6);
}

TEST(the_same_bits_however_rows_are_cut) {
  for (const GatedDeltaNetShape& shape : shapes()) {
    const auto x = GatedDeltaNetNumbers::rows(37, shape, 56);
    expect_same_bits_in_parts<GatedDeltaNetKernels>(shape, x, kBlocks, kCuts);
  }
}

TEST(the_order_of_threads_does_not_matter) {
  const auto x = GatedDeltaNetNumbers::rows(21, kSmall, 61);
  set_order(0);
  GatedDeltaNetKernels first(kSmall);
  const auto expected = first.run_in(21, x, kBlocks);
  for (uint64_t seed = 1; seed <= n_orders(10); ++seed) {
    set_order(seed);
    GatedDeltaNetKernels kernels(kSmall);
    EXPECT(same_bits(kernels.run_in(21, x, kBlocks), expected));
    EXPECT(same_bits(kernels.states(), first.states()));
  }
}

TEST(sequences_of_a_pass_do_not_see_each_other) {
  set_order(5);
  expect_sequences_apart<GatedDeltaNetKernels>(kSmall, GatedDeltaNetNumbers::rows(10, kSmall, 57),
                                               GatedDeltaNetNumbers::rows(7, kSmall, 58));
}

// A block that is gone on from is read, and another is written to: a step can be taken back. A
// later pass of the same step goes on in place.
TEST(what_is_gone_on_from_stays_as_it_is) {
  set_order(6);
  for (const GatedDeltaNetShape& shape : {kSmall, GatedDeltaNetShape{1, 1, 5, 1, 7}}) {
    GatedDeltaNetKernels kernels(shape);
    const auto x = GatedDeltaNetNumbers::rows(12, shape, 59);
    const auto expected = kernels.run_in(12, x, {0, 1});
    (void)kernels.run_in(5, kernels.rows_of(x, 0, 5), {2});
    const auto kept = kernels.state_in(2);
    for (const int32_t other : {3, 4}) {
      const auto rest = kernels.rows_of(x, 5, 7);
      const auto y = kernels.run({{7, 5, 2, {other, 5}}}, rest);
      EXPECT(same_bits(y, {expected.end() - ptrdiff_t(y.size()), expected.end()}));
      EXPECT(same_bits(kernels.state_in(2), kept));
      EXPECT(same_bits(kernels.state_in(other), kernels.state_in(0)));
      EXPECT(same_bits(kernels.state_in(5), kernels.state_in(1)));
    }
    const auto y = kernels.run({{7, 5, 2, {2, 5}}}, kernels.rows_of(x, 5, 7));
    EXPECT(same_bits(y, {expected.end() - ptrdiff_t(y.size()), expected.end()}));
    EXPECT(same_bits(kernels.state_in(2), kernels.state_in(0)));
    EXPECT(same_bits(kernels.state_in(5), kernels.state_in(1)));
  }
}

// No model is meant to have one, but a file may.
TEST(a_decay_above_0_is_as_the_formulas_have_it) {
  set_order(7);
  const GatedDeltaNetShape shape{1, 1, 4, 4, 1};
  GatedDeltaNetKernels kernels(shape);
  const auto x = GatedDeltaNetNumbers::rows(6, shape, 62);
  kernels.set_decays({0.3f});
  const auto y = kernels.run_in(6, x, kBlocks);
  EXPECT(distance_of(y, exact_gated_delta_net(shape, kernels.numbers, x)) < 2e-6);
  kernels.set_decays({1e4f});
  EXPECT(std::isnan(kernels.run_in(6, x, kBlocks).back()));
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
