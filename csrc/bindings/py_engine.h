// The engine of the extension: a GuardedEngine, and constant facts about it, which need no lock and
// outlive close().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/guarded_engine.h"

namespace pb::bindings {

struct EngineFacts {
  explicit EngineFacts(const Engine& engine)
      : options(engine.options()),
        vocab_size(engine.config().vocab_size),
        hidden_size(engine.config().hidden_size),
        image_columns(engine.config().image_columns()),
        max_sequence_length(engine.max_sequence_length()),
        kv_total_blocks(engine.kv().total_blocks()),
        kv_most_appendable_blocks(engine.kv().most_appendable_blocks()),
        takes_drafts(engine.takes_drafts()),
        tower_rows(engine.tower_rows()),
        tower_layers(engine.tower_layers()),
        tower_row_cost(engine.tower_row_cost()),
        layer_groups(engine.layer_groups().groups),
        device(engine.backend().device()),
        target(engine.backend().target()),
        n_threads(engine.backend().n_threads()),
        dtypes(engine.weight_dtypes()),
        weight_bytes(engine.weight_bytes()),
        weights_cache(engine.weights_cache()),
        kv_bytes(engine.kv_bytes()) {}

  EngineOptions options;
  int vocab_size;
  int hidden_size;
  int image_columns;  // 0 if the model takes no images
  int max_sequence_length;
  int kv_total_blocks;
  int kv_most_appendable_blocks;
  bool takes_drafts;
  int tower_rows;  // 0 without a vision tower
  int tower_layers;
  double tower_row_cost;
  std::vector<LayerGroup> layer_groups;
  std::string device;
  std::string target;
  int n_threads;
  std::vector<DType> dtypes;  // those of the matrices
  size_t weight_bytes;
  CacheUse weights_cache;
  size_t kv_bytes;
};

struct PyEngine {
  explicit PyEngine(std::unique_ptr<Engine> engine) : facts(*engine), guarded(std::move(engine)) {}

  const EngineFacts facts;
  GuardedEngine guarded;
};

}  // namespace pb::bindings
