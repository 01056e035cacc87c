#include "model/forward.h"

#include <cstddef>
#include <numeric>

namespace pb {
namespace {

AlignedBuffer floats(int rows, int cols) {
  return AlignedBuffer(static_cast<size_t>(rows) * static_cast<size_t>(cols) * sizeof(float));
}

const Norm* pointer(const std::optional<Norm>& norm) { return norm ? &*norm : nullptr; }

}  // namespace

Forward::Forward(const ModelConfig& config, const Weights& weights, Backend& backend, int n_ubatch,
                 int n_positions)
    : config_(config),
      weights_(weights),
      backend_(backend),
      every_row_(static_cast<size_t>(n_ubatch)),
      x_(floats(n_ubatch, config.hidden_size)),
      qkv_(floats(n_ubatch, config.q_size() + 2 * config.kv_size())),
      gate_up_(floats(n_ubatch, config.intermediate_size * (config.gated_mlp ? 2 : 1))),
      logits_(floats(kOutputRows, config.vocab_size)) {
  std::iota(every_row_.begin(), every_row_.end(), 0);
  const DType dtype = weights.token_embedding.dtype;
  normed_ = backend.make_activations(n_ubatch, config.hidden_size, dtype);
  attended_ = backend.make_activations(n_ubatch, config.q_size(), dtype);
  activated_ = backend.make_activations(n_ubatch, config.intermediate_size, dtype);
  selected_ = backend.make_activations(kOutputRows, config.hidden_size, dtype);
  states_ = backend.make_activations(kOutputRows, config.hidden_size, DType::kF32);
  if (!config.learned_positions) {
    rope_ = backend.make_rope(config.rope_inv_freq, config.rope_attention_factor, n_positions);
  }
  backend.prepare(n_ubatch, config.n_heads, config.n_kv_heads, config.head_dim);
}

void Forward::run(const RowBatch& batch, KvStorage& kv) {
  const auto n_rows = static_cast<size_t>(batch.n_rows);
  backend_.plan(batch, kv);
  backend_.embed({batch.tokens, n_rows}, weights_.token_embedding, x_.as<float>());
  if (weights_.position_embedding) {
    backend_.embed_add({batch.positions, n_rows}, *weights_.position_embedding, x_.as<float>());
  }
  for (int layer = 0; layer < config_.n_layers; ++layer) {
    attention_block(batch, layer, kv);
    mlp_block(batch, layer);
    heartbeat_->beat();
  }
}

// x += W_o attention(rope(W_qkv norm(x)))
void Forward::attention_block(const RowBatch& batch, int layer, KvStorage& kv) {
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
  const std::span<const int32_t> rows(every_row_.data(), static_cast<size_t>(batch.n_rows));
  backend_.norm(x_.as<float>(), rows, w.attn_norm, normed_);
  backend_.matmul(normed_, batch.n_rows, w.qkv, qkv_.as<float>(), Store::kSet);
  backend_.rope_and_store(qkv_.as<float>(), batch, attention, kv);
  backend_.attention(qkv_.as<float>(), batch, attention, kv, attended_);
  backend_.matmul(attended_, batch.n_rows, w.o, x_.as<float>(), Store::kAdd);
}

// x += W_down (act(W_gate norm(x)) * W_up norm(x)), or W_down act(W_up norm(x))
void Forward::mlp_block(const RowBatch& batch, int layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const std::span<const int32_t> rows(every_row_.data(), static_cast<size_t>(batch.n_rows));
  backend_.norm(x_.as<float>(), rows, w.mlp_norm, normed_);
  backend_.matmul(normed_, batch.n_rows, w.gate_up, gate_up_.as<float>(), Store::kSet);
  backend_.activate(gate_up_.as<float>(), batch.n_rows, config_.activation, config_.gated_mlp,
                    activated_);
  backend_.matmul(activated_, batch.n_rows, w.down, x_.as<float>(), Store::kAdd);
}

const float* Forward::logits(std::span<const int32_t> rows) {
  backend_.norm(x_.as<float>(), rows, weights_.final_norm, selected_);
  backend_.matmul(selected_, static_cast<int>(rows.size()), weights_.output_head(),
                  logits_.as<float>(), Store::kSet);
  heartbeat_->beat();
  return logits_.as<float>();
}

const Activations& Forward::hidden(std::span<const int32_t> rows) {
  backend_.norm(x_.as<float>(), rows, weights_.final_norm, states_);
  heartbeat_->beat();
  return states_;
}

}  // namespace pb
