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
//   layers.{i}.{...}: layer_weights.def has their names and shapes
//   layers.{i}.output_scale.weight (1)
//   per_layer_embeddings.embedding (vocab, layers * per_layer_embedding_size) ·
//   per_layer_embeddings.proj.weight (layers * per_layer_embedding_size, hidden) ·
//   per_layer_embeddings.norm.weight (per_layer_embedding_size)
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

// The experts of a layer.
struct Experts {
  ExpertMatrices gate_up;  // of (2 moe.intermediate, hidden): gate, then up
  ExpertMatrices down;     // of (hidden, moe.intermediate)
};

// The weights from which per-layer embeddings are computed.
struct PerLayerEmbeddingTables {
  Matrix embedding;  // (vocab, n_layers * per_layer_embedding_size)
  Matrix proj;       // (n_layers * per_layer_embedding_size, hidden)
  Norm norm;  // (per_layer_embedding_size), of each layer's part of the projection, and of the sum
};

struct LayerWeights {
#define PB_LAYER_WEIGHT(type, member, condition, ...) type member = {};
#include "model/layer_weights.def"
#undef PB_LAYER_WEIGHT

  // Calls visit(member) for each of them.
  template <typename Visit>
  void visit(Visit&& visit) const {
#define PB_LAYER_WEIGHT(type, member, condition, ...) visit(member);
#include "model/layer_weights.def"
#undef PB_LAYER_WEIGHT
  }
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
