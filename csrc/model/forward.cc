#include "model/forward.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace pb {
namespace {

Buffer floats(Backend& backend, int rows, int cols) {
  return backend.make_buffer(static_cast<size_t>(rows) * static_cast<size_t>(cols) * sizeof(float));
}

template <typename T>
const T* pointer(const std::optional<T>& value) {
  return value ? &*value : nullptr;
}

// Scales q by position as Llama 4 does (`attn_scale`), so that attention stays focused as the
// number of positions grows.
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
      attended_(backend, limits.n_ubatch),
      activated_(backend, limits.n_ubatch),
      logits_(floats(backend, output_rows(), config.vocab_size)) {
  normed_ = ActivationSet(backend, limits.n_ubatch, config.hidden_size);
  int gate_up_size = 0;
  for (const LayerWeights& w : weights.layers) {
    for (const Matrix& m : w.qkv) normed_.add(m);
    for (const Matrix& m : w.attn_gate) normed_.add(m);
    qkv_columns_ = std::max(qkv_columns_, w.qkv[0].y_columns());
    attended_.add(w.o);
    if (w.experts) {
      normed_.add(w.router->dtype);
      normed_.add(w.experts->gate_up.dtype());
    }
    if (!w.gate_up.empty()) {
      for (const Matrix& m : w.gate_up) normed_.add(m);
      gate_up_size = std::max(gate_up_size, w.gate_up[0].y_columns());
      activated_.add(w.down);
    }
    if (w.input_gate) normed_.add(*w.input_gate);
  }
  if (weights.per_layer_embeddings) normed_.add(weights.per_layer_embeddings->proj);
  qkv_ = floats(backend, limits.n_ubatch, qkv_columns_);
  gate_up_ = floats(backend, limits.n_ubatch, gate_up_size);
  selected_ = ActivationSet(backend, output_rows(), config.hidden_size);
  selected_.add(weights.output_head());
  if (config.attention_gate) {
    attn_gate_ = floats(backend, limits.n_ubatch, config.q_size());
    ungated_ = backend.make_activations(limits.n_ubatch, config.q_size(), DType::kF32);
  }
  if (!config.recurrent_layers.empty()) {
    const int width =
        config.has_short_conv() ? config.short_conv.width : config.gated_delta_net.value_size();
    recurrent_out_ = floats(backend, limits.n_ubatch, width);
  }
  if (config.post_norm || config.moe.shared_expert)
    block_out_ = floats(backend, limits.n_ubatch, config.hidden_size);
  states_ = backend.make_activations(output_rows(), config.hidden_size, DType::kF32);
  if (config.moe.n_experts > 0) moe_.emplace(config, weights, backend, limits.n_ubatch);
  if (weights.per_layer_embeddings)
    per_layer_embeddings_.emplace(config, weights, backend, limits.n_ubatch);
  for (const RopeConfig& rope : config.ropes) {
    const std::vector<float>& inv_freq = rope.frequencies(limits.n_positions);
    std::vector<float> factors(static_cast<size_t>(limits.n_positions), rope.attention_factor);
    ropes_.push_back(backend.make_rope(inv_freq, factors, rope.axes));
    q_ropes_.emplace_back();
    if (rope.query_beta == 0.0f) continue;
    scale_by_position(factors, rope);
    q_ropes_.back() = backend.make_rope(inv_freq, factors, rope.axes);
  }
  backend.prepare({.model = limits.model,
                   .max_rows = limits.n_ubatch,
                   .max_sequences = limits.n_sequences,
                   .n_positions = limits.n_positions,
                   .n_heads = config.n_heads,
                   .causal = config.causal,
                   .storages = limits.storages,
                   .gated_delta_net = config.gated_delta_net,
                   .short_conv = config.short_conv,
                   .state_group = limits.state_group,
                   .vocab_size = config.vocab_size,
                   .block_size = limits.block_size,
                   .kv_dtype = limits.kv_dtype,
                   .given_columns = std::max(config.image_columns(), limits.given_columns)});
}

void Forward::run(int n_rows, ModelKv& kv, bool has_given) {
  const int hidden = config_.hidden_size;
  backend_.embed(weights_.token_embedding, config_.embedding_scale, x_);
  if (has_given) backend_.give_rows(0, hidden, Store::kSet, x_);
  if (weights_.position_embedding) backend_.embed_add(*weights_.position_embedding, x_);
  if (per_layer_embeddings_) per_layer_embeddings_->make(n_rows, x_, normed_);
  for (int layer = 0; layer < config_.n_layers; ++layer) {
    config_.is_recurrent(layer) ? recurrent_block(n_rows, layer, kv)
                                : attention_block(n_rows, layer, kv);
    mlp_block(n_rows, layer);
    if (per_layer_embeddings_) per_layer_embeddings_->add(n_rows, layer, x_, normed_, block_out_);
    if (has_given && layer < config_.deepstack_layers) {
      backend_.give_rows(hidden * (1 + layer), hidden, Store::kAdd, x_);
    }
    heartbeat_->beat();
  }
}

void Forward::enter_block(int n_rows, const std::optional<Norm>& norm, Activations& normed) {
  if (norm) {
    backend_.norm(x_, {.n = n_rows}, *norm, normed);
  } else {
    backend_.round(x_, n_rows, normed);
  }
}

void Forward::entering_products(int n_rows, const std::optional<Norm>& norm, bool in_residual,
                                std::initializer_list<Products> all) {
  const std::optional<Norm> none;
  if (in_residual) backend_.norm_in_place(x_, n_rows, *norm);
  const std::optional<Norm>& entering = in_residual ? none : norm;
  const Activations* made = nullptr;  // set if it holds the inputs in their original order
  bool is_plain_made = false;
  for (const Products& products : all) {
    for (const Matrix& m : products.matrices) {
      Activations& normed = normed_.of(m.dtype);
      if (m.order) {
        if (!is_plain_made) enter_block(n_rows, entering, normed_.plain());
        is_plain_made = true;
        backend_.permute(normed_.plain(), n_rows, m.order, normed);
        made = nullptr;
      } else if (made != &normed) {
        enter_block(n_rows, entering, normed);
        made = &normed;
      }
      backend_.matmul(normed, n_rows, m, products.y, Store::kSet);
    }
  }
}

void Forward::leave_block(int n_rows, const Activations& out, const Matrix& w,
                          const std::optional<Norm>& norm) {
  if (norm) {
    backend_.matmul(out, n_rows, w, block_out_, Store::kSet);
    backend_.norm_add(block_out_, n_rows, *norm, x_);
  } else {
    backend_.matmul(out, n_rows, w, x_, Store::kAdd);
  }
}

AttentionLayer Forward::attention_layer(int layer, const ModelKv& kv) const {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int rope = config_.layer_ropes[static_cast<size_t>(layer)];
  const LayerShape shape = config_.shape(layer);
  const LayerPlace place = kv.places[static_cast<size_t>(layer)];
  return {
      .group = place.group,
      .storage = place.storage,
      .layer = place.layer,
      .n_heads = config_.n_heads,
      .n_kv_heads = shape.n_kv_heads,
      .head_dim = shape.head_dim,
      .scale = config_.attention_scale,
      .softcap = config_.attention_softcap,
      .sliding_window = config_.sliding_windows[static_cast<size_t>(layer)],
      .causal = config_.causal,
      .rope = rope < 0 ? nullptr : &ropes_[static_cast<size_t>(rope)],
      .q_rope = rope < 0 ? nullptr : pointer(q_ropes_[static_cast<size_t>(rope)]),
      .q_norm = pointer(w.q_norm),
      .k_norm = pointer(w.k_norm),
      .norms_after_rope = config_.qk_norm_after_rope,
      .sinks = pointer(w.sinks),
      .v_norm = pointer(w.v_norm),
      .writes_kv = shape.kv_layer < 0,
  };
}

void Forward::use_rows(Buffer x, Buffer qkv) {
  x_ = std::move(x);
  qkv_ = std::move(qkv);
}

void Forward::attention_and_mlp(int n_rows, int layer, ModelKv& kv) {
  attention_outputs(n_rows, layer, kv);
  mlp_block(n_rows, layer);
}

// Computes x += W_o attention(rope(W_qkv norm(x))), with a norm before, after, or both. With gated
// attention: x += W_o (sigmoid(W_gate norm(x)) * attention(rope(W_qkv norm(x)))).
void Forward::attention_block(int n_rows, int layer, ModelKv& kv) {
  attention_inputs(n_rows, layer, kv);
  attention_outputs(n_rows, layer, kv);
}

void Forward::attention_inputs(int n_rows, int layer, ModelKv& kv) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const AttentionLayer attention = attention_layer(layer, kv);
  const Products of_mlp{config_.parallel_blocks ? w.gate_up : none_, gate_up_};
  entering_products(n_rows, w.attn_norm, config_.attn_norm_in_residual(layer),
                    {{w.qkv, qkv_}, {w.attn_gate, attn_gate_}, of_mlp});
  backend_.rope_and_store(qkv_, attention, kv.storages[static_cast<size_t>(attention.storage)]);
}

