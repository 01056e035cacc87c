#include "cuda/recurrent/recurrent_launch.h"

namespace pb::cuda {
namespace {

int ceil_div(int a, int b) { return (a + b - 1) / b; }
int64_t whole_fours(int64_t n) { return (n + 3) / 4 * 4; }

Grid grid_of_channels(int n, int width) {
  return {.x = static_cast<unsigned>(n), .y = static_cast<unsigned>(ceil_div(width, kConvThreads))};
}

Grid grid_of_heads(int n_rows, int n_heads) {
  constexpr int kPerBlock = kGatedDeltaNetRowThreads / 32;
  return {.x = static_cast<unsigned>(n_rows),
          .y = static_cast<unsigned>(ceil_div(n_heads, kPerBlock))};
}

}  // namespace

GatedDeltaNetSizes gated_delta_net_sizes(const GatedDeltaNetShape& shape) {
  return {.n_key_heads = shape.n_key_heads,
          .n_value_heads = shape.n_value_heads,
          .key_dim = shape.key_dim,
          .value_dim = shape.value_dim,
          .conv_size = shape.conv_size,
          .in_turn = shape.in_turn ? 1 : 0,
          .key_stride = ceil_div(shape.key_dim, 16) * 16,
          .value_stride = ceil_div(shape.value_dim, 4) * 4};
}

int64_t gated_delta_net_state_size(const GatedDeltaNetSizes& sizes) {
  const int64_t kept = int64_t{sizes.conv_size - 1} * sizes.n_channels();
  return whole_fours(sizes.history() + kept);
}

GatedDeltaNetScratchSizes gated_delta_net_scratch_sizes(int n_rows,
                                                        const GatedDeltaNetSizes& sizes) {
  return {.queries = int64_t{n_rows} * sizes.n_key_heads * sizes.key_stride,
          .values = int64_t{n_rows} * sizes.n_value_heads * sizes.value_stride,
          .gates = int64_t{n_rows} * sizes.n_value_heads * 4};
}

Launch<GatedDeltaNetInputsParams> gated_delta_net_inputs_launch(
    int n_rows, const GatedDeltaNetInputsParams& params) {
  const int n_heads = params.sizes.n_key_heads + params.sizes.n_value_heads;
  return {"delta_inputs", grid_of_heads(n_rows, n_heads), kGatedDeltaNetRowThreads, 0, params};
}

Launch<DeltaRuleParams> delta_rule_launch(int n_sequences, const DeltaRuleParams& params) {
  const GatedDeltaNetSizes& sizes = params.sizes;
  const bool is_wide = sizes.key_dim > kMostKeyDim / 2;
  const int n_tiles = sizes.n_value_heads * ceil_div(sizes.value_dim, kDeltaRuleColumns);
  const int n_kept = sizes.conv_size > 1 ? ceil_div(sizes.n_channels(), kDeltaRuleThreads) : 0;
  SharedBytes shared;
  take_delta_rule_stages(shared, is_wide ? kMostKeyDim : kMostKeyDim / 2);
  return {is_wide ? "delta_rule_256" : "delta_rule_128",
          {.x = static_cast<unsigned>(n_sequences), .y = static_cast<unsigned>(n_tiles + n_kept)},
          kDeltaRuleThreads,
          shared.bytes(),
          params};
}

Launch<GatedDeltaNetOutputsParams> gated_delta_net_outputs_launch(
    int n_rows, const GatedDeltaNetOutputsParams& params) {
  return {"delta_outputs", grid_of_heads(n_rows, params.sizes.n_value_heads),
          kGatedDeltaNetRowThreads, 0, params};
}

int64_t short_conv_state_size(const ShortConvShape& shape) {
  return whole_fours(shape.state_size());
}

Launch<ShortConvParams> short_conv_launch(int n_rows, const ShortConvParams& params) {
  return {"short_conv", grid_of_channels(n_rows, params.width), kConvThreads, 0, params};
}

Launch<ShortConvStatesParams> short_conv_states_launch(int n_sequences,
                                                       const ShortConvStatesParams& params) {
  return {"short_conv_states", grid_of_channels(n_sequences, params.width), kConvThreads, 0,
          params};
}

}  // namespace pb::cuda
