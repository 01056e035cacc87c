// Gated short convolutions: against the formula in double precision, and the same bits however rows
// are cut into passes, shared by threads, or beside which sequences they are.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu_fixture.h"
#include "short_conv_fixture.h"

namespace {

using namespace pb;
using namespace pb::test;

// Blocks of states hold garbage until they are written to.
ShortConvRig rig_of(const cpu::Kernels& target, const ShortConvShape& shape, int n_threads) {
  ShortConvRig rig(shape, make_cpu_backend(n_threads, target.name));
  std::fill_n(rig.states.data.as<float>(), rig.states.data.bytes() / sizeof(float), std::nanf(""));
  return rig;
}

}  // namespace

TEST(rows_are_those_of_the_formula) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const ShortConvShape& shape : short_conv_shapes()) {
      ShortConvRig rig = rig_of(*target, shape, 2);
      const auto x = short_conv_rows(30, shape, 55);
      EXPECT(distance_of(rig.run_in(30, x, 0), exact_short_conv(shape, x)) < 1e-6);
    }
  }
}

TEST(the_same_bits_however_rows_are_cut) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const ShortConvShape& shape : short_conv_shapes()) {
      ShortConvRig rig = rig_of(*target, shape, 1);
      const auto x = short_conv_rows(37, shape, 56);
      const auto expected = rig.run_in(37, x, 0);
      for (const int n_rows : {1, 2, 5, 8, 17}) {
        EXPECT(same_bits(rig.run_in(n_rows, x, 6), expected));
      }
      ShortConvRig other = rig_of(*target, shape, 3);
      EXPECT(same_bits(other.run_in(9, x, 1), expected));
    }
  }
}

TEST(sequences_of_a_pass_do_not_see_each_other) {
  const ShortConvShape shape{200, 4};
  for (const cpu::Kernels* target : runnable_targets()) {
    ShortConvRig rig = rig_of(*target, shape, 2);
    const auto x = short_conv_rows(10, shape, 57);
    const auto z = short_conv_rows(7, shape, 58);
    const auto of_x = rig.run_in(10, x, 0);
    const auto of_z = rig.run_in(7, z, 5);
    ShortConvRig both = rig_of(*target, shape, 2);
    const std::vector<int32_t> tables[] = {{3, 4}, {8}};
    std::vector<float> rows = x;
    rows.insert(rows.end(), z.begin(), z.end());
    std::vector<SequenceRows> sequences = {{.first_row = 0, .n_rows = 10},
                                           {.first_row = 10, .n_rows = 7}};
    for (size_t i = 0; i < 2; ++i) {
      sequences[i].block_tables[0] = sequences[i].block_tables[1] = tables[i].data();
    }
    const auto y = both.run(sequences, rows);
    EXPECT(same_bits({y.begin(), y.begin() + ptrdiff_t(of_x.size())}, of_x));
    EXPECT(same_bits({y.begin() + ptrdiff_t(of_x.size()), y.end()}, of_z));
  }
}

// A block that is gone on from is read, and another is written to: a step can be taken back. A
// later pass of the same step goes on in place.
TEST(what_is_gone_on_from_stays_as_it_is) {
  const ShortConvShape shape{40, 5};
  for (const cpu::Kernels* target : runnable_targets()) {
    ShortConvRig rig = rig_of(*target, shape, 1);
    const auto x = short_conv_rows(8, shape, 59);
    const auto expected = rig.run_in(8, x, 0);
    (void)rig.run_in(5, rig.rows_of(x, 0, 5), 2);
    for (const int32_t other : {3, 4, 2}) {
      SequenceRows rows{.n_rows = 3, .first_position = 5, .state_from = 2};
      rows.block_tables[0] = rows.block_tables[1] = &other;
      const auto y = rig.run({rows}, rig.rows_of(x, 5, 3));
      const auto last = expected.end() - ptrdiff_t(y.size());
      EXPECT(same_bits(y, {last, expected.end()}));
    }
  }
}

PB_TEST_MAIN()
