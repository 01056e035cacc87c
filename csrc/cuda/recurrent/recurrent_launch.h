// Launches of recurrent layers, as values.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "cuda/driver/launch.h"
#include "cuda/recurrent/params_recurrent.h"

namespace pb::cuda {

DeltaSizes delta_sizes(const DeltaShape& shape);

// Returns the numbers of a layer's part of a block of states, a multiple of 4.
int64_t delta_state_size(const DeltaSizes& sizes);

// The numbers of each array of a DeltaScratch of n_rows rows.
struct DeltaScratchSizes {
  int64_t queries;  // also the size of keys
  int64_t values;
  int64_t gates;

  int64_t all() const { return 2 * queries + values + gates; }
};
DeltaScratchSizes delta_scratch_sizes(int n_rows, const DeltaSizes& sizes);

Launch<DeltaInputsParams> delta_inputs_launch(int n_rows, const DeltaInputsParams& params);
Launch<DeltaRuleParams> delta_rule_launch(int n_sequences, const DeltaRuleParams& params);
Launch<DeltaOutputsParams> delta_outputs_launch(int n_rows, const DeltaOutputsParams& params);

// Returns the numbers of a layer's part of a block of states, a multiple of 4.
int64_t short_conv_state_size(const ShortConvShape& shape);

Launch<ShortConvParams> short_conv_launch(int n_rows, const ShortConvParams& params);
Launch<ShortConvStatesParams> short_conv_states_launch(int n_sequences,
                                                       const ShortConvStatesParams& params);

}  // namespace pb::cuda
