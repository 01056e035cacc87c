// The kernels of gated short convolutions on arrays that are exactly so large as they need be.
#pragma once

#include "cuda/recurrent/recurrent_launch.h"
#include "short_conv_fixture.h"
#include "state_kernels.h"

namespace pb::test {

class ShortConvKernels final : public StateKernels {
 public:
  explicit ShortConvKernels(const ShortConvShape& shape, int n_blocks = 6)
      : StateKernels(shape.row_size(), shape.width, cuda::short_conv_state_size(shape), n_blocks),
        shape_(shape),
        convolution_(short_conv_taps(shape)) {}

 private:
  void launch_all(const StatePass& pass, const float* x, float* y) override {
    launch_one(cuda::short_conv_launch(pass.n_rows, {.width = shape_.width,
                                                     .conv_size = shape_.conv_size,
                                                     .x = x,
                                                     .rows = pass.rows,
                                                     .states = layer_states(),
                                                     .convolution = convolution_.get(),
                                                     .y = y}));
    launch_one(cuda::short_conv_states_launch(pass.n_sequences, {.width = shape_.width,
                                                                 .conv_size = shape_.conv_size,
                                                                 .x = x,
                                                                 .sequences = pass.sequences,
                                                                 .blocks = pass.blocks,
                                                                 .block_size = kBlockSize,
                                                                 .states = layer_states()}));
  }

  ShortConvShape shape_;
  DeviceArray<float> convolution_;
};

}  // namespace pb::test
