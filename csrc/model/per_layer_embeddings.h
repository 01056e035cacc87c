// Inputs of layers: a second embedding of each token, of which every layer takes a part of its own
// (Gemma 3n and 4, where they are called per-layer embeddings).
#pragma once

#include "config/config.h"
#include "model/activation_set.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace pb {

class PerLayerEmbeddings {
 public:
  // Allocates all buffers, for passes of max_rows rows. `config`, `weights`, which have
  // per_layer_embeddings, and `backend` must outlive this.
  PerLayerEmbeddings(const ModelConfig& config, const Weights& weights, Backend& backend,
                     int max_rows);

  // Makes the inputs of all layers: (scale * E[token] + norm(W x / sqrt(hidden))) / sqrt(2), the
  // norm being of each layer's part. `rounded` has a place for the dtype of W.
  // x (n_rows, hidden) f32: the embedding
  void make(int n_rows, const Buffer& x, ActivationSet& rounded);

  // x = (x + norm(W_proj (act(W_gate x) * input of the layer))) * scale of the layer. `rounded` has
  // a place for the dtype of W_gate.  x, out (n_rows, hidden) f32: out is scratch
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
