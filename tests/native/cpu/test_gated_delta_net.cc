// The gated delta rule: against the formulas in double precision, and the same bits however rows
// are cut into passes, shared by threads, or beside which sequences they are.
#include <vector>

#include "cpu_state_checks.h"
#include "gated_delta_net_fixture.h"

namespace {

using namespace pb;
using namespace pb::test;

// Makes rigs of a shape on a target.
auto rigs_of(const cpu::Kernels& target, const GatedDeltaNetShape& shape) {
  return [&target, shape](int n_threads) {
    return garbage_rig<GatedDeltaNetRig>(target, shape, n_threads);
  };
}

}  // namespace

TEST(rows_are_those_of_the_formulas) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const GatedDeltaNetShape& shape : gated_delta_net_shapes()) {
      GatedDeltaNetRig rig = rigs_of(*target, shape)(2);
      const auto x = GatedDeltaNetNumbers::rows(30, shape, 55);
      EXPECT(distance_of(rig.run_in(30, x, 0), exact_gated_delta_net(shape, rig.numbers, x)) <
             2e-5);
    }
  }
}

TEST(the_same_bits_however_rows_are_cut) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const GatedDeltaNetShape& shape : gated_delta_net_shapes()) {
      expect_same_bits_in_parts(rigs_of(*target, shape), GatedDeltaNetNumbers::rows(37, shape, 56));
    }
  }
}

TEST(sequences_of_a_pass_do_not_see_each_other) {
  const GatedDeltaNetShape shape{2, 6, 12, 20, 4};
  for (const cpu::Kernels* target : runnable_targets()) {
    expect_sequences_apart(rigs_of(*target, shape), GatedDeltaNetNumbers::rows(10, shape, 57),
                           GatedDeltaNetNumbers::rows(7, shape, 58));
  }
}

TEST(what_is_gone_on_from_stays_as_it_is) {
  const GatedDeltaNetShape shape{2, 4, 16, 32, 4};
  for (const cpu::Kernels* target : runnable_targets()) {
    expect_kept_states(rigs_of(*target, shape)(1), GatedDeltaNetNumbers::rows(8, shape, 59),
                       {3, 4});
  }
}

PB_TEST_MAIN()
