// Launches of recurrent layers, as values.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "cuda/driver/launch.h"
#include "cuda/recurrent/params_recurrent.h"

namespace pb::cuda {

GatedDeltaNetSizes gated_delta_net_sizes(const GatedDeltaNetShape& shape);

// Returns the numbers of a layer's part of a block of states, a multiple of 4.
int64_t gated_delta_net_state_size(const GatedDeltaNetSizes& sizes);

// The numbers of each array of a GatedDeltaNetScratch of n_rows rows.
struct GatedDeltaNetScratchSizes {
  int64_t queries;  // also the size of keys
  int64_t values;
  int64_t gates;

  int64_t all() const { return 2 * queries + values + gates; }
};
GatedDeltaNetScratchSizes gated_delta_net_scratch_sizes(int n_rows,
                                                        const GatedDeltaNetSizes& sizes);

Launch<GatedDeltaNetInputsParams> gated_delta_net_inputs_launch(
    int n_rows, const GatedDeltaNetInputsParams& params);
Launch<DeltaRuleParams> delta_rule_launch(int n_sequences, const DeltaRuleParams& params);
Launch<GatedDeltaNetOutputsParams> gated_delta_net_outputs_launch(
    int n_rows, const GatedDeltaNetOutputsParams& params);

// Returns the numbers of a layer's part of a block of states, a multiple of 4.
int64_t short_conv_state_size(const ShortConvShape& shape);

Launch<ShortConvParams> short_conv_launch(int n_rows, const ShortConvParams& params);
Launch<ShortConvStatesParams> short_conv_states_launch(int n_sequences,
                                                       const ShortConvStatesParams& params);

}  // namespace pb::cuda
