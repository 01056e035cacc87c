#include "model/per_layer_embeddings.h"

#include <cmath>
#include <cstddef>

namespace pb {
namespace {

Buffer floats(Backend& backend, int rows, int cols) {
  return backend.make_buffer(static_cast<size_t>(rows) * static_cast<size_t>(cols) * sizeof(float));
}

}  // namespace

PerLayerEmbeddings::PerLayerEmbeddings(const ModelConfig& config, const Weights& weights,
                                       Backend& backend, int max_rows)
    : config_(config), weights_(weights), backend_(backend) {
  const int size = config.per_layer_embedding_size;
  inputs_ = floats(backend, max_rows, config.n_layers * size);
  projected_ = floats(backend, max_rows, config.n_layers * size);
  gate_ = floats(backend, max_rows, size);
  gated_ = ActivationSet(backend, max_rows, size);
  for (const LayerWeights& w : weights.layers) gated_.add(*w.input_proj);
}

void PerLayerEmbeddings::make(int n_rows, const Buffer& x, ActivationSet& rounded) {
  const PerLayerEmbeddingTables& tables = *weights_.per_layer_embeddings;
  const auto round = [&](Activations& out) { backend_.round(x, n_rows, out); };
  const Activations& of_x = rounded.made_for(tables.proj, n_rows, round);
  backend_.matmul(of_x, n_rows, tables.proj, projected_, Store::kSet);
  backend_.embed(tables.embedding, config_.per_layer_embedding_scale, inputs_);
  backend_.norm_add(projected_, n_rows * config_.n_layers, tables.norm, inputs_);
}

void PerLayerEmbeddings::add(int n_rows, int layer, Buffer& x, ActivationSet& rounded,
                             Buffer& out) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int size = config_.per_layer_embedding_size;
  const auto round = [&](Activations& out) { backend_.round(x, n_rows, out); };
  const Activations& of_x = rounded.made_for(*w.input_gate, n_rows, round);
  backend_.matmul(of_x, n_rows, *w.input_gate, gate_, Store::kSet);
  const Activations& gated = gated_.made_for(*w.input_proj, n_rows, [&](Activations& out) {
    backend_.multiply_activated(gate_, n_rows, config_.activation, inputs_, config_.n_layers * size,
                                layer * size, out);
  });
  backend_.matmul(gated, n_rows, *w.input_proj, out, Store::kSet);
  backend_.norm_add(out, n_rows, *w.input_post_norm, x);
}

}  // namespace pb
