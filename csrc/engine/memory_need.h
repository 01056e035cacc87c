// Computes the memory that an engine takes, from the shapes of its tensors, before it is made.
#pragma once

#include <cstddef>

#include "config/config.h"
#include "engine/engine.h"
#include "kv/layer_groups.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace pb {

// Divides the model's layers into KV groups. The windows of an encoder are ignored: releasing
// blocks that have left a window would save nothing, because the whole text is computed in one
// pass.
LayerGroups model_layer_groups(const ModelConfig& config, const EngineOptions& options,
                               const Backend& backend, int n_blocks);

// Makes a storage of n_blocks blocks.
KvStorage make_storage(const ModelConfig& config, const EngineOptions& options, Backend& backend,
                       const LayerStorage& storage, int n_blocks);

// Returns the bytes of the KV of all groups, of which group 0 has n_blocks blocks.
size_t kv_bytes(const ModelConfig& config, const EngineOptions& options, Backend& backend,
                int n_blocks);

// The most patches that a vision tower computes at once.
inline constexpr int kTowerRows = 1 << 14;

// Returns the limits of a vision tower: as many patches as a sequence of n_positions can have, up
// to kTowerRows. Keys and values of patches have at least the precision of bf16.
TowerLimits tower_limits(const VisionConfig& vision, const EngineOptions& options, int n_positions);

// Bytes that an engine takes. `buffers` is an estimate: activations, logits and rope tables.
struct MemoryNeed {
  size_t weights = 0;
  size_t kv = 0;
  size_t buffers = 0;
  int n_blocks = 0;  // KV blocks of group 0
};

// Returns the need of an engine with these arguments; `vision` is null without a tower. Reads the
// shapes and dtypes of the tensors, not their values; matrices of published models are usually
// compressed if the backend can. With kAutoContext, the KV takes half of what weights and buffers
// leave of the available bytes; if they leave too little, it is the least that such an engine
// accepts.
MemoryNeed memory_need(const ModelConfig& config, const TensorMap& tensors,
                       const EngineOptions& options, Backend& backend, size_t available,
                       const VisionConfig* vision = nullptr);

}  // namespace pb