void Forward::attention_outputs(int n_rows, int layer, ModelKv& kv) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const AttentionLayer attention = attention_layer(layer, kv);
  const KvStorage& storage = kv.storages[static_cast<size_t>(attention.storage)];
  const Activations& attended = attended_.made_for(w.o, n_rows, [&](Activations& out) {
    if (!config_.attention_gate) return backend_.attention(qkv_, attention, storage, out);
    backend_.attention(qkv_, attention, storage, ungated_);
    backend_.multiply_activated(attn_gate_, n_rows, Activation::kSigmoid, ungated_.data,
                                static_cast<int>(ungated_.row_stride), 0, out);
  });
  leave_block(n_rows, attended, w.o, w.attn_post_norm);
}

// Computes x += W_o gated_delta_net(W_qkv norm(x)), or x += W_o short_conv(W_in norm(x)).
void Forward::recurrent_block(int n_rows, int layer, ModelKv& kv) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const LayerPlace place = kv.places[static_cast<size_t>(layer)];
  entering_products(n_rows, w.attn_norm, false, {{w.qkv, qkv_}});
  KvStorage& states = kv.storages[static_cast<size_t>(place.storage)];
  RecurrentOperations& operations = backend_.recurrent();
  if (config_.has_short_conv()) {
    const ShortConvLayer conv{.shape = config_.short_conv,
                              .layer = place.layer,
                              .convolution = pointer(w.short_convolution)};
    operations.short_conv(qkv_, n_rows, conv, states, recurrent_out_);
  } else {
    const GatedDeltaNetLayer gated_delta_net{.shape = config_.gated_delta_net,
                                             .layer = place.layer,
                                             .convolution = pointer(w.gated_delta_net_convolution),
                                             .decay = pointer(w.gated_delta_net_decay),
                                             .decay_bias = pointer(w.gated_delta_net_decay_bias),
                                             .norm = pointer(w.gated_delta_net_norm)};
    operations.gated_delta_net(qkv_, n_rows, gated_delta_net, states, recurrent_out_);
  }
  const Activations& out = attended_.made_for(
      w.o, n_rows, [&](Activations& rounded) { backend_.round(recurrent_out_, n_rows, rounded); });
  leave_block(n_rows, out, w.o, {});
}

