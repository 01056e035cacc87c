// Per-layer embeddings (Gemma 3n and 4): a second embedding of each token that is divided into one
// part per layer. Each part is an additional input of its layer.
#pragma once

#include "config/config.h"
#include "model/activation_set.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace pb {

class PerLayerEmbeddings {
 public:
  // Allocates all buffers for passes of max_rows rows. `config`, `weights` and `backend` must
  // outlive this object, and `weights` must have per_layer_embeddings.
  PerLayerEmbeddings(const ModelConfig& config, const Weights& weights, Backend& backend,
                     int max_rows);

  // Computes the inputs of all layers: (scale * E[token] + norm(W x / sqrt(hidden))) / sqrt(2). The
  // norm is applied to each layer's part separately. `rounded` must have activations for W.
  //
  // x: (n_rows, hidden) f32, the token embeddings
  void make(int n_rows, const Buffer& x, ActivationSet& rounded);

  // Computes x = (x + norm(W_proj (act(W_gate x) * input of the layer))) * scale of the layer.
  // `rounded` must have activations for W_gate.
  //
  // x, out: (n_rows, hidden) f32; `out` is scratch
  void add(int n_rows, int layer, Buffer& x, ActivationSet& rounded, Buffer& out);

 private:
  const ModelConfig& config_;
  const Weights& weights_;
  Backend& backend_;
  Buffer inputs_;        // (max_rows, n_layers, per_layer_embedding_size) f32
  Buffer projected_;     // (max_rows, n_layers, per_layer_embedding_size) f32
  Buffer gate_;          // (max_rows, per_layer_embedding_size) f32
  ActivationSet gated_;  // (max_rows, per_layer_embedding_size)
};

}  // namespace pb
