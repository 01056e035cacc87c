#include "cpu/recurrent.h"

#include <algorithm>
#include <cmath>

#include "cpu/cpu_backend.h"

namespace pb::cpu {
namespace {

constexpr int kFloatsOfLine = 16;
constexpr int kConvChannels = 128;  // per item of a short convolution; a multiple of any vector

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// Returns a layer's part of a block.
float* state_of(KvStorage& states, int block, int layer) {
  const size_t layer_bytes = states.block_bytes / static_cast<size_t>(states.n_layers);
  const size_t at =
      static_cast<size_t>(block) * states.block_bytes + static_cast<size_t>(layer) * layer_bytes;
  return reinterpret_cast<float*>(states.data.as<std::byte>() + at);
}

}  // namespace

KvStorage CpuRecurrent::make_states(int n_blocks, int n_layers, const GatedDeltaNetShape& shape) {
  const int n_heads = shape.n_heads_of_key();
  const int floats = gated_delta_net_scratch(shape.key_dim, n_heads * shape.value_dim) +
                     kGatedDeltaNetRows * n_heads * 2;
  scratch_size_ = (floats + kFloatsOfLine - 1) / kFloatsOfLine * kFloatsOfLine;
  scratch_ = AlignedBuffer(sizeof(float) * static_cast<size_t>(scratch_size_) *
                           static_cast<size_t>(backend_.n_threads()));
  return make_storage(n_blocks, n_layers, shape.state_size());
}

KvStorage CpuRecurrent::make_states(int n_blocks, int n_layers, const ShortConvShape& shape) {
  return make_storage(n_blocks, n_layers, shape.state_size());
}

KvStorage CpuRecurrent::make_storage(int n_blocks, int n_layers, int state_size) {
  KvStorage states;
  states.n_blocks = n_blocks;
  states.n_layers = n_layers;
  states.dtype = DType::kF32;
  states.block_bytes =
      sizeof(float) * static_cast<size_t>(state_size) * static_cast<size_t>(n_layers);
  states.data = backend_.make_buffer(states.block_bytes * static_cast<size_t>(n_blocks));
  return states;
}

void CpuRecurrent::gated_delta_net(const Buffer& x, int n_rows, const GatedDeltaNetLayer& layer,
                                   KvStorage& states, Buffer& y) {
  const GatedDeltaNetShape& shape = layer.shape;
  const std::span<const SequenceRows> sequences = backend_.batch_.sequences;
  const int64_t n_items = static_cast<int64_t>(sequences.size()) * shape.n_key_heads;
  const int64_t work = int64_t{4} * n_rows * shape.value_size() * shape.key_dim;
  backend_.for_range(n_items, 1, work, [&](int64_t begin, int64_t end, int worker) {
    float* const scratch = scratch_.as<float>() + worker * scratch_size_;
    for (int64_t item = begin; item < end; ++item) {
      const SequenceRows& rows = sequences[static_cast<size_t>(item / shape.n_key_heads)];
      compute(rows, static_cast<int>(item % shape.n_key_heads), x, layer, states, y, scratch);
    }
  });
}

void CpuRecurrent::compute(const SequenceRows& rows, int key_head, const Buffer& x,
                           const GatedDeltaNetLayer& layer, KvStorage& states, Buffer& y,
                           float* scratch) {
  const GatedDeltaNetShape& shape = layer.shape;
  const int n_heads = shape.n_heads_of_key();
  const int first_value = shape.first_head(key_head) * shape.value_dim;
  const int first_gate = shape.n_channels() + shape.value_size();
  const int64_t first_state = int64_t{first_value} * shape.key_dim;
  const int64_t history = int64_t{shape.value_size()} * shape.key_dim;
  const int32_t* const table = rows.block_tables[static_cast<size_t>(states.group)];
  float* const gates = scratch + gated_delta_net_scratch(shape.key_dim, n_heads * shape.value_dim);
  GatedDeltaNetArgs args{.n_heads = n_heads,
                         .head_step = shape.head_step(),
                         .key_dim = shape.key_dim,
                         .value_dim = shape.value_dim,
                         .conv_size = shape.conv_size,
                         .x_stride = shape.row_size(),
                         .q = key_head * shape.key_dim,
                         .k = shape.key_size() + key_head * shape.key_dim,
                         .v = 2 * shape.key_size() + first_value,
                         .z = shape.n_channels() + first_value,
                         .convolution = layer.convolution->values.as<float>(),
                         .n_channels = shape.n_channels(),
                         .gates = gates,
                         .norm_weight = layer.norm->weight.values.as<float>(),
                         .norm_eps = layer.norm->eps,
                         .y_stride = shape.value_size()};
  const float* from =
      rows.state_from < 0 ? nullptr : state_of(states, rows.state_from, layer.layer);
  for (int done = 0; done < rows.n_rows; done += args.n_rows) {
    const int position = rows.first_position + done;
    const int left_in_block = states.block_size - position % states.block_size;
    args.n_rows = std::min({rows.n_rows - done, left_in_block, kGatedDeltaNetRows});
    const int64_t row = rows.first_row + done;
    args.x = x.as<float>() + row * args.x_stride;
    args.y = y.as<float>() + row * args.y_stride + first_value;
    for (int t = 0; t < args.n_rows; ++t) {
      for (int h = 0; h < n_heads; ++h) {
        const int head = shape.first_head(key_head) + h * shape.head_step();
        const float* const of_row = args.x + t * args.x_stride + first_gate;
        const float b = of_row[head];
        const float a = of_row[shape.n_value_heads + head];
        const float decay = layer.decay->values.as<float>()[head];
        float* const gate = gates + (t * n_heads + h) * 2;
        gate[0] = std::exp(decay * softplus(a + layer.decay_bias->values.as<float>()[head]));
        gate[1] = sigmoid(b);
      }
    }
    float* const to = state_of(states, table[position / states.block_size], layer.layer);
    args.state_from = from == nullptr ? nullptr : from + first_state;
    args.history_from = from == nullptr ? nullptr : from + history;
    args.state_to = to + first_state;
    args.history_to = to + history;
    backend_.kernels_.gated_delta_net(args, scratch);
    from = to;
  }
}

// An item is some channels of a sequence's rows.
void CpuRecurrent::short_conv(const Buffer& x, int n_rows, const ShortConvLayer& layer,
                              KvStorage& states, Buffer& y) {
  const ShortConvShape& shape = layer.shape;
  const std::span<const SequenceRows> sequences = backend_.batch_.sequences;
  const int64_t n_parts = (shape.width + kConvChannels - 1) / kConvChannels;
  const int64_t work = int64_t{n_rows} * shape.width * (shape.conv_size + 2);
  const auto n_items = static_cast<int64_t>(sequences.size()) * n_parts;
  backend_.for_range(n_items, 1, work, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const SequenceRows& rows = sequences[static_cast<size_t>(item / n_parts)];
      const int first = static_cast<int>(item % n_parts) * kConvChannels;
      const int32_t* const table = rows.block_tables[static_cast<size_t>(states.group)];
      ShortConvArgs args{.width = shape.width,
                         .conv_size = shape.conv_size,
                         .begin = first,
                         .end = std::min(first + kConvChannels, shape.width),
                         .convolution = layer.convolution->values.as<float>()};
      if (rows.state_from >= 0) args.from = state_of(states, rows.state_from, layer.layer);
      for (int done = 0; done < rows.n_rows; done += args.n_rows) {
        const int position = rows.first_position + done;
        args.n_rows =
            std::min(rows.n_rows - done, states.block_size - position % states.block_size);
        args.x = x.as<float>() + int64_t{rows.first_row + done} * shape.row_size();
        args.y = y.as<float>() + int64_t{rows.first_row + done} * shape.width;
        args.to = state_of(states, table[position / states.block_size], layer.layer);
        backend_.kernels_.short_conv(args);
        args.from = args.to;
      }
    }
  });
}

}  // namespace pb::cpu
