#include "model/forward.h"

#include <cmath>
#include <cstddef>

namespace pb {
namespace {

Buffer floats(Backend& backend, int rows, int cols) {
  return backend.make_buffer(static_cast<size_t>(rows) * static_cast<size_t>(cols) * sizeof(float));
}

template <typename T>
const T* pointer(const std::optional<T>& value) {
  return value ? &*value : nullptr;
}

// Scales q as Llama 4 does (`attn_scale`): less attention is lost to ever more positions.
void scale_by_position(std::vector<float>& factors, const RopeConfig& rope) {
  for (size_t p = 0; p < factors.size(); ++p) {
    const auto contexts = static_cast<float>(p / static_cast<size_t>(rope.original_positions));
    factors[p] *= 1.0f + rope.query_beta * std::log(1.0f + contexts);
  }
}

}  // namespace

Forward::Forward(const ModelConfig& config, const Weights& weights, Backend& backend,
                 const ForwardLimits& limits)
    : config_(config),
      weights_(weights),
      backend_(backend),
      x_(floats(backend, limits.n_ubatch, config.hidden_size)),
      qkv_(floats(backend, limits.n_ubatch, config.q_size() + 2 * config.kv_size())),
      gate_up_(
          floats(backend, limits.n_ubatch, config.intermediate_size * (config.gated_mlp ? 2 : 1))),
      logits_(floats(backend, kOutputRows, config.vocab_size)) {
  const DType dtype = weights.token_embedding.dtype;
  normed_ = backend.make_activations(limits.n_ubatch, config.hidden_size, dtype);
  attended_ = backend.make_activations(limits.n_ubatch, config.q_size(), dtype);
  activated_ = backend.make_activations(limits.n_ubatch, config.intermediate_size, dtype);
  selected_ = backend.make_activations(kOutputRows, config.hidden_size, dtype);
  states_ = backend.make_activations(kOutputRows, config.hidden_size, DType::kF32);
  for (const RopeConfig& rope : config.ropes) {
    const std::vector<float>& inv_freq = rope.frequencies(limits.n_positions);
    std::vector<float> factors(static_cast<size_t>(limits.n_positions), rope.attention_factor);
    ropes_.push_back(backend.make_rope(inv_freq, factors));
    q_ropes_.emplace_back();
    if (rope.query_beta == 0.0f) continue;
    scale_by_position(factors, rope);
    q_ropes_.back() = backend.make_rope(inv_freq, factors);
  }
  backend.prepare({.max_rows = limits.n_ubatch,
                   .max_sequences = limits.n_sequences,
                   .n_positions = limits.n_positions,
                   .n_heads = config.n_heads,
                   .n_kv_heads = config.n_kv_heads,
                   .head_dim = config.head_dim,
                   .vocab_size = config.vocab_size,
                   .block_size = limits.block_size,
                   .kv_dtype = limits.kv_dtype});
}

void Forward::run(int n_rows, KvStorage& kv) {
  backend_.embed(weights_.token_embedding, x_);
  if (weights_.position_embedding) backend_.embed_add(*weights_.position_embedding, x_);
  for (int layer = 0; layer < config_.n_layers; ++layer) {
    attention_block(n_rows, layer, kv);
    mlp_block(n_rows, layer);
    heartbeat_->beat();
  }
}

// x += W_o attention(rope(W_qkv norm(x)))
void Forward::attention_block(int n_rows, int layer, KvStorage& kv) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int rope = config_.layer_ropes[static_cast<size_t>(layer)];
  const AttentionLayer attention{
      .layer = layer,
      .n_heads = config_.n_heads,
      .n_kv_heads = config_.n_kv_heads,
      .head_dim = config_.head_dim,
      .scale = config_.attention_scale,
      .sliding_window = config_.sliding_windows[static_cast<size_t>(layer)],
      .rope = rope < 0 ? nullptr : &ropes_[static_cast<size_t>(rope)],
      .q_rope = rope < 0 ? nullptr : pointer(q_ropes_[static_cast<size_t>(rope)]),
      .q_norm = pointer(w.q_norm),
      .k_norm = pointer(w.k_norm),
  };
  backend_.norm(x_, {.n = n_rows}, w.attn_norm, normed_);
  backend_.matmul(normed_, n_rows, w.qkv, qkv_, Store::kSet);
  backend_.rope_and_store(qkv_, attention, kv);
  backend_.attention(qkv_, attention, kv, attended_);
  backend_.matmul(attended_, n_rows, w.o, x_, Store::kAdd);
}

// x += W_down (act(W_gate norm(x)) * W_up norm(x)), or W_down act(W_up norm(x))
void Forward::mlp_block(int n_rows, int layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  backend_.norm(x_, {.n = n_rows}, w.mlp_norm, normed_);
  backend_.matmul(normed_, n_rows, w.gate_up, gate_up_, Store::kSet);
  backend_.activate(gate_up_, n_rows, config_.activation, config_.gated_mlp, activated_);
  backend_.matmul(activated_, n_rows, w.down, x_, Store::kAdd);
}

const Buffer& Forward::logits(int first, int n) {
  const Rows rows{Rows::Of::kLogitsRows, first, n};
  backend_.norm(x_, rows, weights_.final_norm, selected_);
  backend_.matmul(selected_, n, weights_.output_head(), logits_, Store::kSet);
  heartbeat_->beat();
  return logits_;
}

const Activations& Forward::hidden(int first, int n) {
  const Rows rows{Rows::Of::kPooledRows, first, n};
  backend_.norm(x_, rows, weights_.final_norm, states_);
  heartbeat_->beat();
  return states_;
}

}  // namespace pb
