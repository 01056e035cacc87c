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
  routing_ = backend.experts()->make_routing(max_rows, moe.n_experts, moe.n_experts_per_row);
  gathered_ = ActivationSet(backend, max_pairs, config.hidden_size);
  activated_ = ActivationSet(backend, max_pairs, moe.intermediate_size);
  for (const LayerWeights& layer : weights.layers) {
    if (!layer.experts) continue;
    gathered_.add(layer.experts->gate_up[0].dtype);
    activated_.add(layer.experts->down[0].dtype);
  }
  gate_up_ = floats(backend, max_pairs, 2 * moe.intermediate_size);
  outputs_ = floats(backend, max_pairs, config.hidden_size);
}

void Moe::run(int n_rows, const LayerWeights& layer, ActivationSet& normed, Buffer& x) {
  const Experts& experts = *layer.experts;
  ExpertOperations& operations = *backend_.experts();
  const int n_pairs = n_rows * config_.moe.n_experts_per_row;
  // A choice of experts is not continuous: inputs that were rounded would often flip it.
  Activations& of_router = normed.of(experts.router.dtype);
  backend_.norm(x, {.n = n_rows}, *layer.mlp_norm, of_router);
  backend_.matmul(of_router, n_rows, experts.router, router_logits_, Store::kSet);
  operations.route(router_logits_, n_rows, config_.moe.normalised, routing_);

  Activations& of_experts = normed.of(experts.gate_up[0].dtype);
  if (&of_experts != &of_router) backend_.norm(x, {.n = n_rows}, *layer.mlp_norm, of_experts);
  Activations& gathered = gathered_.of(experts.gate_up[0].dtype);
  Activations& activated = activated_.of(experts.down[0].dtype);
  operations.gather(of_experts, n_rows, routing_, gathered);
  operations.matmul(gathered, n_rows, routing_, experts.gate_up, gate_up_);
  if (config_.moe.swiglu_limit > 0.0f) {
    operations.clamped_swiglu(gate_up_, n_pairs, config_.moe.swiglu_alpha, config_.moe.swiglu_limit,
                              activated);
  } else {
    backend_.activate(gate_up_, n_pairs, config_.activation, true, activated);
  }
  operations.matmul(activated, n_rows, routing_, experts.down, outputs_);
  operations.combine(outputs_, n_rows, routing_, config_.hidden_size, x);
}

}  // namespace pb
