// The gated delta rule: a sequence at once and in parts, alone and in company, and its states.
#include "cases.h"
#include "delta_kernels.h"

namespace pb::bench {
namespace {

using namespace pb::test;

void run_shape(Cases& cases, const DeltaShape& shape) {
  const int n_rows = cases.is_small() ? 19 : 37;
  const auto x = DeltaNumbers::rows(n_rows, shape, 70);
  const std::vector<int32_t> blocks = {4, 1, 0, 3, 5};
  const std::string name = "delta_rule of " + std::to_string(shape.key_dim) + " keys, " +
                           std::to_string(shape.value_dim) + " values";
  for (const int n_at_once : {n_rows, 5}) {
    cases.run<float>({name + ", " + std::to_string(n_at_once) + " rows at once", name, false},
                     [&] { return DeltaKernels(shape).run_in(n_at_once, x, blocks); });
  }
  cases.run<float>({name + " in company", name, false}, [&] {
    DeltaKernels kernels(shape, 8);
    auto rows = DeltaNumbers::rows(3, shape, 71);
    rows.insert(rows.end(), x.begin(), x.end());
    const std::vector<float> y = kernels.run(
        {kernels.part_of(0, 3, {7}), kernels.part_of(0, n_rows, blocks)}, rows, n_rows + 9);
    return std::vector<float>(y.begin() + ptrdiff_t{3} * shape.value_size(), y.end());
  });
  const std::string of_states = name + ", states";
  cases.run<float>({of_states, of_states, false}, [&] {
    DeltaKernels kernels(shape);
    (void)kernels.run_in(n_rows, x, blocks);
    return kernels.state_in(1);
  });
}

}  // namespace

void run_recurrent_cases(Cases& cases) {
  run_shape(cases, {2, 6, 12, 20, 4});
  run_shape(cases, {2, 4, 128, 128, 4, true});
  run_shape(cases, {1, 2, 200, 33, 2});
}

}  // namespace pb::bench
