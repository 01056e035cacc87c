#include "model/forward.h"

#include <cstddef>

namespace pb {
namespace {

Buffer floats(Backend& backend, int rows, int cols) {
  return backend.make_buffer(static_cast<size_t>(rows) * static_cast<size_t>(cols) * sizeof(float));
}

const Norm* pointer(const std::optional<Norm>& norm) { return norm ? &*norm : nullptr; }

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
  normed_ = ActivationSet(backend, limits.n_ubatch, config.hidden_size);
  attended_ = ActivationSet(backend, limits.n_ubatch, config.q_size());
  activated_ = ActivationSet(backend, limits.n_ubatch, config.intermediate_size);
  for (const LayerWeights& w : weights.layers) {
    for (const Matrix& m : w.qkv) normed_.add(m.dtype);
    attended_.add(w.o.dtype);
    for (const Matrix& m : w.gate_up) normed_.add(m.dtype);
    activated_.add(w.down.dtype);
  }
  selected_ =
      backend.make_activations(kOutputRows, config.hidden_size, weights.output_head().dtype);
  states_ = backend.make_activations(kOutputRows, config.hidden_size, DType::kF32);
  if (!config.learned_positions) {
    rope_ =
        backend.make_rope(config.rope_inv_freq, config.rope_attention_factor, limits.n_positions);
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

void Forward::normed_products(int n_rows, const Norm& norm, const Matrices& matrices, Buffer& y) {
  const Activations* made = nullptr;
  for (const Matrix& m : matrices) {
    Activations& normed = normed_.of(m.dtype);
    if (made != &normed) backend_.norm(x_, {.n = n_rows}, norm, normed);
    made = &normed;
    backend_.matmul(normed, n_rows, m, y, Store::kSet);
  }
}

// x += W_o attention(rope(W_qkv norm(x)))
void Forward::attention_block(int n_rows, int layer, KvStorage& kv) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const AttentionLayer attention{
      .layer = layer,
      .n_heads = config_.n_heads,
      .n_kv_heads = config_.n_kv_heads,
      .head_dim = config_.head_dim,
      .scale = config_.attention_scale,
      .sliding_window = config_.sliding_windows[static_cast<size_t>(layer)],
      .rope = config_.learned_positions ? nullptr : &rope_,
      .q_norm = pointer(w.q_norm),
      .k_norm = pointer(w.k_norm),
  };
  normed_products(n_rows, w.attn_norm, w.qkv, qkv_);
  backend_.rope_and_store(qkv_, attention, kv);
  Activations& attended = attended_.of(w.o.dtype);
  backend_.attention(qkv_, attention, kv, attended);
  backend_.matmul(attended, n_rows, w.o, x_, Store::kAdd);
}

// x += W_down (act(W_gate norm(x)) * W_up norm(x)), or W_down act(W_up norm(x))
void Forward::mlp_block(int n_rows, int layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  normed_products(n_rows, w.mlp_norm, w.gate_up, gate_up_);
  Activations& activated = activated_.of(w.down.dtype);
  backend_.activate(gate_up_, n_rows, config_.activation, config_.gated_mlp, activated);
  backend_.matmul(activated, n_rows, w.down, x_, Store::kAdd);
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
