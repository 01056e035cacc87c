// The gated short convolution (ops/recurrent.h). A thread handles a channel of a row, or of a
// sequence whose inputs are stored for later rows.
#pragma once

#include "cuda/device_code/device_code.h"
#include "cuda/recurrent/kept_inputs.cuh"
#include "cuda/recurrent/params_recurrent.h"

namespace pb::cuda {
namespace {

__device__ __forceinline__ float short_conv_input(const float* x, int width, int64_t row,
                                                  int channel) {
  const float* const of_row = x + row * 3 * width + channel;
  return of_row[0] * of_row[2 * width];
}

PB_KERNEL(short_conv, ShortConvParams, kConvThreads) {
  const int channel = static_cast<int>(blockIdx.y * kConvThreads + threadIdx.x);
  if (channel >= p.width) return;
  const int64_t row = blockIdx.x;
  const StateRow of_row = p.rows[row];
  float sum = 0.0f;
  for (int tap = 0; tap < p.conv_size; ++tap) {
    const int before = p.conv_size - 1 - tap;
    float input = 0.0f;
    if (before <= of_row.n_before) {
      input = short_conv_input(p.x, p.width, row - before, channel);
    } else if (of_row.from >= 0) {
      const int64_t kept = tap + of_row.n_before;
      input = p.states.data[of_row.from * p.states.block_stride + kept * p.width + channel];
    }
    sum = __fmaf_rn(input, p.convolution[static_cast<int64_t>(tap) * p.width + channel], sum);
  }
  p.y[row * p.width + channel] = p.x[(row * 3 + 1) * p.width + channel] * sum;
}

PB_KERNEL(short_conv_states, ShortConvStatesParams, kConvThreads) {
  const StateSequence sequence = p.sequences[blockIdx.x];
  const int channel = static_cast<int>(blockIdx.y * kConvThreads + threadIdx.x);
  if (sequence.n_rows == 0 || channel >= p.width) return;
  const StateBlocks kept{p.states.data + channel, p.states.block_stride};
  keep_inputs(kept, p.width, p.conv_size - 1, sequence, p.blocks, p.block_size,
              [&](int64_t row) { return short_conv_input(p.x, p.width, row, channel); });
}

}  // namespace
}  // namespace pb::cuda
