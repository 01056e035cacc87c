// The forward pass of a transformer, written once over the operations of a Backend. All differences
// between model families are data in ModelConfig and Weights:
//   - Llama 2 and 3, Mistral, Qwen 2 and 3 and SmolLM 2 have pre-norm blocks with RMSNorm, rotary
//     position embeddings and a gated MLP (Touvron et al. 2023, arXiv:2302.13971; Jiang et al.
//     2023, arXiv:2310.06825; Qwen team 2025, arXiv:2505.09388).
//   - Gemma 2 and 3 add norms after the blocks and soft caps (Gemma team 2024, arXiv:2408.00118;
//     2025, arXiv:2503.19786).
//   - OLMo 2 and 3 have norms only after the blocks (OLMo team 2024, arXiv:2501.00656).
//   - Gemma 4 has attention shapes that depend on the layer, layers that share keys and values,
//     per-layer embeddings (PerLayerEmbeddings), and experts beside an MLP.
//   - gpt-oss has attention sinks and experts with biases (OpenAI 2025, arXiv:2508.10925).
//   - Qwen 3.5 has GatedDeltaNet layers (ops/recurrent.h) and gated attention (Qwen team 2025,
//     arXiv:2505.06708).
//   - LFM2 has short-convolution layers (Liquid AI 2025, arXiv:2511.23404).
//   - Granite scales embeddings, attention scores and logits.
//   - GPT-2 has pre-norm blocks with LayerNorm, learned position embeddings and a plain GELU MLP
//     (Radford et al. 2019).
//   - BERT is post-norm: x = norm(x + f(x)) (Devlin et al. 2019, arXiv:1810.04805), computed as a
//     norm in place before the next block.
//   - ModernBERT has bidirectional attention within windows (Warner et al. 2024, arXiv:2412.13663).
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

// The limits of the passes that a Forward computes.
struct ForwardLimits {
  int model = 0;        // PassShape::model
  int n_ubatch = 0;     // rows of a pass
  int n_positions = 0;  // positions of a sequence
  int n_sequences = 0;
  int block_size = 0;                       // positions of a KV block
  std::vector<LayerStorage> storages = {};  // storages of keys and values
  int state_group = 0;                      // KV group of the recurrent layers' states, if any
  DType kv_dtype = DType::kF32;
  int given_columns = 0;  // see PassShape; that of images, if this is smaller
};

class Forward {
 public:
  // Allocates all buffers. `config`, `weights` and `backend` must outlive this.
  Forward(const ModelConfig& config, const Weights& weights, Backend& backend,
          const ForwardLimits& limits);

  // Runs all layers of the pass that the backend has planned, which has n_rows rows. Writes the KV
  // of every row and leaves the hidden states of all rows after the last layer for logits() and
  // hidden(). has_given: the batch has given rows, which are rows of images of
  // ModelConfig::image_columns() numbers. Allocates no memory and throws nothing.
  void run(int n_rows, ModelKv& kv, bool has_given = false);

  // The two halves of a layer with attention, for a vision tower, which stores the keys and values
  // of all rows before it computes attention: the first one norms, projects, rotates and stores,
  // the second one computes attention and the MLP. They use the rows of x and qkv to which
  // use_rows() has pointed, instead of buffers of this object. The heartbeat does not beat.
  void use_rows(Buffer x, Buffer qkv);
  void attention_inputs(int n_rows, int layer, ModelKv& kv);
  void attention_and_mlp(int n_rows, int layer, ModelKv& kv);

  // Returns the columns of qkv.
  int qkv_columns() const { return qkv_columns_; }

  // Returns the maximum number of rows of one call to logits() or hidden(), which does not depend
  // on n_ubatch.
  int output_rows() const { return backend_.output_rows(); }

  // Computes the logits of the batch's logits_rows [first, first + n), where n <= output_rows().
  // The result is (n, vocab_size) f32 and is valid until the next call.
  const Buffer& logits(int first, int n);

  // Computes the hidden states of the batch's pooled_rows [first, first + n) after the final norm,
  // where n <= output_rows(). The result is (n, hidden_size) of kF32 and is valid until the next
  // call.
  const Activations& hidden(int first, int n);

  // Returns the row stride of hidden() in floats.
  int64_t hidden_stride() const { return states_.row_stride; }

  // The heartbeat beats after every layer of a pass and in every call to logits() and hidden().
  const std::shared_ptr<Heartbeat>& heartbeat() const { return heartbeat_; }

 private:
  AttentionLayer attention_layer(int layer, const ModelKv& kv) const;
  void attention_block(int n_rows, int layer, ModelKv& kv);
  void attention_outputs(int n_rows, int layer, ModelKv& kv);
  void recurrent_block(int n_rows, int layer, ModelKv& kv);
  void mlp_block(int n_rows, int layer);
  // Computes normed = norm(x), or rounds x to `normed` if there is no norm.
  void enter_block(int n_rows, const std::optional<Norm>& norm, Activations& normed);
  struct Products {
    const Matrices& matrices;
    Buffer& y;
  };
  // Computes y = W norm(x) for every matrix W, or y = W x if there is no norm. If in_residual, x =
  // norm(x) is computed first, and then y = W x.
  void entering_products(int n_rows, const std::optional<Norm>& norm, bool in_residual,
                         std::initializer_list<Products> all);
  // Computes x += norm(W out), or x += W out if there is no norm.
  void leave_block(int n_rows, const Activations& out, const Matrix& w,
                   const std::optional<Norm>& norm);

  const Matrices none_;
  const ModelConfig& config_;
  const Weights& weights_;
  Backend& backend_;
  // Parallel to ModelConfig::ropes.
  std::vector<RopeTable> ropes_;
  // Set where q has a rope of its own.
  std::vector<std::optional<RopeTable>> q_ropes_;
  std::shared_ptr<Heartbeat> heartbeat_ = std::make_shared<Heartbeat>();  // may outlive this object

  Buffer x_;              // (n_ubatch, hidden) f32: the residual stream
  ActivationSet normed_;  // (n_ubatch, hidden): inputs of the blocks' products
  int qkv_columns_ = 0;
  Buffer qkv_;                    // (n_ubatch, most columns of a layer's qkv) f32
  Buffer attn_gate_;              // (n_ubatch, q_size) f32, for gated attention
  Activations ungated_;           // (n_ubatch, q_size) of kF32, for gated attention
  Buffer recurrent_out_;          // (n_ubatch, inputs of o) f32, for recurrent layers
  ActivationsByWidth attended_;   // (n_ubatch, inputs of o)
  Buffer gate_up_;                // (n_ubatch, 2 intermediate or intermediate) f32
  ActivationsByWidth activated_;  // (n_ubatch, intermediate): inputs of down
  std::optional<Moe> moe_;
  std::optional<PerLayerEmbeddings> per_layer_embeddings_;
  Buffer block_out_;        // (n_ubatch, hidden) f32: a block's output before it is added
  ActivationSet selected_;  // (output_rows(), hidden): inputs of the output head
  Activations states_;      // (output_rows(), hidden) f32: results of hidden()
  Buffer logits_;           // (output_rows(), vocab) f32: results of logits()
};

}  // namespace pb
