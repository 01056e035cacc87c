#include "cuda/backend/cuda_recurrent.h"

#include <algorithm>

#include "cuda/backend/cuda_backend.h"

namespace pb::cuda {

void CudaRecurrent::prepare(const PassShape& shape) {
  if (shape.gated_delta_net.n_value_heads == 0) return;
  const GatedDeltaNetScratchSizes sizes =
      gated_delta_net_scratch_sizes(shape.max_rows, gated_delta_net_sizes(shape.gated_delta_net));
  scratch_ = backend_.make_buffer(static_cast<size_t>(sizes.all()) * sizeof(float));
}

void CudaRecurrent::plan(const RowBatch& batch, int graph_rows) {
  const PassShape& shape = backend_.model_->shape;
  if (!shape.has_states()) return;
  PassMemory& pass = *backend_.pass_;
  StateSequence* next = pass.state_sequences.host;
  int n_blocks = 0;
  for (const SequenceRows& rows : batch.sequences) {
    for (int i = 0; i < rows.n_rows; ++i) {
      pass.state_rows.host[rows.first_row + i] = {.n_before = i, .from = rows.state_from};
    }
    *next++ = {.first_row = rows.first_row,
               .n_rows = rows.n_rows,
               .first_place = rows.first_position % shape.block_size,
               .from = rows.state_from,
               .first_block = n_blocks};
    const int32_t* const table = rows.block_tables[static_cast<size_t>(shape.state_group)];
    const int last = rows.first_position + rows.n_rows - 1;
    const int first_block = rows.first_position / shape.block_size;
    const int n = last / shape.block_size + 1 - first_block;
    std::copy_n(table + first_block, n, pass.state_blocks.host + n_blocks);
    n_blocks += n;
  }
  n_sequences_ = static_cast<int>(batch.sequences.size());
  if (graph_rows == 0) return;
  std::fill(pass.state_rows.host + batch.n_rows, pass.state_rows.host + graph_rows,
            StateRow{.n_before = 0, .from = -1});
  std::fill(next, pass.state_sequences.host + graph_rows, StateSequence{});
  n_sequences_ = graph_rows;
}

KvStorage CudaRecurrent::make_states(int n_blocks, int n_layers, const GatedDeltaNetShape& shape) {
  return make_storage(n_blocks, n_layers, gated_delta_net_state_size(gated_delta_net_sizes(shape)));
}

KvStorage CudaRecurrent::make_states(int n_blocks, int n_layers, const ShortConvShape& shape) {
  return make_storage(n_blocks, n_layers, short_conv_state_size(shape));
}

KvStorage CudaRecurrent::make_storage(int n_blocks, int n_layers, int64_t of_layer) {
  KvStorage states;
  states.n_blocks = n_blocks;
  states.n_layers = n_layers;
  states.dtype = DType::kF32;
  states.block_bytes =
      sizeof(float) * static_cast<size_t>(n_layers) * static_cast<size_t>(of_layer);
  states.data = backend_.make_buffer(states.block_bytes * static_cast<size_t>(n_blocks));
  return states;
}

StateBlocks CudaRecurrent::layer_states(KvStorage& states, int layer, int64_t of_layer) const {
  return {.data = states.data.as<float>() + layer * of_layer,
          .block_stride = of_layer * states.n_layers};
}

void CudaRecurrent::gated_delta_net(const Buffer& x, int n_rows, const GatedDeltaNetLayer& layer,
                                    KvStorage& states, Buffer& y) {
  backend_.attempt([&] {
    const PassMemory& pass = *backend_.pass_;
    const GatedDeltaNetSizes sizes = gated_delta_net_sizes(layer.shape);
    const StateBlocks of_blocks =
        layer_states(states, layer.layer, gated_delta_net_state_size(sizes));
    const GatedDeltaNetScratchSizes parts =
        gated_delta_net_scratch_sizes(backend_.model_->shape.max_rows, sizes);
    auto* const queries = scratch_.as<float>();
    const GatedDeltaNetScratch scratch{.queries = queries,
                                       .keys = queries + parts.queries,
                                       .values = queries + 2 * parts.queries,
                                       .gates = queries + 2 * parts.queries + parts.values};
    Device& device = *backend_.device_;
    device.launch(
        gated_delta_net_inputs_launch(n_rows, {.sizes = sizes,
                                               .x = x.as<float>(),
                                               .rows = pass.state_rows.device,
                                               .states = of_blocks,
                                               .convolution = layer.convolution->values.as<float>(),
                                               .decay = layer.decay->values.as<float>(),
                                               .decay_bias = layer.decay_bias->values.as<float>(),
                                               .scratch = scratch}));
    device.launch(delta_rule_launch(n_sequences_, {.sizes = sizes,
                                                   .x = x.as<float>(),
                                                   .sequences = pass.state_sequences.device,
                                                   .blocks = pass.state_blocks.device,
                                                   .block_size = states.block_size,
                                                   .states = of_blocks,
                                                   .scratch = scratch}));
    device.launch(
        gated_delta_net_outputs_launch(n_rows, {.sizes = sizes,
                                                .x = x.as<float>(),
                                                .values = scratch.values,
                                                .weight = layer.norm->weight.values.as<float>(),
                                                .eps = layer.norm->eps,
                                                .y = y.as<float>()}));
    device.mark();
  });
}

// The states may be written at the address that they are read from, so that all rows are computed
// before the states are written.
void CudaRecurrent::short_conv(const Buffer& x, int n_rows, const ShortConvLayer& layer,
                               KvStorage& states, Buffer& y) {
  backend_.attempt([&] {
    const PassMemory& pass = *backend_.pass_;
    const ShortConvShape& shape = layer.shape;
    const StateBlocks of_blocks = layer_states(states, layer.layer, short_conv_state_size(shape));
    Device& device = *backend_.device_;
    device.launch(short_conv_launch(n_rows, {.width = shape.width,
                                             .conv_size = shape.conv_size,
                                             .x = x.as<float>(),
                                             .rows = pass.state_rows.device,
                                             .states = of_blocks,
                                             .convolution = layer.convolution->values.as<float>(),
                                             .y = y.as<float>()}));
    device.launch(short_conv_states_launch(n_sequences_, {.width = shape.width,
                                                          .conv_size = shape.conv_size,
                                                          .x = x.as<float>(),
                                                          .sequences = pass.state_sequences.device,
                                                          .blocks = pass.state_blocks.device,
                                                          .block_size = states.block_size,
                                                          .states = of_blocks}));
    device.mark();
  });
}

}  // namespace pb::cuda
