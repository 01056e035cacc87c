#include "config/config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "config/vision_config.h"

namespace pb {
namespace {

[[noreturn]] void refuse(const std::string& field, const std::string& value,
                         const std::string& wanted) {
  throw Error(ErrorCode::kModelFormat,
              "config." + field + " is " + value + "; it must be " + wanted);
}

void check_range(const std::string& field, int value, int low, int high) {
  if (value < low || value > high) {
    refuse(field, std::to_string(value),
           "from " + std::to_string(low) + " to " + std::to_string(high));
  }
}

void check_field(const std::string& field, int value, FieldRange range) {
  check_range(field, value, static_cast<int>(range.low), static_cast<int>(range.high));
}

// Checks the lower end of the range only, because ranges of floats have no upper end.
void check_field(const std::string& field, float value, FieldRange range) {
  const double low = range.low;
  if (std::isfinite(value) && (range.excludes_low ? value > low : value >= low)) return;
  const std::string name = std::to_string(static_cast<int>(low));
  refuse(field, std::to_string(value),
         range.excludes_low ? "a finite number above " + name
                            : "a finite number, " + name + " or more");
}

template <typename T>
// Bools, names and choices have no range.
void check_field(const std::string&, const T&, FieldRange) {}

// Checks the range of every scalar field of `part`. In messages, `prefix` precedes the name of a
// field.
template <typename Part>
void check_fields(const Part& part, const std::string& prefix = "") {
  Part::visit_fields(part, [&](const auto& field, const auto& value) {
    check_field(prefix + field.name, value, field.range);
  });
}

void check_frequencies(const char* field, const std::vector<float>& frequencies, int head_dim) {
  if (frequencies.size() != static_cast<size_t>(head_dim / 2)) {
    refuse(field, std::to_string(frequencies.size()) + " numbers",
           "head_dim / 2 = " + std::to_string(head_dim / 2) + " numbers");
  }
  for (float f : frequencies) {
    if (!std::isfinite(f) || f < 0.0f) {
      refuse(field, "a list that holds " + std::to_string(f), "finite numbers, 0 or more");
    }
  }
}

void check_rope(const RopeConfig& rope, int head_dim) {
  if (head_dim % 2 != 0) refuse("head_dim", std::to_string(head_dim), "even with rope");
  check_frequencies("ropes.inv_freq", rope.inv_freq, head_dim);
  if (!rope.long_inv_freq.empty()) {
    check_frequencies("ropes.long_inv_freq", rope.long_inv_freq, head_dim);
  }
  if (!rope.axes.empty() && rope.axes.size() != rope.inv_freq.size()) {
    refuse("ropes.axes", std::to_string(rope.axes.size()) + " numbers",
           "empty, or one for each of " + std::to_string(rope.inv_freq.size()) + " frequencies");
  }
  for (const int axis : rope.axes) check_range("ropes.axes", axis, 0, kRopeAxes - 1);
  check_fields(rope, "ropes.");
  const bool is_used = rope.query_beta > 0.0f || !rope.long_inv_freq.empty();
  check_range("ropes.original_positions", rope.original_positions, is_used ? 1 : 0, kMaxPositions);
}

void check_heads(const LayerShape& shape, int n_heads, const std::string& prefix) {
  check_range(prefix + "n_kv_heads", shape.n_kv_heads, 1, n_heads);
  if (n_heads % shape.n_kv_heads != 0) {
    refuse(prefix + "n_kv_heads", std::to_string(shape.n_kv_heads),
           "a divisor of n_heads, " + std::to_string(n_heads));
  }
}

// Checks that a layer without its own KV reads the KV of an earlier layer, which has its own KV and
// the same KV heads and sliding window.
void check_kv_layer(const ModelConfig& c, int layer) {
  const LayerShape shape = c.shape(layer);
  check_range("layer_shapes.kv_layer", shape.kv_layer, -1, layer - 1);
  if (shape.kv_layer < 0) return;
  const LayerShape other = c.shape(shape.kv_layer);
  const auto window = [&](int of) { return c.sliding_windows[static_cast<size_t>(of)]; };
  if (other.kv_layer >= 0 || other.n_kv_heads != shape.n_kv_heads ||
      other.head_dim != shape.head_dim || window(layer) != window(shape.kv_layer)) {
    refuse("layer_shapes.kv_layer", std::to_string(shape.kv_layer),
           "a layer with keys and values of its own, and of the heads and the window of layer " +
               std::to_string(layer));
  }
}

void check_layer_shapes(const ModelConfig& c) {
  if (c.layer_shapes.empty()) return;
  if (c.layer_shapes.size() != static_cast<size_t>(c.n_layers)) {
    refuse("layer_shapes", std::to_string(c.layer_shapes.size()) + " shapes",
           "one a layer, " + std::to_string(c.n_layers) + ", or empty");
  }
  for (const LayerShape& shape : c.layer_shapes) {
    check_fields(shape, "layer_shapes.");
    check_heads(shape, c.n_heads, "layer_shapes.");
  }
}

// Checks that layer scales and per-layer embeddings are used with post-norm, and that the norm of
// values is RMSNorm.
void check_post_norm_parts(const ModelConfig& c) {
  if (c.value_norm && c.norm != NormKind::kRms) {
    refuse("value_norm", "true", "false where norm is 'layer'");
  }
  if (c.post_norm) return;
  if (c.layer_scales) refuse("layer_scales", "true", "false where post_norm is");
  check_range("per_layer_embedding_size", c.per_layer_embedding_size, 0, 0);
}

void check_experts(const MoeConfig& moe, int n_layers, bool gated_mlp) {
  const size_t n_flags = moe.n_experts == 0 ? 0 : static_cast<size_t>(n_layers);
  if (moe.in_layer.size() != n_flags) {
    refuse("moe.in_layer", std::to_string(moe.in_layer.size()) + " flags",
           "one a layer, or empty without experts: " + std::to_string(n_flags));
  }
  if (moe.n_experts == 0) return;
  check_fields(moe, "moe.");
  check_range("moe.n_experts_per_row", moe.n_experts_per_row, 1, moe.n_experts);
  if (!gated_mlp) refuse("gated_mlp", "false", "true with experts");
  if (moe.shared_expert && moe.beside_mlp) {
    refuse("moe.shared_expert", "true", "false with experts beside an MLP");
  }
}

// Checks that experts have a post-norm if and only if they are beside an MLP. The output of experts
// that replace the MLP is added to the residual stream without a norm.
void check_norms_of_experts(const ModelConfig& c) {
  if (c.moe.n_experts == 0) return;
  if (!c.pre_norm) refuse("pre_norm", "false", "true with experts");
  if (c.post_norm == c.moe.beside_mlp) return;
  refuse("post_norm", c.post_norm ? "true" : "false",
         "true with experts beside an MLP, and false with experts instead of it");
}

// Checks that parallel attention and MLP are used in plain decoder blocks only: causal, pre-norm
// alone, without recurrent layers or experts.
void check_parallel_blocks(const ModelConfig& c) {
  if (!c.parallel_blocks) return;
  const bool is_plain = c.causal && c.pre_norm && !c.post_norm && c.recurrent_layers.empty() &&
                        c.residual_norms == ResidualNorms::kNone && c.moe.n_experts == 0;
  if (is_plain) return;
  refuse("parallel_blocks", "true",
         "false but in decoders with a norm before each block alone, and without experts");
}

// Checks that xIELU is used in MLPs without a gate only. It has learned parameters for the MLP of
// each layer, and none for the gate of per-layer embeddings.
void check_activation(const ModelConfig& c) {
  if (c.activation != Activation::kXielu) return;
  if (!c.gated_mlp && c.per_layer_embedding_size == 0) return;
  refuse("activation", "'xielu'", "another one if the MLP has a gate, or layers have inputs");
}

void check_attention_gate(const ModelConfig& c) {
  if (!c.attention_gate) return;
  if (c.layer_shapes.empty() && c.residual_norms == ResidualNorms::kNone) return;
  refuse("attention_gate", "true",
         "false where layers have shapes of their own, or the stream goes on from norms");
}

void check_gated_delta_net(const GatedDeltaNetShape& gated_delta_net) {
  check_fields(gated_delta_net, "gated_delta_net.");
  if (gated_delta_net.n_value_heads % gated_delta_net.n_key_heads != 0) {
    refuse("gated_delta_net.n_value_heads", std::to_string(gated_delta_net.n_value_heads),
           "a multiple of gated_delta_net.n_key_heads, " +
               std::to_string(gated_delta_net.n_key_heads));
  }
  if (int64_t{gated_delta_net.n_value_heads} * gated_delta_net.value_dim > kMaxWidth ||
      int64_t{gated_delta_net.n_key_heads} * gated_delta_net.key_dim > kMaxWidth) {
    refuse("gated_delta_net", "wider than " + std::to_string(kMaxWidth), "at most as wide");
  }
}

void check_recurrent_layers(const ModelConfig& c) {
  if (c.recurrent_layers.empty()) {
    check_range("gated_delta_net.n_value_heads", c.gated_delta_net.n_value_heads, 0, 0);
    check_range("short_conv.width", c.short_conv.width, 0, 0);
    return;
  }
  if (c.recurrent_layers.size() != static_cast<size_t>(c.n_layers)) {
    refuse("recurrent_layers", std::to_string(c.recurrent_layers.size()) + " flags",
           "one a layer, " + std::to_string(c.n_layers) + ", or empty");
  }
  if (c.has_short_conv()) {
    check_range("gated_delta_net.n_value_heads", c.gated_delta_net.n_value_heads, 0, 0);
    check_range("short_conv.width", c.short_conv.width, c.hidden_size, c.hidden_size);
    check_fields(c.short_conv, "short_conv.");
  } else {
    check_gated_delta_net(c.gated_delta_net);
  }
  if (std::ranges::count(c.recurrent_layers, false) == 0) {
    refuse("recurrent_layers", "true in all layers", "false in one or more: they have attention");
  }
  if (!c.causal || !c.pre_norm || c.post_norm || c.residual_norms != ResidualNorms::kNone) {
    refuse("recurrent_layers", "true", "false but in decoders with a norm before each block alone");
  }
}

// Checks that the layers of a tower are those of an encoder of rows that are given: all fields that
// the tower would ignore are unset.
void check_tower_layers(const ModelConfig& c) {
  if (c.causal) refuse("causal", "true", "false in a vision tower");
  if (!c.pre_norm) refuse("pre_norm", "false", "true in a vision tower");
  if (c.residual_norms != ResidualNorms::kNone) {
    refuse("residual_norms", "'first' or 'all'", "'none' in a vision tower");
  }
  if (c.learned_positions()) refuse("position", "'learned'", "'rope' in a vision tower");
  if (c.attention_gate) refuse("attention_gate", "true", "false in a vision tower");
  if (!c.layer_shapes.empty()) refuse("layer_shapes", "set", "empty in a vision tower");
  if (!c.recurrent_layers.empty()) refuse("recurrent_layers", "set", "empty in a vision tower");
  check_range("moe.n_experts", c.moe.n_experts, 0, 0);
  check_range("per_layer_embedding_size", c.per_layer_embedding_size, 0, 0);
  for (const int window : c.sliding_windows) check_range("sliding_windows", window, 0, 0);
}

void check_projector(const ProjectorConfig& p, int hidden, const std::string& prefix) {
  check_fields(p, prefix);
  if (p.linears.empty()) refuse(prefix + "linears", "empty", "a list of one or more");
  for (const ProjectorLinear& linear : p.linears) check_fields(linear, prefix + "linears.");
  if (p.linears.back().activation != ProjectorActivation::kNone) {
    refuse(prefix + "linears.activation", "set in the last one", "'none' there");
  }
  if (p.pool == Pool::kConcat && p.scale != 1.0f) {
    refuse(prefix + "scale", std::to_string(p.scale), "1 where pool is 'concat'");
  }
  if (int64_t{p.group} * hidden > kMaxWidth) {
    refuse(prefix + "group", std::to_string(p.group),
           "so small that its rows together have up to " + std::to_string(kMaxWidth) + " numbers");
  }
}

}  // namespace

void VisionConfig::validate() const {
  const std::string prefix = "vision.";
  try {
    layers.validate();
    check_tower_layers(layers);
  } catch (const Error& error) {
    const std::string message = error.what();
    throw Error(error.code(), "config.vision.layers" + message.substr(message.find('.')));
  }
  check_fields(*this, prefix);
  check_projector(projector, layers.hidden_size, prefix + "projector.");
  int last = -1;
  for (const DeepstackConfig& d : deepstack) {
    const std::string at = prefix + "deepstack.";
    check_range(at + "layer", d.layer, last + 1, layers.n_layers - 1);
    last = d.layer;
    check_projector(d.projector, layers.hidden_size, at + "projector.");
    check_range(at + "projector.group", d.projector.group, projector.group, projector.group);
    check_range(at + "projector.linears.n_out", d.projector.out_size(), projector.out_size(),
                projector.out_size());
    if (d.projector.norm_before != ProjectorNorm::kNone || d.projector.pool != Pool::kConcat) {
      refuse(at + "projector", "one with norm_before or an average", "one of joined rows only");
    }
  }
  if (!windowed_layers.empty() && std::ssize(windowed_layers) != layers.n_layers) {
    refuse(prefix + "windowed_layers", std::to_string(windowed_layers.size()) + " flags",
           "one a layer, " + std::to_string(layers.n_layers) + ", or empty");
  }
}

void ModelConfig::validate() const {
  check_fields(*this);
  check_heads({n_kv_heads, head_dim, intermediate_size}, n_heads, "");
  check_layer_shapes(*this);
  if (norm != NormKind::kRms && (post_norm || whole_qk_norm)) {
    refuse(post_norm ? "post_norm" : "whole_qk_norm", "true", "false where norm is 'layer'");
  }
  if (qk_norm_after_rope && (norm != NormKind::kRms || whole_qk_norm)) {
    refuse("qk_norm_after_rope", "true", "false where norm is 'layer', and with whole_qk_norm");
  }
  if (residual_norms != ResidualNorms::kNone && (!pre_norm || moe.n_experts > 0)) {
    refuse("residual_norms", "'first' or 'all'", "'none' without pre_norm, and with experts");
  }
  if (learned_positions() && !ropes.empty()) {
    refuse("ropes", "a list of " + std::to_string(ropes.size()),
           "empty where positions are learned");
  }
  if (layer_ropes.size() != static_cast<size_t>(n_layers)) {
    refuse("layer_ropes", std::to_string(layer_ropes.size()) + " numbers",
           "one a layer, " + std::to_string(n_layers));
  }
  for (int layer = 0; layer < n_layers; ++layer) {
    const int rope = layer_ropes[static_cast<size_t>(layer)];
    check_range("layer_ropes", rope, -1, static_cast<int>(ropes.size()) - 1);
    if (rope >= 0) check_rope(ropes[static_cast<size_t>(rope)], shape(layer).head_dim);
  }
  if (sliding_windows.size() != static_cast<size_t>(n_layers)) {
    refuse("sliding_windows", std::to_string(sliding_windows.size()) + " numbers",
           "one a layer, " + std::to_string(n_layers));
  }
  for (int window : sliding_windows) check_range("sliding_windows", window, 0, kMaxPositions);
  for (int layer = 0; layer < n_layers; ++layer) check_kv_layer(*this, layer);
  check_post_norm_parts(*this);
  check_experts(moe, n_layers, gated_mlp);
  check_norms_of_experts(*this);
  check_activation(*this);
  check_attention_gate(*this);
  check_range("deepstack_layers", deepstack_layers, 0, takes_images ? n_layers : 0);
  check_parallel_blocks(*this);
  check_recurrent_layers(*this);
}

}  // namespace pb