// Computes the MLP, the experts, or both, depending on the layer:
//   - gated MLP: x += W_down (act(W_gate norm(x)) * W_up norm(x))
//   - plain MLP: x += W_down act(W_up norm(x))
//   - experts: x += experts
//   - experts beside an MLP: x += norm(norm(MLP) + norm(experts))
//   - gated shared expert: x += experts + sigmoid(w norm(x)) MLP
//   - shared expert without a gate: x += experts + MLP
//
// With parallel blocks, attention_block() has already computed gate and up from the norm before
// attention.
void Forward::mlp_block(int n_rows, int layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  if (w.experts && w.gate_up.empty()) return moe_->run(n_rows, w, normed_, x_);
  if (!config_.parallel_blocks) {
    entering_products(n_rows, w.mlp_norm, config_.mlp_norm_in_residual(), {{w.gate_up, gate_up_}});
  }
  const Activations& activated = activated_.made_for(w.down, n_rows, [&](Activations& out) {
    if (w.xielu) return backend_.xielu(gate_up_, n_rows, *w.xielu, out);
    backend_.activate(gate_up_, n_rows, config_.activation, config_.gated_mlp, out);
  });
  if (!w.experts) return leave_block(n_rows, activated, w.down, w.mlp_post_norm);
  if (config_.moe.shared_expert && !config_.moe.shared_gate) {
    moe_->run(n_rows, w, normed_, x_);
    return backend_.matmul(activated, n_rows, w.down, x_, Store::kAdd);
  }
  backend_.matmul(activated, n_rows, w.down, block_out_, Store::kSet);
  if (w.shared_gate) return moe_->run_with_shared(n_rows, w, normed_, block_out_, x_);
  moe_->run_beside(n_rows, w, normed_, x_, block_out_);
  backend_.norm_add(block_out_, n_rows, *w.mlp_post_norm, x_);
}

const Buffer& Forward::logits(int first, int n) {
  const Rows rows{Rows::Of::kLogitsRows, first, n};
  const Matrix& head = weights_.output_head();
  const Activations& selected = selected_.made_for(
      head, n, [&](Activations& out) { backend_.norm(x_, rows, weights_.final_norm, out); });
  backend_.matmul(selected, n, head, logits_, Store::kSet);
  if (config_.logit_scale != 1.0f || config_.logit_softcap > 0.0f) {
    backend_.scale_logits(logits_, n, config_.logit_scale, config_.logit_softcap);
  }
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
