// Gated short convolutions: against the formula in double precision, and the same bits however rows
// are cut into passes, shared by threads, or beside which sequences they are.
#include <vector>

#include "cpu_state_checks.h"
#include "short_conv_fixture.h"

namespace {

using namespace pb;
using namespace pb::test;

// Makes rigs of a shape on a target.
auto rigs_of(const cpu::Kernels& target, const ShortConvShape& shape) {
  return [&target, shape](int n_threads) {
    return garbage_rig<ShortConvRig>(target, shape, n_threads);
  };
}

}  // namespace

TEST(rows_are_those_of_the_formula) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const ShortConvShape& shape : short_conv_shapes()) {
      ShortConvRig rig = rigs_of(*target, shape)(2);
      const auto x = short_conv_rows(30, shape, 55);
      EXPECT(distance_of(rig.run_in(30, x, 0), exact_short_conv(shape, x)) < 1e-6);
    }
  }
}

TEST(the_same_bits_however_rows_are_cut) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const ShortConvShape& shape : short_conv_shapes()) {
      expect_same_bits_in_parts(rigs_of(*target, shape), short_conv_rows(37, shape, 56));
    }
  }
}

TEST(sequences_of_a_pass_do_not_see_each_other) {
  const ShortConvShape shape{200, 4};
  for (const cpu::Kernels* target : runnable_targets()) {
    expect_sequences_apart(rigs_of(*target, shape), short_conv_rows(10, shape, 57),
                           short_conv_rows(7, shape, 58));
  }
}

// A later pass of the same step goes on in place.
TEST(what_is_gone_on_from_stays_as_it_is) {
  const ShortConvShape shape{40, 5};
  for (const cpu::Kernels* target : runnable_targets()) {
    expect_kept_states(rigs_of(*target, shape)(1), short_conv_rows(8, shape, 59), {3, 4, 2});
  }
}

PB_TEST_MAIN()
