// The kernels of the gated delta rule on arrays that are exactly so large as they need be.
#pragma once

#include <vector>

#include "cuda/recurrent/recurrent_launch.h"
#include "gated_delta_net_fixture.h"
#include "state_kernels.h"

namespace pb::test {

class GatedDeltaNetKernels final : public StateKernels {
 public:
  explicit GatedDeltaNetKernels(const GatedDeltaNetShape& shape, int n_blocks = 6)
      : StateKernels(shape.row_size(), shape.value_size(),
                     cuda::gated_delta_net_state_size(cuda::gated_delta_net_sizes(shape)),
                     n_blocks),
        numbers(shape),
        sizes_(cuda::gated_delta_net_sizes(shape)),
        convolution_(numbers.convolution),
        decays_(numbers.decays),
        biases_(numbers.biases),
        norm_(numbers.norm) {}

  void set_decays(const std::vector<float>& decays) {
    numbers.decays = decays;
    decays_.set(decays);
  }

  GatedDeltaNetNumbers numbers;

 private:
  void launch_all(const StatePass& pass, const float* x, float* y) override {
    const cuda::GatedDeltaNetScratchSizes scratch_sizes =
        cuda::gated_delta_net_scratch_sizes(pass.n_rows, sizes_);
    DeviceArray<float> queries(size_t(scratch_sizes.queries)), keys(queries.size());
    DeviceArray<float> values(size_t(scratch_sizes.values)), gates(size_t(scratch_sizes.gates));
    const cuda::GatedDeltaNetScratch scratch{queries.get(), keys.get(), values.get(), gates.get()};
    launch_one(cuda::gated_delta_net_inputs_launch(pass.n_rows, {.sizes = sizes_,
                                                                 .x = x,
                                                                 .rows = pass.rows,
                                                                 .states = layer_states(),
                                                                 .convolution = convolution_.get(),
                                                                 .decay = decays_.get(),
                                                                 .decay_bias = biases_.get(),
                                                                 .scratch = scratch}));
    launch_one(cuda::delta_rule_launch(pass.n_sequences, {.sizes = sizes_,
                                                          .x = x,
                                                          .sequences = pass.sequences,
                                                          .blocks = pass.blocks,
                                                          .block_size = kBlockSize,
                                                          .states = layer_states(),
                                                          .scratch = scratch}));
    launch_one(cuda::gated_delta_net_outputs_launch(pass.n_rows, {.sizes = sizes_,
                                                                  .x = x,
                                                                  .values = values.get(),
                                                                  .weight = norm_.get(),
                                                                  .eps = numbers.eps,
                                                                  .y = y}));
  }

  cuda::GatedDeltaNetSizes sizes_;
  DeviceArray<float> convolution_, decays_, biases_, norm_;
};

}  // namespace pb::test
