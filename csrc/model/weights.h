// The weights of a model, packed by a backend and named as in the papers.
//
// Each tensor is checked for presence and shape where it is used; nothing is guessed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "config/config.h"
#include "ops/backend.h"

namespace pb {

// Tensors of a checkpoint by canonical name. A linear weight is (n_out, n_in).
//   token_embedding (vocab, hidden) · position_embedding (positions, hidden)
//   layers.{i}.attn_norm.{weight,bias} · layers.{i}.{q,k,v,o}.{weight,bias}
//   layers.{i}.{q_norm,k_norm}.weight (head_dim), or (q_size) and (kv_size)
//   layers.{i}.{attn_post_norm,mlp_post_norm}.weight (hidden) · layers.{i}.output_scale.weight (1)
//   layers.{i}.input_gate.weight (layer_input, hidden) · layers.{i}.input_proj.weight (hidden,
//   layer_input) · layers.{i}.input_post_norm.weight (hidden) · layer_inputs.embedding (vocab,
//   layers * layer_input) · layer_inputs.proj.weight (layers * layer_input, hidden) ·
//   layer_inputs.norm.weight (layer_input)
//   layers.{i}.mlp_norm.{weight,bias} · layers.{i}.{gate,up,down}.{weight,bias}
//   layers.{i}.sinks.weight (heads) · layers.{i}.attn_gate.weight (q_size, hidden)
//   layers.{i}.delta.{qkv,z,b,a,o}.weight, .delta.convolution (channels, conv_size),
//   .delta.{decay,decay_bias} (value_heads), .delta.norm.weight (value_dim): instead of those of
//   attention, in a recurrent layer; or layers.{i}.short_conv.in.weight (3 hidden, hidden),
//   .short_conv.o.weight (hidden, hidden), .short_conv.convolution (hidden, conv_size)
//   layers.{i}.router.{weight,bias} (experts, hidden),
//   layers.{i}.experts.{e}.{gate,up,down}.{weight,bias}:
//   instead of gate, up and down, where the layer has experts, or beside them; then with
//   layers.{i}.{router_norm,experts_norm,mlp_out_norm,experts_out_norm}.weight (hidden) ·
//   layers.{i}.expert_scales.weight (experts); or with layers.{i}.shared_gate (hidden), where the
//   MLP is a shared expert; with layers.{i}.expert_bias (experts) where sigmoids choose
//   final_norm.{weight,bias} · head.weight
using TensorMap = std::map<std::string, TensorView>;

// Matrices over one input, whose outputs lie side by side: one where their dtypes allow it.
using Matrices = std::vector<Matrix>;

// The place of packed weights between two starts.
struct WeightsCache {
  std::string directory;  // that exists; empty = nowhere
  std::string name;       // of the model, which the file's name begins with
  std::string key;        // of the checkpoint's contents, and of the code that read it
};

// The use that a start made of the cache.
struct CacheUse {
  std::string state = "off";  // "off" | "mapped" | "copied" | "written" | "failed"
  std::string problem;        // what went wrong on the way, for a warning; the weights are whole
};

struct LoadOptions {
  WeightsCache cache;
  // Called with the bytes of the checkpoint that are packed by now, and with all of them. It may
  // throw, which ends the load.
  std::function<void(int64_t done, int64_t total)> progress;
};

struct Experts {
  Matrix router;                 // (n_experts, hidden), f32 whatever the others are
  ExpertMatrices gate_up;        // of (2 moe.intermediate, hidden): gate, then up
  ExpertMatrices down;           // of (hidden, moe.intermediate)
  std::optional<Vector> scales;  // (n_experts): of how much an expert's result counts
  std::optional<Vector> bias;    // (n_experts): of its sigmoid, where experts are chosen
};

// Norms of a layer with experts beside its MLP.
struct BesideNorms {
  Norm router;       // (hidden), of what enters the router
  Norm experts;      // (hidden), of what enters the experts
  Norm mlp_out;      // (hidden), of what the MLP gives
  Norm experts_out;  // (hidden), of what the experts give
};

// The weights of a layer that apply its per-layer embedding (PerLayerEmbeddings).
struct PerLayerEmbeddingWeights {
  Matrix gate;     // (layer_input_size, hidden)
  Matrix proj;     // (hidden, layer_input_size)
  Norm post_norm;  // (hidden), of what is added
};

// The tables that the per-layer embeddings are computed from.
struct PerLayerEmbeddingTables {
  Matrix embedding;  // (vocab, n_layers * layer_input_size)
  Matrix proj;       // (n_layers * layer_input_size, hidden)
  Norm norm;         // (layer_input_size), of each layer's part of the projection, and of the sum
};

// The weights of a GatedDeltaNet layer besides its products (DeltaLayer).
struct DeltaWeights {
  Vector convolution;  // (conv_size, channels)
  Vector decay;        // (n_value_heads), below 0
  Vector decay_bias;   // (n_value_heads)
  Norm norm;           // (value_dim)
};

struct LayerWeights {
  std::optional<Norm> attn_norm;  // (hidden), of what enters attention
  // (q_size + 2 kv_size, hidden): q, then k, then v; q alone without KV of its own; of a recurrent
  // layer (delta.row_size() or short_conv.row_size(), hidden)
  Matrices qkv;
  Matrices attn_gate;  // (q_size, hidden), of what attention gives; empty where there is none
  std::optional<Norm> q_norm;   // (head_dim), over each head of q, or (q_size)
  std::optional<Norm> k_norm;   // (head_dim), over each head of k, or (kv_size)
  std::optional<Norm> v_norm;   // (head_dim) of ones, over each head of v
  std::optional<Vector> sinks;  // (n_heads): a logit that takes part in its softmax alone
  Matrix o;  // (hidden, q_size), or (hidden, delta.value_size()), or (hidden, short_conv.width)
  std::optional<DeltaWeights> delta;   // of a recurrent layer of the gated delta rule
  std::optional<Vector> short_conv;    // (conv_size, width), of one of a short convolution
  std::optional<Norm> attn_post_norm;  // (hidden), of what attention adds
  std::optional<Norm> mlp_norm;        // (hidden), of what enters the MLP
  Matrices gate_up;  // (2 intermediate, hidden): gate, then up; up alone where not gated
  Matrix down;       // (hidden, intermediate)
  std::optional<Norm> mlp_post_norm;  // (hidden), of what the MLP adds
  std::optional<Experts> experts;     // instead of gate_up and down, or beside them
  std::optional<BesideNorms> beside;  // where the layer has both
  std::optional<Matrix> shared_gate;  // (1, hidden), f32: where its MLP is a shared expert
  std::optional<PerLayerEmbeddingWeights> input;
};

struct Weights {
  Matrix token_embedding;                    // (vocab, hidden)
  std::optional<Matrix> position_embedding;  // (positions, hidden), where positions are learned
  std::optional<PerLayerEmbeddingTables> per_layer_embeddings;
  std::vector<LayerWeights> layers;
  Norm final_norm;             // (hidden)
  std::optional<Matrix> head;  // (vocab, hidden); none = tied to token_embedding

  CacheUse cache;

  // Calls visit(matrix) for each of them.
  void for_each_matrix(FunctionRef<void(const Matrix&)> visit) const;
  // The dtypes of the matrices, that of the most elements first.
  std::vector<DType> dtypes() const;
  const Matrix& output_head() const { return head ? *head : token_embedding; }
  size_t bytes() const;  // that the weights occupy
};

// Packs `tensors` for `backend` with matrices in `dtype`, or takes them packed from the cache;
// norms stay f32. Matrices of tensors that keep their dtype are in that, where the backend can mix
// them. Pages of mapped files are dropped as they have been read. Throws kModelFormat
// naming the tensor where one is missing, has another shape than `config` says, holds a number that
// is not finite, or is of no use to this model; what is wrong with the cache is never thrown.
// Throws kConfig for heads of a size that the backend has no attention, or no gated delta rule,
// for.
Weights load_weights(const ModelConfig& config, const TensorMap& tensors, DType dtype,
                     Backend& backend, const LoadOptions& options = {});

}  // namespace pb
