// The configuration of a vision tower: an encoder that computes embeddings of images for the text
// model.
//
// pybatcher/loading fills it from a checkpoint. config_fields.def declares the scalar fields.
#pragma once

#include <array>
#include <vector>

#include "config/config.h"

namespace pb {

// The most patches that become one row of the text model.
inline constexpr int kMaxGroup = 1 << 10;

enum class Pool { kConcat, kMean };
enum class ProjectorNorm { kNone, kRms, kLayer };
enum class ProjectorActivation { kNone, kSilu, kGeluTanh, kGelu };

template <>
inline constexpr std::array kChoices<Pool> = {"concat", "mean"};
template <>
inline constexpr std::array kChoices<ProjectorNorm> = {"none", "rms", "layer"};
template <>
inline constexpr std::array kChoices<ProjectorActivation> = {"none", "silu", "gelu_tanh", "gelu"};

struct ProjectorLinear {
  PB_CONFIG_FIELDS(PB_PROJECTOR_LINEAR_FIELDS)
};

// Turns groups of consecutive rows of a tower into rows of the text model: norm of each row,
// pooling, norm of each pooled row, and products, each with an activation after it or without one.
struct ProjectorConfig {
  PB_CONFIG_FIELDS(PB_PROJECTOR_FIELDS)
  std::vector<ProjectorLinear> linears;  // one or more; the last one has no activation

  // Returns the width of a pooled row of a tower whose rows have `hidden` numbers.
  int pooled_size(int hidden) const { return pool == Pool::kConcat ? group * hidden : hidden; }
  int out_size() const { return linears.back().n_out; }
};

// A projector whose rows are further columns of the result: those that the text model adds after
// one of its first layers.
struct DeepstackConfig {
  PB_CONFIG_FIELDS(PB_DEEPSTACK_FIELDS)
  ProjectorConfig projector;
};

struct VisionConfig {
  ModelConfig layers;  // the layers of the tower: not causal, and without token embeddings
  PB_CONFIG_FIELDS(PB_VISION_FIELDS)
  ProjectorConfig projector;
  std::vector<DeepstackConfig> deepstack;  // in ascending order of their layers
  // (n_layers): true = attention within the windows of a tile; empty = none
  std::vector<bool> windowed_layers;

  // Returns the numbers of a result row: the projector's output, then those of deepstack.
  int width() const { return projector.out_size() * (1 + static_cast<int>(deepstack.size())); }
  bool has_windows(int layer) const {
    return !windowed_layers.empty() && windowed_layers[static_cast<size_t>(layer)];
  }

  // Throws kModelFormat with the name of the invalid field, its value and the values that it may
  // have.
  void validate() const;
};

}  // namespace pb
