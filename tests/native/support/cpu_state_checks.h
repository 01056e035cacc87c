// What holds of every kind of recurrent layer on the CPU. Of a rig on a target, make(n_threads)
// gives a new one.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu_fixture.h"
#include "state_rig.h"

namespace pb::test {

// A layer whose blocks of states hold garbage until they are written to.
template <typename Rig, typename Shape>
Rig garbage_rig(const cpu::Kernels& target, const Shape& shape, int n_threads) {
  Rig rig(shape, make_cpu_backend(n_threads, target.name));
  std::fill_n(rig.states.data.template as<float>(), rig.states.data.bytes() / sizeof(float),
              std::nanf(""));
  return rig;
}

// The same bits however rows are cut into passes and shared by threads. x: 37 rows.
template <typename MakeRig>
void expect_same_bits_in_parts(MakeRig make, const std::vector<float>& x) {
  auto rig = make(1);
  const auto expected = rig.run_in(37, x, 0);
  for (const int n_rows : {1, 2, 5, 8, 17}) EXPECT(same_bits(rig.run_in(n_rows, x, 6), expected));
  auto other = make(3);
  EXPECT(same_bits(other.run_in(9, x, 1), expected));
}

// Sequences of a pass have the bits that each has alone. x: 10 rows; z: 7 rows.
template <typename MakeRig>
void expect_sequences_apart(MakeRig make, const std::vector<float>& x,
                            const std::vector<float>& z) {
  auto rig = make(2);
  const auto of_x = rig.run_in(10, x, 0);
  const auto of_z = rig.run_in(7, z, 5);
  auto both = make(2);
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

// A block that is gone on from is read, and each of `others` is written to: a step can be taken
// back. x: 8 rows.
template <typename Rig>
void expect_kept_states(Rig rig, const std::vector<float>& x, const std::vector<int32_t>& others) {
  const auto expected = rig.run_in(8, x, 0);
  (void)rig.run_in(5, rig.rows_of(x, 0, 5), 2);
  for (const int32_t& other : others) {
    SequenceRows rows{.n_rows = 3, .first_position = 5, .state_from = 2};
    rows.block_tables[0] = rows.block_tables[1] = &other;
    const auto y = rig.run({rows}, rig.rows_of(x, 5, 3));
    const auto last = expected.end() - ptrdiff_t(y.size());
    EXPECT(same_bits(y, {last, expected.end()}));
  }
}

}  // namespace pb::test
