// The mixture-of-experts (MoE) MLP of a layer: a router chooses a few of many small gated MLPs, the
// experts, for every row.
//
// Mixtral (Jiang et al. 2024, arXiv:2401.04088), Qwen3-MoE (Qwen team 2025, arXiv:2505.09388) and
// gpt-oss (OpenAI 2025, arXiv:2508.10925) have only routed experts. Gemma 4 26B-A4B has an MLP
// beside the experts. The MoE models of Qwen 3.5 have a shared expert, an MLP that computes all
// rows and is scaled by a gate. The router of LFM2 uses sigmoids instead of a softmax; its biases
// affect which experts are chosen but not their weights.
#pragma once

#include "config/config.h"
#include "model/activation_set.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace pb {

class Moe {
 public:
  // Allocates all buffers for passes of max_rows rows. `config` and `backend` must outlive this
  // object, and the backend must have experts().
  Moe(const ModelConfig& config, const Weights& weights, Backend& backend, int max_rows);

  // Computes x += the weighted sum of the experts of norm(x). The layer must have experts, and
  // `normed` activations for the dtypes of their router, gate and up.
  //
  // x: (n_rows, hidden) f32
  void run(int n_rows, const LayerWeights& layer, ActivationSet& normed, Buffer& x);

  // Computes mlp_out = norm(mlp_out) + norm(the weighted sum of the experts of norm(x)), for a
  // layer that has experts beside its MLP.
  //
  // x, mlp_out: (n_rows, hidden) f32
  void run_beside(int n_rows, const LayerWeights& layer, ActivationSet& normed, const Buffer& x,
                  Buffer& mlp_out);

  // Computes x += the weighted sum of the experts of norm(x) + sigmoid(shared_gate norm(x)) *
  // shared, for a layer that has a shared expert, whose output is `shared`.
  //
  // shared, x: (n_rows, hidden) f32
  void run_with_shared(int n_rows, const LayerWeights& layer, ActivationSet& normed,
                       const Buffer& shared, Buffer& x);

 private:
  // Routes the rows by router_norm(x) and writes the outputs of the chosen experts for norm(x) to
  // outputs_.
  void compute(int n_rows, const LayerWeights& layer, const Norm& router_norm, const Norm& norm,
               ActivationSet& normed, const Buffer& x);

  const ModelConfig& config_;
  Backend& backend_;
  Buffer router_logits_;  // (max_rows, n_experts) f32
  Routing routing_;
  ActivationSet gathered_;   // (max_rows * n_experts_per_row, hidden)
  Buffer gate_up_;           // (max_rows * n_experts_per_row, 2 intermediate) f32
  ActivationSet activated_;  // (max_rows * n_experts_per_row, intermediate)
  Buffer outputs_;           // (max_rows * n_experts_per_row, hidden) f32
  Buffer shared_logits_;     // (max_rows) f32: gate logits of the shared expert
  Buffer combined_;          // (max_rows, hidden) f32: the sum of experts before its norm
};

}  // namespace pb
