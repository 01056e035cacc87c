// The weights of a model, packed by a backend and named as in the papers.
//
// The presence and shape of each tensor are checked where it is used; nothing is guessed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "config/vision_config.h"
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
// A vision tower:
//   tower.patch.{weight,bias} (hidden, patch_size) · tower.positions.weight (positions, hidden)
//   tower.pre_norm, tower.final_norm .{weight,bias} · tower.layers.{i}.{...}
//   tower.projector, tower.deepstack.{d} .norm_before, norm_after, linears.{j} .{weight,bias}
using TensorMap = std::map<std::string, TensorView>;

// Matrices over the same input whose outputs are columns of the same rows. Weights with the same
// dtype and input order are combined into one matrix.
using Matrices = std::vector<Matrix>;

// Locates the cache file that keeps packed weights from one start to the next.
struct WeightsCache {
  std::string directory;  // an existing directory; empty = no cache
  std::string name;       // name of the model, with which the file name begins
  std::string key;        // identifies the checkpoint's contents and the code that read it
};

// Describes how a start used the cache.
struct CacheUse {
  std::string state = "off";  // "off" | "mapped" | "copied" | "written" | "failed"
  std::string problem;        // what failed, for a warning; the weights are complete nevertheless
};

struct LoadOptions {
  WeightsCache cache;
  // Called with the number of bytes of the checkpoint that are packed so far, and the total number
  // of bytes. An exception of this function ends the load.
  std::function<void(int64_t done, int64_t total)> progress;
};

// The packed experts of a layer.
struct Experts {
  ExpertMatrices gate_up;  // each (2 moe.intermediate, hidden): gate, then up
  ExpertMatrices down;     // each (hidden, moe.intermediate)
};

// The weights from which per-layer embeddings are computed.
struct PerLayerEmbeddingTables {
  Matrix embedding;  // (vocab, n_layers * per_layer_embedding_size)
  Matrix proj;       // (n_layers * per_layer_embedding_size, hidden)
  // (per_layer_embedding_size): norm of each layer's part of the projection; scales the sum too
  Norm norm;
};

struct LayerWeights {
#define PB_LAYER_WEIGHT(type, member, condition, ...) type member = {};
#include "model/layer_weights.def"
#undef PB_LAYER_WEIGHT

  // Calls visit(member) for each member.
  template <typename Visit>
  void visit(Visit&& visit) const {
#define PB_LAYER_WEIGHT(type, member, condition, ...) visit(member);
#include "model/layer_weights.def"
#undef PB_LAYER_WEIGHT
  }
};

struct TowerWeights;

struct Weights {
  Matrix token_embedding;                    // (vocab, hidden)
  std::optional<Matrix> position_embedding;  // (positions, hidden), where positions are learned
  std::optional<PerLayerEmbeddingTables> per_layer_embeddings;
  std::vector<LayerWeights> layers;
  Norm final_norm;                            // (hidden)
  std::optional<Matrix> head;                 // (vocab, hidden); none = tied to token_embedding
  std::shared_ptr<const TowerWeights> tower;  // null = no vision tower

  CacheUse cache;

  // Calls visit(matrix) for each matrix.
  void for_each_matrix(FunctionRef<void(const Matrix&)> visit) const;
  // Returns the dtypes of the matrices in descending order of their number of elements.
  std::vector<DType> dtypes() const;
  // Returns the multiply-adds of the matrix products of a row in all layers.
  double products_of_row(const MoeConfig& moe) const;
  const Matrix& output_head() const { return head ? *head : token_embedding; }
  size_t bytes() const;         // returns the memory that the weights occupy
  size_t bytes_beside() const;  // returns that of the weights without their matrices
};

// The weights of a projector.
struct ProjectorWeights {
  std::optional<Norm> norm_before;  // (hidden)
  std::optional<Norm> norm_after;   // (pooled_size)
  std::vector<Matrix> linears;      // the first one has pooled_size inputs
};

// The weights of a vision tower.
struct TowerWeights {
  Matrix patch;                  // (hidden, patch_size)
  std::vector<float> positions;  // (n_positions, hidden), in host memory
  std::optional<Norm> pre_norm;
  Weights blocks;  // the layers only
  std::optional<Norm> final_norm;
  ProjectorWeights projector;
  std::vector<ProjectorWeights> deepstack;

  size_t bytes_beside() const;  // returns the memory of the weights without their matrices
};

// Packs `tensors` for `backend` with matrices in `dtype`, or reads the packed weights from the
// cache. `vision` is null if the model has no vision tower; matrices of a tower are int8 if `dtype`
// is int4. Norms stay f32. Matrices from tensors with keeps_dtype stay in their own dtype if the
// backend supports it natively. Pages of mapped files are dropped once they have been read.
//
// Throws kModelFormat, naming the tensor, if a tensor is missing, has another shape than `config`
// specifies, contains a number that is not finite, or is not used by this model. Throws kConfig if
// the backend does not support the model's head sizes in attention or in GatedDeltaNet. Problems
// with the cache are never thrown.
Weights load_weights(const ModelConfig& config, const TensorMap& tensors, DType dtype,
                     Backend& backend, const LoadOptions& options = {},
                     const VisionConfig* vision = nullptr);

}  // namespace pb
