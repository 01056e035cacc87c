#include "model/moe.h"

#include <cstddef>

namespace pb {
namespace {

Buffer floats(Backend& backend, int rows, int cols) {
  return backend.make_buffer(static_cast<size_t>(rows) * static_cast<size_t>(cols) * sizeof(float));
}

}  // namespace

Moe::Moe(const ModelConfig& config, const Weights& weights, Backend& backend, int max_rows)
    : config_(config), backend_(backend) {
  const MoeConfig& moe = config.moe;
  const int max_pairs = max_rows * moe.n_experts_per_row;
  router_logits_ = floats(backend, max_rows, moe.n_experts);
  routing_ = backend.experts().make_routing(max_rows, moe.n_experts, moe.n_experts_per_row);
  gathered_ = ActivationSet(backend, max_pairs, config.hidden_size);
  activated_ = ActivationSet(backend, max_pairs, moe.intermediate_size);
  for (const LayerWeights& layer : weights.layers) {
    if (!layer.experts) continue;
    gathered_.add(layer.experts->gate_up.dtype());
    activated_.add(layer.experts->down.dtype());
  }
  gate_up_ = floats(backend, max_pairs, 2 * moe.intermediate_size);
  outputs_ = floats(backend, max_pairs, config.hidden_size);
  if (moe.shared_expert) shared_logits_ = floats(backend, max_rows, 1);
  if (moe.beside_mlp) combined_ = floats(backend, max_rows, config.hidden_size);
}

void Moe::run(int n_rows, const LayerWeights& layer, ActivationSet& normed, Buffer& x) {
  compute(n_rows, layer, *layer.mlp_norm, *layer.mlp_norm, normed, x);
  backend_.experts().combine(outputs_, n_rows, routing_, config_.hidden_size, x, Store::kAdd);
}

void Moe::run_with_shared(int n_rows, const LayerWeights& layer, ActivationSet& normed,
                          const Buffer& shared, Buffer& x) {
  compute(n_rows, layer, *layer.mlp_norm, *layer.mlp_norm, normed, x);
  const Matrix& gate = *layer.shared_gate;
  backend_.matmul(normed.of(gate.dtype), n_rows, gate, shared_logits_, Store::kSet);
  ExpertOperations& operations = backend_.experts();
  operations.combine(outputs_, n_rows, routing_, config_.hidden_size, x, Store::kAdd);
  operations.add_shared(shared, shared_logits_, n_rows, config_.hidden_size, x);
}

void Moe::run_beside(int n_rows, const LayerWeights& layer, ActivationSet& normed, const Buffer& x,
                     Buffer& mlp_out) {
  compute(n_rows, layer, *layer.router_norm, *layer.experts_norm, normed, x);
  backend_.experts().combine(outputs_, n_rows, routing_, config_.hidden_size, combined_,
                             Store::kSet);
  backend_.norm_in_place(mlp_out, n_rows, *layer.mlp_out_norm);
  backend_.norm_add(combined_, n_rows, *layer.experts_out_norm, mlp_out);
}

void Moe::compute(int n_rows, const LayerWeights& layer, const Norm& router_norm, const Norm& norm,
                  ActivationSet& normed, const Buffer& x) {
  ExpertOperations& operations = backend_.experts();
  const Experts& experts = *layer.experts;
  const Matrix& router = *layer.router;
  const int n_pairs = n_rows * config_.moe.n_experts_per_row;
  // The router gets inputs that are not rounded: the choice of experts is discontinuous, and
  // rounding would often change it.
  Activations& of_router = normed.of(router.dtype);
  backend_.norm(x, {.n = n_rows}, router_norm, of_router);
  backend_.matmul(of_router, n_rows, router, router_logits_, Store::kSet);
  operations.route(router_logits_, n_rows,
                   {.sigmoid = config_.moe.sigmoid,
                    .bias = layer.expert_bias ? &*layer.expert_bias : nullptr,
                    .normalised = config_.moe.normalised,
                    .scale = config_.moe.weight_scale,
                    .scales = layer.expert_scales ? &*layer.expert_scales : nullptr},
                   routing_);

  Activations& of_experts = normed.of(experts.gate_up.dtype());
  if (&of_experts != &of_router || &norm != &router_norm) {
    backend_.norm(x, {.n = n_rows}, norm, of_experts);
  }
  Activations& gathered = gathered_.of(experts.gate_up.dtype());
  Activations& activated = activated_.of(experts.down.dtype());
  operations.gather(of_experts, n_rows, routing_, gathered);
  operations.matmul(gathered, n_rows, routing_, experts.gate_up, gate_up_);
  if (config_.moe.swiglu_limit > 0.0f) {
    operations.clamped_swiglu(gate_up_, n_pairs, config_.moe.swiglu_alpha, config_.moe.swiglu_limit,
                              activated);
  } else {
    backend_.activate(gate_up_, n_pairs, config_.activation, true, activated);
  }
  operations.matmul(activated, n_rows, routing_, experts.down, outputs_);
}

}  // namespace pb
