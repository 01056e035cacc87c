// The forward pass of a transformer, written once over the operations of a Backend.
//
// Llama 2 and 3, Mistral, Qwen 2 and 3, SmolLM 2: pre-norm blocks with RMSNorm, rotary positions
// and a gated MLP (Touvron et al. 2023, arXiv:2302.13971; Jiang et al. 2023, arXiv:2310.06825; Qwen
// team 2025, arXiv:2505.09388). Gemma 2 and 3: norms after the blocks too, soft caps (Gemma team
// 2024, arXiv:2408.00118; 2025, arXiv:2503.19786). OLMo 2 and 3: norms after the blocks alone (OLMo
// team 2024, arXiv:2501.00656). Gemma 4: shapes by layer, shared keys and values, per-layer
// embeddings (PerLayerEmbeddings), experts beside an MLP. gpt-oss: sinks of attention, experts with
// biases (OpenAI 2025, arXiv:2508.10925). Qwen 3.5: layers of the gated delta rule
// (ops/recurrent.h), attention with a gate (Qwen team 2025, arXiv:2505.06708). LFM2: layers of
// short convolutions (Liquid AI 2025, arXiv:2511.23404). Granite: scaled embedding, scores and
// logits. GPT-2: pre-norm blocks with LayerNorm, learned positions and a plain GELU MLP (Radford et
// al. 2019). BERT: each block is normed with what it is added to, x = norm(x + f(x)) (Devlin et al.
// 2019, arXiv:1810.04805), computed as a norm in place before the next block; ModernBERT: attention
// to both sides within windows (Warner et al. 2024, arXiv:2412.13663). All differences are data in
// ModelConfig and Weights.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "base/heartbeat.h"
#include "config/config.h"
#include "model/activation_set.h"
#include "model/moe.h"
#include "model/per_layer_embeddings.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace pb {

// The limits of the passes of a Forward.
struct ForwardLimits {
  int n_ubatch = 0;     // rows of a pass
  int n_positions = 0;  // of a sequence
  int n_sequences = 0;
  int block_size = 0;                       // of KV
  std::vector<LayerStorage> storages = {};  // of KV
  int state_group = 0;                      // of recurrent layers' states, if there are any
  DType kv_dtype = DType::kF32;
};

class Forward {
 public:
  // Allocates all buffers. `config`, `weights` and `backend` must outlive this.
  Forward(const ModelConfig& config, const Weights& weights, Backend& backend,
          const ForwardLimits& limits);

  // The layers of the pass that the backend has planned, which has n_rows rows: writes the KV of
  // every row and leaves the last layer's states of all rows for logits() and hidden(). Allocates
  // nothing, throws nothing.
  void run(int n_rows, ModelKv& kv);

  // Most rows of one call to logits() or hidden(), whatever n_ubatch is.
  int output_rows() const { return backend_.output_rows(); }

  // Logits of the batch's logits_rows [first, first + n), at most output_rows(): (n, vocab_size)
  // f32, valid until the next call.
  const Buffer& logits(int first, int n);

  // States of the batch's pooled_rows [first, first + n), at most output_rows(), after the final
  // norm: (n, hidden_size) of kF32, valid until the next call.
  const Activations& hidden(int first, int n);

  // Floats from one row of hidden() to the next.
  int64_t hidden_stride() const { return states_.row_stride; }

  // Beats with every layer of a pass, and with every call to logits() and hidden().
  const std::shared_ptr<Heartbeat>& heartbeat() const { return heartbeat_; }

 private:
  void attention_block(int n_rows, int layer, ModelKv& kv);
  void recurrent_block(int n_rows, int layer, ModelKv& kv);
  void mlp_block(int n_rows, int layer);
  // normed = norm(x), or x.
  void enter_block(int n_rows, const std::optional<Norm>& norm, Activations& normed);
  struct Products {
    const Matrices& matrices;
    Buffer& y;
  };
  // y = W norm(x), or W x, of all matrices. in_residual: x = norm(x) first.
  void entering_products(int n_rows, const std::optional<Norm>& norm, bool in_residual,
                         std::initializer_list<Products> all);
  // x += norm(W out), or W out.
  void leave_block(int n_rows, const Activations& out, const Matrix& w,
                   const std::optional<Norm>& norm);

  const Matrices none_;
  const ModelConfig& config_;
  const Weights& weights_;
  Backend& backend_;
  std::vector<RopeTable> ropes_;                                          // of ModelConfig::ropes
  std::vector<std::optional<RopeTable>> q_ropes_;                         // where q has its own
  std::shared_ptr<Heartbeat> heartbeat_ = std::make_shared<Heartbeat>();  // may outlive this

  Buffer x_;                      // (n_ubatch, hidden) f32: the residual stream
  ActivationSet normed_;          // (n_ubatch, hidden)
  Buffer qkv_;                    // (n_ubatch, columns of the layers' qkv) f32
  Buffer attn_gate_;              // (n_ubatch, q_size) f32, where attention has a gate
  Activations ungated_;           // (n_ubatch, q_size) of kF32, likewise
  Buffer recurrent_out_;          // (n_ubatch, columns of their o) f32, of recurrent layers
  ActivationsByWidth attended_;   // (n_ubatch, q_size)
  Buffer gate_up_;                // (n_ubatch, 2 intermediate or intermediate) f32
  ActivationsByWidth activated_;  // (n_ubatch, intermediate)
  std::optional<Moe> moe_;
  std::optional<PerLayerEmbeddings> per_layer_embeddings_;
  Buffer block_out_;        // (n_ubatch, hidden) f32, where it is normed before it is added
  ActivationSet selected_;  // (output_rows(), hidden), after the final norm, as the head takes them
  Activations states_;      // (output_rows(), hidden) f32, after the final norm
  Buffer logits_;           // (output_rows(), vocab) f32
};

}  // namespace pb
