// What kind of transformer a checkpoint is: a decoder, or an encoder that only embeds. Filled by
// pybatcher/loading; the C++ side trusts nothing and checks every field again in validate().
#pragma once

#include <string>
#include <vector>

namespace pb {

enum class NormKind { kRms, kLayer };
// Rotary positions: how far each pair of a head's elements turns per position, in radians. Pairs
// that do not turn (partial rotary) have 0.
struct RopeConfig {
  std::vector<float> inv_freq;            // (head_dim / 2), scaling already applied
  std::vector<float> long_inv_freq = {};  // instead, past original_positions; empty = no others
  float attention_factor = 1.0f;          // multiplies what turns
  float query_beta = 0.0f;     // q *= 1 + query_beta * log(1 + floor(p / original_positions))
  int original_positions = 0;  // that the model was trained with first; 0 = nothing asks

  // The frequencies for sequences of up to n_positions: never a matter of how long one is by now,
  // which would change the keys that it has.
  const std::vector<float>& frequencies(int n_positions) const {
    return long_inv_freq.empty() || n_positions <= original_positions ? inv_freq : long_inv_freq;
  }
};

// Which norms before a block the residual stream goes on from: none; the first, which is then that
// of the embedding; or all, as in BERT, whose norm after a block is the norm before the next one.
enum class StreamNorms { kNone, kFirst, kAll };

enum class Activation { kSilu, kGeluTanh, kGelu, kSigmoid };

inline constexpr int kMaxExperts = 4096;  // of a layer

// Mixtures of experts: in some layers the MLP is many small ones, of which every row takes few.
struct MoeConfig {
  int n_experts = 0;          // of a layer that has any; 0 = no layer has
  int n_experts_per_row = 0;  // those with the greatest router logits; of equal ones the first
  int intermediate_size = 0;  // of an expert
  bool normalised = false;    // weights of a row's experts sum to 1; else those of all experts do
  // Above 0: the activation is g sigmoid(alpha g) (u + 1), where g = min(gate, limit) and u is up
  // between -limit and limit.
  float swiglu_limit = 0.0f;
  float swiglu_alpha = 1.0f;
  bool beside_mlp = false;  // layers have their MLP too; what both give is normed and summed
  // Layers have their MLP too, of which every row gets as much as the sigmoid of a product says.
  bool shared_expert = false;
  // How much an expert counts is the sigmoid of its logit, and not a softmax; chosen are those of
  // the greatest sigmoids, to each of which the layer may add a bias.
  bool sigmoid = false;
  float weight_scale = 1.0f;   // multiplies how much each counts
  std::vector<bool> in_layer;  // (n_layers); empty where no layer has experts
};

// Sizes of layers of the gated delta rule (ops/recurrent.h).
struct DeltaShape {
  int n_key_heads = 0;    // of queries too; divides n_value_heads
  int n_value_heads = 0;  // 0 = no layer is one
  int key_dim = 0;        // of a head
  int value_dim = 0;      // likewise
  int conv_size = 0;      // rows that a convolution sees, the row itself included
  // Value head h goes with key head h % n_key_heads; else with h / (n_value_heads / n_key_heads).
  bool in_turn = false;

  int key_size() const { return n_key_heads * key_dim; }
  int value_size() const { return n_value_heads * value_dim; }
  int n_channels() const { return 2 * key_size() + value_size(); }
  // Value heads of a key head: the first one, how many there are, and from one to the next.
  int first_head(int key_head) const { return in_turn ? key_head : key_head * n_heads_of_key(); }
  int n_heads_of_key() const { return n_value_heads / n_key_heads; }
  int head_step() const { return in_turn ? n_key_heads : 1; }
  int row_size() const { return n_channels() + value_size() + 2 * n_value_heads; }
  int state_size() const { return value_size() * key_dim + (conv_size - 1) * n_channels(); }
};

// Sizes of layers of gated short convolutions (ops/recurrent.h).
struct ShortConvShape {
  int width = 0;      // channels; 0 = no layer is one
  int conv_size = 0;  // rows that a convolution sees, the row itself included: 2 or more

