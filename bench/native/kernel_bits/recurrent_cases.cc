// Recurrent layers: a sequence at once and in parts, alone and in company, and its states.
#include "cases.h"
#include "gated_delta_net_kernels.h"
#include "short_conv_kernels.h"

namespace pb::bench {
namespace {

using namespace pb::test;

// name: of the kind and its sizes. rows(n, seed): inputs of n rows. y_size: of a row.
template <typename Kernels, typename Shape, typename Rows>
void run_shape(Cases& cases, const std::string& name, const Shape& shape, Rows rows, int y_size) {
  const int n_rows = cases.is_small() ? 19 : 37;
  const std::vector<float> x = rows(n_rows, 70);
  const std::vector<int32_t> blocks = {4, 1, 0, 3, 5};
  for (const int n_at_once : {n_rows, 5}) {
    cases.run<float>({name + ", " + std::to_string(n_at_once) + " rows at once", name, false},
                     [&] { return Kernels(shape).run_in(n_at_once, x, blocks); });
  }
  cases.run<float>({name + " in company", name, false}, [&] {
    Kernels kernels(shape, 8);
    std::vector<float> all = rows(3, 71);
    all.insert(all.end(), x.begin(), x.end());
    const std::vector<float> y = kernels.run(
        {kernels.part_of(0, 3, {7}), kernels.part_of(0, n_rows, blocks)}, all, n_rows + 9);
    return std::vector<float>(y.begin() + ptrdiff_t{3} * y_size, y.end());
  });
  const std::string of_states = name + ", states";
  cases.run<float>({of_states, of_states, false}, [&] {
    Kernels kernels(shape);
    (void)kernels.run_in(n_rows, x, blocks);
    return kernels.state_in(1);
  });
}

void run_gated_delta_net(Cases& cases, const GatedDeltaNetShape& shape) {
  const std::string name = "delta_rule of " + std::to_string(shape.key_dim) + " keys, " +
                           std::to_string(shape.value_dim) + " values";
  const auto rows = [&](int n, uint64_t seed) {
    return GatedDeltaNetNumbers::rows(n, shape, seed);
  };
  run_shape<GatedDeltaNetKernels>(cases, name, shape, rows, shape.value_size());
}

void run_short_conv(Cases& cases, const ShortConvShape& shape) {
  const std::string name = "short_conv of " + std::to_string(shape.width) + " channels, " +
                           std::to_string(shape.conv_size) + " rows";
  const auto rows = [&](int n, uint64_t seed) { return short_conv_rows(n, shape, seed); };
  run_shape<ShortConvKernels>(cases, name, shape, rows, shape.width);
}

}  // namespace

void run_recurrent_cases(Cases& cases) {
  run_gated_delta_net(cases, {2, 6, 12, 20, 4});
  run_gated_delta_net(cases, {2, 4, 128, 128, 4, true});
  run_gated_delta_net(cases, {1, 2, 200, 33, 2});
  run_short_conv(cases, {150, 3});
  run_short_conv(cases, {33, 12});
}

}  // namespace pb::bench
