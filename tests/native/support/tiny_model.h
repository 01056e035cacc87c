// A random model of a few thousand weights, made in memory: what tests of weights, forward pass and
// engine run on.
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/weights.h"

namespace pb::test {

struct TinyModel {
  ModelConfig config;
  TensorMap tensors;
  std::deque<std::vector<float>> storage;  // what the views point to; its elements never move
  std::mt19937 random{1};

  // A random tensor under `name`, of numbers about `centre`.
  void add(const std::string& name, int rows, int cols, float centre = 0.0f, float spread = 0.2f);

  float* values(const std::string& name) {
    return static_cast<float*>(const_cast<void*>(tensors.at(name).data));
  }
};

// Rotary positions, RMSNorm, gated MLP, grouped queries, q and k norms, an untied head.
TinyModel rotary_model();

// The same with norms after the blocks too, or alone, which q and k have over all heads then; soft
// caps and scales; a frequency of its own for each layer.
TinyModel post_norm_model(bool pre_norm);
inline TinyModel gemma_model() { return post_norm_model(true); }
inline TinyModel olmo_model() { return post_norm_model(false); }

// rotary_model with an MLP of xIELU, without a gate.
TinyModel xielu_model();

// Gemma 4's parts: layers that see all have fewer and wider heads of keys and values, the last two
// read those of the first two and have wider MLPs; v is normed, layers are scaled and have inputs.
TinyModel varied_model();

// Learned positions, LayerNorm, plain GELU MLP, biases everywhere, a tied head.
TinyModel learned_model();

// rotary_model with experts in its first layer: 2 of 5 a row.
TinyModel moe_model();

// moe_model with sinks, biases of experts and router, and a bounded activation.
TinyModel oss_model();

// rotary_model with experts in its first layer, whose MLP is a shared expert.
TinyModel shared_expert_model();

// shared_expert_model whose shared expert has no gate.
TinyModel ungated_shared_expert_model();

// rotary_model whose attention and MLP have the same input.
TinyModel parallel_model();

// rotary_model with norms of q and k after their rotation, and an MLP of squared ReLU without a
// gate.
TinyModel squared_model();

// moe_model whose router has biases of the parts of a softmax.
TinyModel biased_router_model();

// shared_expert_model with a recurrent first layer, and a gate on the attention of the second.
TinyModel recurrent_model();

// gemma_model with experts beside the MLP of its first layer: 2 of 5 a row.
TinyModel beside_model();

// All layers in one group, and of one shape.
std::vector<LayerStorage> one_storage(const ModelConfig& config);
ModelKv one_group(const ModelConfig& config, KvStorage storage);

}  // namespace pb::test
