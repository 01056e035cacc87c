#include "engine/memory_need.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "engine/context_by_memory.h"
#include "model/weights_cache.h"

namespace pb {
namespace {

size_t size(int64_t count) { return static_cast<size_t>(std::max(int64_t{0}, count)); }

// Returns the floats of a row in the buffers of a pass.
size_t floats_per_row(const ModelConfig& config) {
  int64_t widest = 0;
  for (int layer = 0; layer < config.n_layers; ++layer) {
    const LayerShape shape = config.shape(layer);
    const int64_t q_size = int64_t{config.n_heads} * shape.head_dim;
    const int64_t inputs = config.is_recurrent(layer) && !config.has_short_conv()
                               ? int64_t{config.gated_delta_net.row_size()}
                               : q_size + 2 * int64_t{shape.kv_size()};
    widest = std::max(widest, inputs + q_size + 3 * int64_t{shape.intermediate_size});
  }
  int64_t of_experts = 0;
  if (config.moe.n_experts > 0) {
    of_experts = int64_t{config.moe.n_experts_per_row} *
                 (3 * int64_t{config.moe.intermediate_size} + config.hidden_size);
  }
  return size(4 * int64_t{config.hidden_size} + widest + of_experts);
}

size_t buffer_bytes(const ModelConfig& config, const EngineOptions& options, Backend& backend,
                    int n_blocks) {
  const int64_t positions =
      std::min(int64_t{config.max_position_embeddings}, int64_t{n_blocks} * options.block_size);
  int64_t rope_columns = 0;
  for (const RopeConfig& rope : config.ropes) {
    const auto n_frequencies =
        static_cast<int64_t>(rope.frequencies(static_cast<int>(positions)).size());
    rope_columns += 2 * n_frequencies * (rope.query_beta == 0.0f ? 1 : 2);
  }
  const size_t floats =
      size(options.n_ubatch) * floats_per_row(config) +
      size(backend.output_rows()) * size(int64_t{config.vocab_size} + 2 * config.hidden_size) +
      size(positions * rope_columns);
  return floats * sizeof(float);
}

}  // namespace

LayerGroups model_layer_groups(const ModelConfig& config, const EngineOptions& options,
                               const Backend& backend, int n_blocks) {
  std::vector<LayerKv> layers;
  for (int layer = 0; layer < config.n_layers; ++layer) {
    const LayerShape shape = config.shape(layer);
    if (config.is_recurrent(layer)) {
      layers.push_back({.state_size = config.state_size()});
      continue;
    }
    const int window = config.causal ? config.sliding_windows[static_cast<size_t>(layer)] : 0;
    layers.push_back({.window = window,
                      .shape = {shape.n_kv_heads, shape.head_dim},
                      .read_from = shape.kv_layer});
  }
  return group_layers(layers, {.n_blocks = n_blocks,
                               .block_size = options.block_size,
                               .n_sequences = options.n_parallel,
                               .n_rows = std::max(options.n_ubatch, kStepRows),
                               .max_groups = backend.max_layer_groups()});
}

KvStorage make_storage(const ModelConfig& config, const EngineOptions& options, Backend& backend,
                       const LayerStorage& storage, int n_blocks) {
  const auto make_states = [&](const auto& shape) {
    return backend.recurrent().make_states(n_blocks, storage.n_layers, shape);
  };
  KvStorage made =
      storage.state_size == 0
          ? backend.make_kv(n_blocks, options.block_size, storage.n_layers, storage.shape.n_heads,
                            storage.shape.head_dim, options.kv_dtype)
      : config.has_short_conv() ? make_states(config.short_conv)
                                : make_states(config.gated_delta_net);
  made.block_size = options.block_size;
  made.group = storage.group;
  return made;
}

size_t kv_bytes(const ModelConfig& config, const EngineOptions& options, Backend& backend,
                int n_blocks) {
  const LayerGroups made = model_layer_groups(config, options, backend, n_blocks);
  size_t bytes = 0;
  for (const LayerStorage& storage : made.storages) {
    const LayerGroup& group = made.groups[static_cast<size_t>(storage.group)];
    bytes += make_storage(config, options, backend, storage, 0).block_bytes *
             static_cast<size_t>(group.n_blocks);
  }
  return bytes;
}

TowerLimits tower_limits(const VisionConfig& vision, const EngineOptions& options,
                         int n_positions) {
  const int64_t n_rows = int64_t{n_positions} * vision.projector.group;
  return {.n_rows = static_cast<int>(std::min(n_rows, int64_t{kTowerRows})),
          .n_ubatch = options.n_ubatch,
          .kv_dtype = options.kv_dtype == DType::kF32 ? DType::kF32 : DType::kBF16};
}

MemoryNeed memory_need(const ModelConfig& config, const TensorMap& tensors,
                       const EngineOptions& options, Backend& backend, size_t available,
                       const VisionConfig* vision) {
  config.validate();
  options.validate();
  if (vision != nullptr) vision->validate();
  MemoryNeed need{.weights = packed_bytes(tensors, options.dtype, backend, true)};
  for (const auto& [name, view] : tensors) {
    if (view.cols == 1) need.weights += size(view.rows) * sizeof(float);
  }
  const auto blocks_of = [&](int n_tokens) {
    return (n_tokens + options.block_size - 1) / options.block_size;
  };
  const auto bytes_of = [&](int n_blocks) { return kv_bytes(config, options, backend, n_blocks); };
  const bool is_auto = options.n_ctx == kAutoContext;
  need.n_blocks = blocks_of(is_auto ? config.max_position_embeddings : options.n_ctx);
  need.buffers = buffer_bytes(config, options, backend, need.n_blocks);
  if (vision != nullptr) {
    const int64_t positions = std::min(int64_t{config.max_position_embeddings},
                                       int64_t{need.n_blocks} * options.block_size);
    const TowerLimits limits = tower_limits(*vision, options, static_cast<int>(positions));
    need.buffers += tower_bytes(*vision, limits) +
                    size(limits.n_ubatch) * floats_per_row(vision->layers) * sizeof(float);
  }
  if (is_auto) {
    const size_t taken = need.weights + need.buffers;
    try {
      need.n_blocks = context_by_memory({.memory = (available - std::min(available, taken)) / 2,
                                         .bytes_of = bytes_of,
                                         .block_size = options.block_size,
                                         .n_sequences = options.n_parallel,
                                         .n_positions = config.max_position_embeddings});
    } catch (const Error&) {
      need.n_blocks = blocks_of(std::min(kLeastAutoContext, config.max_position_embeddings));
    }
  }
  need.kv = bytes_of(need.n_blocks);
  return need;
}

}  // namespace pb
