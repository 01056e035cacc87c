// The configuration of a model, which is a decoder or an encoder for embeddings.
//
// pybatcher/loading fills it from a checkpoint. config_fields.def declares the scalar fields.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "config/config_field.h"
#include "config/config_fields.def"

namespace pb {

// The upper limits of sizes. They are far above the sizes of any model, and low enough that
// products of sizes do not overflow.
inline constexpr int kMaxWidth = 1 << 20;
inline constexpr int kMaxVocab = 1 << 24;
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxHeads = 4096;
inline constexpr int kMaxHeadDim = 1024;
inline constexpr int kMaxPositions = 1 << 30;
inline constexpr int kMaxConvSize = 64;
inline constexpr int kRopeAxes = 3;       // rope positions of a row, where a rope has axes
inline constexpr int kMaxExperts = 4096;  // experts per layer

enum class NormKind { kRms, kLayer };
enum class ResidualNorms { kNone, kFirst, kAll };
enum class PositionKind { kRope, kLearned };
enum class Activation { kSilu, kGeluTanh, kGelu, kXielu, kReluSquared, kSigmoid };

// Activation::kSigmoid has no name, because gates use it and an MLP cannot.
template <>
inline constexpr std::array kChoices<NormKind> = {"rms", "layer"};
template <>
inline constexpr std::array kChoices<ResidualNorms> = {"none", "first", "all"};
template <>
inline constexpr std::array kChoices<PositionKind> = {"rope", "learned"};
template <>
inline constexpr std::array kChoices<Activation> = {"silu", "gelu_tanh", "gelu", "xielu",
                                                    "relu_squared"};

// A rotary position embedding. inv_freq has the angle in radians by which each pair of elements of
// a head is rotated per position. In a partial rotary embedding, pairs that are not rotated have
// the frequency 0.
struct RopeConfig {
  std::vector<float> inv_freq;            // (head_dim / 2), with scaling already applied
  std::vector<float> long_inv_freq = {};  // used beyond original_positions; empty = inv_freq
  // (head_dim / 2): which of a row's rope positions (RowBatch::rope_positions) rotates each pair;
  // empty = the position of the row. Multimodal models have several positions per row, as time,
  // height and width in an image.
  std::vector<int> axes = {};
  PB_CONFIG_FIELDS(PB_ROPE_FIELDS)

  // Returns the frequencies for an engine whose sequences have up to n_positions positions. The
  // choice does not depend on the current length of a sequence, because another choice would
  // invalidate the keys in the KV cache.
  const std::vector<float>& frequencies(int n_positions) const {
    return long_inv_freq.empty() || n_positions <= original_positions ? inv_freq : long_inv_freq;
  }
};

// A mixture of experts (MoE). In some layers, several small MLPs (the experts) replace the MLP or
// are added to it, and a router chooses n_experts_per_row of them for each row.
struct MoeConfig {
  PB_CONFIG_FIELDS(PB_MOE_FIELDS)
  std::vector<bool> in_layer;  // (n_layers); empty if n_experts is 0, that is, no layer has experts
};

// The sizes of GatedDeltaNet layers (ops/recurrent.h). n_value_heads is 0 if there are no such
// layers.
struct GatedDeltaNetShape {
  PB_CONFIG_FIELDS(PB_GATED_DELTA_NET_FIELDS)

  int key_size() const { return n_key_heads * key_dim; }
  int value_size() const { return n_value_heads * value_dim; }
  int n_channels() const { return 2 * key_size() + value_size(); }
  // first_head() is the first value head that uses a key head, n_heads_of_key() the number of these
  // value heads, and head_step() the distance between two of them.
  int first_head(int key_head) const { return in_turn ? key_head : key_head * n_heads_of_key(); }
  int n_heads_of_key() const { return n_value_heads / n_key_heads; }
  int head_step() const { return in_turn ? n_key_heads : 1; }
  int row_size() const { return n_channels() + value_size() + 2 * n_value_heads; }
  int state_size() const { return value_size() * key_dim + (conv_size - 1) * n_channels(); }
};

// The sizes of gated short convolution layers (ops/recurrent.h).
struct ShortConvShape {
  int width = 0;  // number of channels, equal to hidden_size; 0 = no such layers
  PB_CONFIG_FIELDS(PB_SHORT_CONV_FIELDS)

  int row_size() const { return 3 * width; }
  int state_size() const { return (conv_size - 1) * width; }
};

// The sizes in which a layer may differ from the other layers.
struct LayerShape {
  PB_CONFIG_FIELDS(PB_LAYER_SHAPE_FIELDS)

  int kv_size() const { return n_kv_heads * head_dim; }
};

struct ModelConfig {
  PB_CONFIG_FIELDS(PB_MODEL_FIELDS)
  // The rotary embeddings of all layers; empty if positions are learned.
  std::vector<RopeConfig> ropes;
  // (n_layers): index into `ropes`; -1 = the layer does not rotate q and k
  std::vector<int> layer_ropes;
  // (n_layers): the number of positions that a query attends to, including its own; 0 = all. If
  // attention is not causal, the window extends that far on each side.
  std::vector<int> sliding_windows;
  // One entry per layer. Empty if all layers have n_kv_heads, head_dim and intermediate_size.
  std::vector<LayerShape> layer_shapes;
  MoeConfig moe;
  // A model has at most one kind of recurrent layer. Only the shape of that kind is set.
  GatedDeltaNetShape gated_delta_net;
  ShortConvShape short_conv;
  // (n_layers): true = recurrent, without attention; empty = none
  std::vector<bool> recurrent_layers;

  int q_size() const { return n_heads * head_dim; }
  int kv_size() const { return n_kv_heads * head_dim; }
  LayerShape shape(int layer) const {
    if (layer_shapes.empty()) return {n_kv_heads, head_dim, intermediate_size};
    return layer_shapes[static_cast<size_t>(layer)];
  }
  // Returns true if rows have several rope positions.
  bool has_rope_axes() const {
    return std::ranges::any_of(ropes, [](const RopeConfig& rope) { return !rope.axes.empty(); });
  }
  // Returns the columns of an image row: its embedding, and what is added after each deepstack
  // layer.
  int image_columns() const { return takes_images ? hidden_size * (1 + deepstack_layers) : 0; }
  bool learned_positions() const { return position == PositionKind::kLearned; }
  bool has_experts(int layer) const {
    return moe.n_experts > 0 && moe.in_layer[static_cast<size_t>(layer)];
  }
  int state_size() const {  // number of floats in the state of a recurrent layer
    return has_short_conv() ? short_conv.state_size() : gated_delta_net.state_size();
  }
  bool has_short_conv() const { return short_conv.width > 0; }
  bool is_recurrent(int layer) const {
    return !recurrent_layers.empty() && recurrent_layers[static_cast<size_t>(layer)];
  }
  // attn_norm_in_residual() is true if the output of the norm before attention replaces the
  // residual stream, and mlp_norm_in_residual() if that of the norm before the MLP does.
  bool attn_norm_in_residual(int layer) const {
    return residual_norms == ResidualNorms::kAll ||
           (residual_norms == ResidualNorms::kFirst && layer == 0);
  }
  bool mlp_norm_in_residual() const { return residual_norms == ResidualNorms::kAll; }

  // Throws kModelFormat with the name of the invalid field, its value and the values that it may
  // have.
  void validate() const;
};

}  // namespace pb
