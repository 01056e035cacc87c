#include "model/moe.h"

#include <cstddef>

namespace pb {
namespace {

Buffer floats(Backend& backend, int rows, int cols) {
  return backend.make_buffer(static_cast<size_t>(rows) * static_cast<size_t>(cols) * sizeof(float));
}

}  // namespace

Moe::Moe(const ModelConfig& config, DType dtype, Backend& backend, int max_rows)
    : config_(config), backend_(backend) {
  const MoeConfig& moe = config.moe;
  const int max_pairs = max_rows * moe.n_experts_per_row;
  if (dtype != DType::kF32) {
    router_input_ = backend.make_activations(max_rows, config.hidden_size, DType::kF32);
  }
  router_logits_ = floats(backend, max_rows, moe.n_experts);
  routing_ = backend.experts()->make_routing(max_rows, moe.n_experts, moe.n_experts_per_row);
  gathered_ = backend.make_activations(max_pairs, config.hidden_size, dtype);
  gate_up_ = floats(backend, max_pairs, 2 * moe.intermediate_size);
  activated_ = backend.make_activations(max_pairs, moe.intermediate_size, dtype);
  outputs_ = floats(backend, max_pairs, config.hidden_size);
}

void Moe::run(int n_rows, const LayerWeights& layer, const Activations& normed, Buffer& x) {
  const Experts& experts = *layer.experts;
  ExpertOperations& operations = *backend_.experts();
  const int n_pairs = n_rows * config_.moe.n_experts_per_row;
  // A choice of experts is not continuous: inputs that were rounded would often flip it.
  const bool is_plain = normed.dtype == DType::kF32;
  if (!is_plain) backend_.norm(x, {.n = n_rows}, *layer.mlp_norm, router_input_);
  backend_.matmul(is_plain ? normed : router_input_, n_rows, experts.router, router_logits_,
                  Store::kSet);
  operations.route(router_logits_, n_rows, config_.moe.normalised, routing_);
  operations.gather(normed, n_rows, routing_, gathered_);
  operations.matmul(gathered_, n_rows, routing_, experts.gate_up, gate_up_);
  backend_.activate(gate_up_, n_pairs, config_.activation, true, activated_);
  operations.matmul(activated_, n_rows, routing_, experts.down, outputs_);
  operations.combine(outputs_, n_rows, routing_, config_.hidden_size, x);
}

}  // namespace pb
