// The weights of a model, packed by a backend and named as in the papers.
//
// Each tensor is checked for presence and shape where it is used; nothing is guessed.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "ops/backend.h"

namespace pb {

// Tensors of a checkpoint by canonical name. A linear weight is (n_out, n_in).
//   token_embedding (vocab, hidden) · position_embedding (positions, hidden)
//   layers.{i}.attn_norm.{weight,bias} · layers.{i}.{q,k,v,o}.{weight,bias}
//   layers.{i}.{q_norm,k_norm}.weight (head_dim)
//   layers.{i}.mlp_norm.{weight,bias} · layers.{i}.{gate,up,down}.{weight,bias}
//   final_norm.{weight,bias} · head.weight
using TensorMap = std::map<std::string, TensorView>;

struct LayerWeights {
  Norm attn_norm;              // (hidden)
  Matrix qkv;                  // (q_size + 2 kv_size, hidden): q, then k, then v
  std::optional<Norm> q_norm;  // (head_dim), over each head of q
  std::optional<Norm> k_norm;  // (head_dim), over each head of k
  Matrix o;                    // (hidden, q_size)
  Norm mlp_norm;               // (hidden)
  Matrix gate_up;              // (2 intermediate, hidden): gate, then up; up alone where not gated
  Matrix down;                 // (hidden, intermediate)
};

struct Weights {
  Matrix token_embedding;                    // (vocab, hidden)
  std::optional<Matrix> position_embedding;  // (positions, hidden), where positions are learned
  std::vector<LayerWeights> layers;
  Norm final_norm;             // (hidden)
  std::optional<Matrix> head;  // (vocab, hidden); none = tied to token_embedding

  const Matrix& output_head() const { return head ? *head : token_embedding; }
  size_t bytes() const;  // that the weights occupy
};

// Packs `tensors` for `backend` with matrices in `dtype`; norms and biases stay f32. Throws
// kModelFormat naming the tensor where one is missing, has another shape than `config` says, holds
// a number that is not finite, or is of no use to this model.
Weights load_weights(const ModelConfig& config, const TensorMap& tensors, DType dtype,
                     Backend& backend);

}  // namespace pb
