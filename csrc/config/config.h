// The configuration of a model: a decoder, or an encoder that only embeds.
//
// pybatcher/loading fills it from a checkpoint. config_fields.def declares the scalar fields.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "config/config_field.h"
#include "config/config_fields.def"

namespace pb {

// Sizes far above those of any model, and far below those that could overflow.
inline constexpr int kMaxWidth = 1 << 20;
inline constexpr int kMaxVocab = 1 << 24;
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxHeads = 4096;
inline constexpr int kMaxHeadDim = 1024;
inline constexpr int kMaxPositions = 1 << 30;
inline constexpr int kMaxConvSize = 64;
inline constexpr int kMaxExperts = 4096;  // of a layer

enum class NormKind { kRms, kLayer };
enum class ResidualNorms { kNone, kFirst, kAll };
enum class PositionKind { kRope, kLearned };
enum class Activation { kSilu, kGeluTanh, kGelu, kXielu, kReluSquared, kSigmoid };

// Activation::kSigmoid has no name: it is the activation of gates, not of an MLP.
template <>
inline constexpr std::array kChoices<NormKind> = {"rms", "layer"};
template <>
inline constexpr std::array kChoices<ResidualNorms> = {"none", "first", "all"};
template <>
inline constexpr std::array kChoices<PositionKind> = {"rope", "learned"};
template <>
inline constexpr std::array kChoices<Activation> = {"silu", "gelu_tanh", "gelu", "xielu",
                                                    "relu_squared"};

// Rotary positions: the angle of each pair of a head's elements per position, in radians. Pairs of
// a partial rotary embedding that do not turn have 0.
struct RopeConfig {
  std::vector<float> inv_freq;            // (head_dim / 2), scaling already applied
  std::vector<float> long_inv_freq = {};  // for more than original_positions; empty = inv_freq
  PB_CONFIG_FIELDS(PB_ROPE_FIELDS)

  // The frequencies of an engine whose sequences have up to n_positions positions. They do not
  // depend on the current length of a sequence, because keys in the cache would change.
  const std::vector<float>& frequencies(int n_positions) const {
    return long_inv_freq.empty() || n_positions <= original_positions ? inv_freq : long_inv_freq;
  }
};

// Mixtures of experts: the MLP of some layers is many small MLPs, of which each row uses a few.
struct MoeConfig {
  PB_CONFIG_FIELDS(PB_MOE_FIELDS)
  std::vector<bool> in_layer;  // (n_layers); empty if no layer has experts, n_experts is then 0
};

// Sizes of layers of the gated delta rule (ops/recurrent.h). n_value_heads is 0 if there are none.
struct GatedDeltaNetShape {
  PB_CONFIG_FIELDS(PB_GATED_DELTA_NET_FIELDS)

  int key_size() const { return n_key_heads * key_dim; }
  int value_size() const { return n_value_heads * value_dim; }
  int n_channels() const { return 2 * key_size() + value_size(); }
  // The value heads of a key head: the first one, their number, and the distance between two.
  int first_head(int key_head) const { return in_turn ? key_head : key_head * n_heads_of_key(); }
  int n_heads_of_key() const { return n_value_heads / n_key_heads; }
  int head_step() const { return in_turn ? n_key_heads : 1; }
  int row_size() const { return n_channels() + value_size() + 2 * n_value_heads; }
  int state_size() const { return value_size() * key_dim + (conv_size - 1) * n_channels(); }
};

// Sizes of layers of gated short convolutions (ops/recurrent.h).
struct ShortConvShape {
  int width = 0;  // channels: hidden_size; 0 = there are no such layers
  PB_CONFIG_FIELDS(PB_SHORT_CONV_FIELDS)

  int row_size() const { return 3 * width; }
  int state_size() const { return (conv_size - 1) * width; }
};

// Sizes of a layer in which it may differ from other layers.
struct LayerShape {
  PB_CONFIG_FIELDS(PB_LAYER_SHAPE_FIELDS)

  int kv_size() const { return n_kv_heads * head_dim; }
};

struct ModelConfig {
  PB_CONFIG_FIELDS(PB_MODEL_FIELDS)
  std::vector<RopeConfig> ropes;  // used by layers; empty if positions are learned
  std::vector<int> layer_ropes;   // (n_layers): an index of ropes; -1 = q and k do not turn
  // (n_layers): number of positions that a query attends to, itself included; 0 = all. On each side
  // if attention is not causal.
  std::vector<int> sliding_windows;
  // (n_layers); empty if all layers have n_kv_heads, head_dim and intermediate_size.
  std::vector<LayerShape> layer_shapes;
  MoeConfig moe;
  // All recurrent layers are of one kind, which has a shape.
  GatedDeltaNetShape gated_delta_net;
  ShortConvShape short_conv;
  std::vector<bool> recurrent_layers;  // (n_layers): without attention; empty = none

  int q_size() const { return n_heads * head_dim; }
  int kv_size() const { return n_kv_heads * head_dim; }
  LayerShape shape(int layer) const {
    if (layer_shapes.empty()) return {n_kv_heads, head_dim, intermediate_size};
    return layer_shapes[static_cast<size_t>(layer)];
  }
  bool learned_positions() const { return position == PositionKind::kLearned; }
  bool has_experts(int layer) const {
    return moe.n_experts > 0 && moe.in_layer[static_cast<size_t>(layer)];
  }
  int state_size() const {  // floats of the state of a recurrent layer
    return has_short_conv() ? short_conv.state_size() : gated_delta_net.state_size();
  }
  bool has_short_conv() const { return short_conv.width > 0; }
  bool is_recurrent(int layer) const {
    return !recurrent_layers.empty() && recurrent_layers[static_cast<size_t>(layer)];
  }
  // True if the output of the norm before attention, or before the MLP, replaces the residual
  // stream.
  bool attn_norm_in_residual(int layer) const {
    return residual_norms == ResidualNorms::kAll ||
           (residual_norms == ResidualNorms::kFirst && layer == 0);
  }
  bool mlp_norm_in_residual() const { return residual_norms == ResidualNorms::kAll; }

  // Throws kModelFormat that names the field, its value and the values that it may have.
  void validate() const;
};

}  // namespace pb