  int row_size() const { return 3 * width; }
  int state_size() const { return (conv_size - 1) * width; }
};

// What layers of a model may differ in, besides windows, frequencies and experts.
struct LayerShape {
  int n_kv_heads = 0;  // divides n_heads
  int head_dim = 0;    // even with rope
  int intermediate_size = 0;
  int kv_layer = -1;  // the earlier layer whose keys and values it reads; -1 = it has its own

  int kv_size() const { return n_kv_heads * head_dim; }
};

struct ModelConfig {
  std::string architecture;  // "llama", "gemma3", ...: for messages only
  int vocab_size = 0;
  int hidden_size = 0;
  int n_layers = 0;
  int n_heads = 0;
  int n_kv_heads = 0;  // divides n_heads
  int head_dim = 0;    // even with rope
  int intermediate_size = 0;
  int max_position_embeddings = 0;
  NormKind norm = NormKind::kRms;
  float norm_eps = 1e-5f;
  bool norm_bias = true;  // of kLayer; without it the bias is 0
  StreamNorms stream_norms = StreamNorms::kNone;
  bool causal = true;      // else a query sees what follows too, and a text is computed as a whole
  bool pre_norm = true;    // of what enters attention and the MLP
  bool post_norm = false;  // of what they add to the residual stream: kRms only
  bool whole_qk_norm = false;  // q and k norms go over all heads at once, not over each
  float embedding_scale = 1.0f;
  Activation activation = Activation::kSilu;
  bool gated_mlp = true;           // act(gate) * up, else act(up)
  bool learned_positions = false;  // added to the embedding; else rope
  std::vector<RopeConfig> ropes;   // that layers have; empty where positions are learned
  std::vector<int> layer_ropes;    // (n_layers): an index of ropes; -1 = q and k do not turn
  float attention_scale = 0.0f;    // q.k is multiplied by it
  float attention_softcap = 0.0f;  // bounds scores s: softcap * tanh(s / softcap); 0 = none
  float logit_scale = 1.0f;        // logits are multiplied by it,
  float logit_softcap = 0.0f;      // then bounded in the same way; 0 = none
  // (n_layers): positions that a query sees, itself included; 0 = all. Where attention is not
  // causal, on each of its sides.
  std::vector<int> sliding_windows;
  MoeConfig moe;
  // (n_layers); empty where all are as n_kv_heads, head_dim and intermediate_size say.
  std::vector<LayerShape> layer_shapes;
  bool value_norm = false;  // each head of v is normed, without a weight: kRms only
  bool layer_scales =
      false;  // each layer multiplies the residual stream, at its end: post_norm only
  // Of the part of a second embedding of a token that each layer takes; 0 = there is none. It is
  // multiplied by layer_input_scale.
  int layer_input_size = 0;
  float layer_input_scale = 1.0f;
  bool attention_gate = false;  // what attention gives is multiplied by the sigmoid of a product
  // Recurrent layers are all of one kind, of which the model has a shape.
  DeltaShape delta;
  ShortConvShape short_conv;
  std::vector<bool> recurrent_layers;  // (n_layers): without attention; empty: none is

  int q_size() const { return n_heads * head_dim; }
  int kv_size() const { return n_kv_heads * head_dim; }
  LayerShape shape(int layer) const {
    if (layer_shapes.empty()) return {n_kv_heads, head_dim, intermediate_size};
    return layer_shapes[static_cast<size_t>(layer)];
  }
  bool has_experts(int layer) const {
    return moe.n_experts > 0 && moe.in_layer[static_cast<size_t>(layer)];
  }
  int state_size() const {  // floats of a recurrent layer's state
    return has_short_conv() ? short_conv.state_size() : delta.state_size();
  }
  bool has_short_conv() const { return short_conv.width > 0; }
  bool is_recurrent(int layer) const {
    return !recurrent_layers.empty() && recurrent_layers[static_cast<size_t>(layer)];
  }
  // Whether the residual stream goes on from the norm before attention, or before the MLP.
  bool attn_norm_in_stream(int layer) const {
    return stream_norms == StreamNorms::kAll || (stream_norms == StreamNorms::kFirst && layer == 0);
  }
  bool mlp_norm_in_stream() const { return stream_norms == StreamNorms::kAll; }

  // Throws kModelFormat naming the field, its value and what it may be.
  void validate() const;
};

}  // namespace pb
