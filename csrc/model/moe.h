// The MLP of a layer that has experts: a router gives every row few of many small gated MLPs.
//
// Mixtral (Jiang et al. 2024, arXiv:2401.04088), Qwen3-MoE (Qwen team 2025, arXiv:2505.09388) and
// gpt-oss (OpenAI 2025, arXiv:2508.10925). In Gemma 4 26B-A4B, an MLP is beside the experts; in
// Qwen 3.5's mixtures it is an expert that all rows share, each as far as a gate says. LFM2's
// router has sigmoids, or biases by which experts are chosen but not weighed.
#pragma once

#include "config/config.h"
#include "model/activation_set.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace pb {

class Moe {
 public:
  // Allocates all buffers, for passes of max_rows rows. `config` and `backend`, which has
  // experts(), must outlive this.
  Moe(const ModelConfig& config, const Weights& weights, Backend& backend, int max_rows);

  // x += the weighted sum of the experts of norm(x). The layer has experts; `normed` has a place
  // for the dtypes of their router, gate and up.  x (n_rows, hidden) f32
  void run(int n_rows, const LayerWeights& layer, ActivationSet& normed, Buffer& x);

  // mlp_out = norm(mlp_out) + norm(the weighted sum of the experts of norm(x)), of a layer that has
  // experts beside its MLP.  x, mlp_out (n_rows, hidden) f32
  void run_beside(int n_rows, const LayerWeights& layer, ActivationSet& normed, const Buffer& x,
                  Buffer& mlp_out);

  // x += the weighted sum of the experts of norm(x) + sigmoid(shared_gate norm(x)) shared, of a
  // layer that has a shared expert.  shared, x (n_rows, hidden) f32
  void run_with_shared(int n_rows, const LayerWeights& layer, ActivationSet& normed,
                       const Buffer& shared, Buffer& x);

 private:
  // outputs_ = what the experts that router_norm(x) chooses make of norm(x).
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
  Buffer shared_logits_;     // (max_rows) f32, of shared experts
  Buffer combined_;          // (max_rows, hidden) f32, where it is normed before it is added
};

}  // namespace pb
