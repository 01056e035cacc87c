#include "model/tower.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "sampling/finite.h"

namespace pb {
namespace {

// The positions of a KV block. Tiles and attention windows begin in a block of their own, and many
// of them have few rows, so that large blocks would be mostly empty.
constexpr int kBlockSize = 16;

// The most tiles and windows that are in flight, if they are small.
constexpr int kSmallSegments = 1024;

constexpr int kTowerModel = 1;  // PassShape::model

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidRequest, message);
}

size_t size(int64_t n) { return static_cast<size_t>(n); }

Buffer floats(Backend& backend, int64_t rows, int64_t cols) {
  return backend.make_buffer(size(rows) * size(cols) * sizeof(float));
}

// Returns the view of n_rows rows of `cols` floats, starting at first_row.
Buffer rows_of(Buffer& buffer, int64_t first_row, int64_t n_rows, int64_t cols) {
  return buffer.slice(size(first_row) * size(cols) * sizeof(float),
                      size(n_rows) * size(cols) * sizeof(float));
}

// Returns the limits with rows and chunks of whole groups.
TowerLimits adjusted(const VisionConfig& config, TowerLimits limits) {
  const int group = config.projector.group;
  limits.n_rows = std::max(1, limits.n_rows / group) * group;
  limits.n_ubatch = std::min(limits.n_rows, std::max(1, limits.n_ubatch / group) * group);
  return limits;
}

int blocks_of(int n_rows) { return (n_rows + kBlockSize - 1) / kBlockSize; }

// Returns the KV blocks of the rows in flight. A tile has one or more groups.
int n_blocks_for(const VisionConfig& config, const TowerLimits& limits) {
  return blocks_of(limits.n_rows) +
         std::min(kSmallSegments, limits.n_rows / config.projector.group);
}

std::vector<LayerStorage> storages_of(const ModelConfig& layers) {
  return {{.shape = {layers.n_kv_heads, layers.head_dim}, .n_layers = 1}};
}

ForwardLimits forward_limits(const VisionConfig& config, const TowerLimits& limits) {
  return {.model = kTowerModel,
          .n_ubatch = limits.n_ubatch,
          .n_positions = limits.n_rows,
          .n_sequences = limits.n_ubatch,
          .block_size = kBlockSize,
          .storages = storages_of(config.layers),
          .kv_dtype = limits.kv_dtype,
          .given_columns = config.patch_size + config.layers.hidden_size};
}

Activation activation_of(ProjectorActivation activation) {
  switch (activation) {
    case ProjectorActivation::kSilu:
      return Activation::kSilu;
    case ProjectorActivation::kGeluTanh:
      return Activation::kGeluTanh;
    default:
      return Activation::kGelu;
  }
}

}  // namespace

size_t tower_bytes(const VisionConfig& config, const TowerLimits& limits) {
  const ModelConfig& layers = config.layers;
  const size_t hidden = size(layers.hidden_size);
  const size_t qkv = size(layers.q_size() + 2 * layers.kv_size());
  const size_t of_row = sizeof(float) * (2 * hidden + qkv + size(config.patch_size) +
                                         size(config.width() / config.projector.group)) +
                        sizeof(int32_t) * kRopeAxes;
  size_t of_ropes = 0;
  for (const RopeConfig& rope : layers.ropes) of_ropes += 2 * sizeof(float) * rope.inv_freq.size();
  return size(limits.n_rows) * (of_row + of_ropes) +
         size(n_blocks_for(config, adjusted(config, limits))) * kBlockSize *
             size(2 * layers.kv_size()) * dtype_size(limits.kv_dtype);
}

Tower::Projection::Projection(const ProjectorConfig& config, const ProjectorWeights& weights,
                              Backend& backend, int max_rows)
    : config(config), weights(weights) {
  for (const Matrix& linear : weights.linears) {
    inputs.emplace_back(backend, max_rows, linear.n_in).add(linear);
    outputs.push_back(floats(backend, max_rows, linear.n_out));
  }
}

Tower::Tower(const VisionConfig& config, const TowerWeights& weights, Backend& backend,
             const TowerLimits& limits, std::shared_ptr<Heartbeat> heartbeat)
    : config_(config),
      weights_(weights),
      backend_(backend),
      limits_(adjusted(config, limits)),
      heartbeat_(std::move(heartbeat)),
      forward_(config.layers, weights.blocks, backend, forward_limits(config, limits_)) {
  const ModelConfig& layers = config.layers;
  const int hidden = layers.hidden_size, group = config.projector.group;
  const int n_blocks = n_blocks_for(config, limits_);
  kv_.storages.push_back(backend.make_kv(n_blocks, kBlockSize, 1, layers.n_kv_heads,
                                         layers.head_dim, limits_.kv_dtype));
  kv_.places.resize(size(layers.n_layers));
  patches_ = floats(backend, limits_.n_ubatch, config.patch_size);
  rounded_patches_ = ActivationSet(backend, limits_.n_ubatch, config.patch_size);
  rounded_patches_.add(weights.patch);
  x_ = floats(backend, limits_.n_rows, hidden);
  qkv_ = floats(backend, limits_.n_rows, forward_.qkv_columns());
  const int n_groups = limits_.n_ubatch / group;
  if (config.projector.pool == Pool::kMean) pooled_ = floats(backend, n_groups, hidden);
  projections_.reserve(1 + config.deepstack.size());
  projections_.emplace_back(config.projector, weights.projector, backend, n_groups);
  for (size_t i = 0; i < config.deepstack.size(); ++i) {
    projections_.emplace_back(config.deepstack[i].projector, weights.deepstack[i], backend,
                              n_groups);
  }
  given_.resize(size(limits_.n_ubatch) * size(config.patch_size + hidden));
  downloaded_.resize(
      std::max(size(n_groups) * size(config.projector.out_size()),
               config.projector.pool == Pool::kMean ? size(limits_.n_ubatch) * size(hidden) : 0));
  sequences_.reserve(size(limits_.n_ubatch));
  zeros_.resize(size(limits_.n_ubatch));
  blocks_.resize(size(n_blocks));
  std::iota(blocks_.begin(), blocks_.end(), 0);
  use_rows(limits_.n_ubatch);  // frees the buffers that forward_ has allocated for them
}

// Points forward_ to the rows of the next chunk.
void Tower::use_rows(int n_rows) {
  forward_.use_rows(rows_of(x_, first_row_, n_rows, config_.layers.hidden_size),
                    rows_of(qkv_, first_row_, n_rows, forward_.qkv_columns()));
}

void Tower::check(const TowerTile& tile, const std::string& name) const {
  const auto check_shape = [&](const char* field, size_t n, int64_t columns) {
    if (n == size(tile.n_rows) * size(columns)) return;
    refuse(name + field + " has " + std::to_string(n) + " numbers; it must have " +
           std::to_string(columns) + " for each of " + std::to_string(tile.n_rows) + " patches");
  };
  const auto check_numbers = [&](const char* field, std::span<const int32_t> numbers, int end) {
    for (const int32_t number : numbers) {
      if (number >= 0 && number < end) continue;
      refuse(name + field + " holds " + std::to_string(number) + "; the numbers must be 0 to " +
             std::to_string(end - 1));
    }
  };
  const int group = config_.projector.group;
  if (tile.n_rows < 1 || tile.n_rows % group != 0) {
    refuse(name + "patches has " + std::to_string(tile.n_rows) +
           " rows; there must be a multiple of " + std::to_string(group) + ", and one or more");
  }
  if (tile.n_rows > limits_.n_rows) {
    refuse(name + "patches has " + std::to_string(tile.n_rows) + " rows; up to " +
           std::to_string(limits_.n_rows) + " fit");
  }
  check_shape("patches", tile.patches.size(), config_.patch_size);
  check_shape("coordinates", tile.coordinates.size(), 2);
  check_shape("table_index", tile.table_index.size(), tile.n_taps);
  check_shape("table_weight", tile.table_weight.size(), tile.n_taps);
  check_numbers("coordinates", tile.coordinates, limits_.n_rows);
  check_numbers("table_index", tile.table_index, config_.n_positions);
  if (tile.windows.empty() == !config_.windowed_layers.empty()) {
    refuse(name + "windows has " + std::to_string(tile.windows.size()) +
           " lengths; there must be " +
           (config_.windowed_layers.empty() ? "none: no layer has windows" : "one or more"));
  }
  int64_t sum = 0;
  for (const int32_t length : tile.windows) {
    if (length < 1) refuse(name + "windows holds " + std::to_string(length) + "; use 1 or more");
    sum += length;
  }
  if (!tile.windows.empty() && sum != tile.n_rows) {
    refuse(name + "windows sum to " + std::to_string(sum) + "; they must sum to the " +
           std::to_string(tile.n_rows) + " patches");
  }
}

void Tower::begin(std::span<const TowerTile> tiles) {
  if (!tiles_.empty()) refuse("tiles are in progress; take or drop them first");
  if (tiles.empty()) refuse("tiles is empty; there must be one or more");
  int64_t n_rows = 0, n_blocks = 0, n_window_blocks = 0;
  for (size_t i = 0; i < tiles.size(); ++i) {
    check(tiles[i], "tiles[" + std::to_string(i) + "]: ");
    n_rows += tiles[i].n_rows;
    n_blocks += blocks_of(tiles[i].n_rows);
    for (const int32_t length : tiles[i].windows) n_window_blocks += blocks_of(length);
  }
  if (n_rows > limits_.n_rows) {
    refuse("tiles have " + std::to_string(n_rows) + " patches; up to " +
           std::to_string(limits_.n_rows) + " fit");
  }
  if (std::max(n_blocks, n_window_blocks) > std::ssize(blocks_)) {
    refuse("tiles have too many small parts for the " + std::to_string(blocks_.size()) +
           " blocks of keys and values; give fewer tiles at once, or larger windows");
  }
  try {
    pixels_.reserve(size(n_rows) * size(config_.patch_size));
    positions_.assign(size(n_rows) * size(config_.layers.hidden_size), 0.0f);
    rope_positions_.assign(size(n_rows) * kRopeAxes, 0);
    results_.resize(size(n_rows / config_.projector.group) * size(width()));
    for (const TowerTile& tile : tiles) add(tile);
  } catch (...) {
    drop();
    throw;
  }
}

// The position table is added up in f32, one row after the other.
void Tower::add(const TowerTile& tile) {
  const int hidden = config_.layers.hidden_size;
  const auto first_block = [&](const std::vector<Segment>& segments) {
    return segments.empty() ? 0 : segments.back().first_block + blocks_of(segments.back().n_rows);
  };
  tiles_.push_back({n_rows_, tile.n_rows, first_block(tiles_)});
  int first_row = n_rows_;
  for (const int32_t length : tile.windows) {
    windows_.push_back({first_row, length, first_block(windows_)});
    first_row += length;
  }
  pixels_.insert(pixels_.end(), tile.patches.begin(), tile.patches.end());
  for (int i = 0; i < tile.n_rows; ++i) {
    const size_t row = size(n_rows_ + i);
    rope_positions_[kRopeAxes * row] = tile.coordinates[2 * size(i)];
    rope_positions_[kRopeAxes * row + 1] = tile.coordinates[2 * size(i) + 1];
    float* const position = positions_.data() + row * size(hidden);
    for (int tap = 0; tap < tile.n_taps; ++tap) {
      const size_t at = size(i) * size(tile.n_taps) + size(tap);
      const float factor = tile.table_weight[at];
      const float* const from =
          weights_.positions.data() + size(tile.table_index[at]) * size(hidden);
      for (int c = 0; c < hidden; ++c) position[c] += factor * from[c];
    }
  }
  n_rows_ += tile.n_rows;
}

bool Tower::run(int64_t n_row_layers) {
  if (tiles_.empty()) refuse("no tiles are in progress; begin with some first");
  // The two halves of a layer count as half a layer each.
  int64_t halves = 0;
  try {
    while (!is_done()) {
      halves += chunk_rows();
      run_chunk();
      if (halves >= 2 * n_row_layers) break;
    }
  } catch (...) {
    drop();
    throw;
  }
  return is_done();
}

int Tower::chunk_rows() const { return std::min(limits_.n_ubatch, n_rows_ - first_row_); }

// Computes one half of a layer for the next chunk, and what follows the layer.
void Tower::run_chunk() {
  const int n_rows = chunk_rows();
  const int hidden = config_.layers.hidden_size;
  Buffer x = rows_of(x_, first_row_, n_rows, hidden);
  const bool is_first = layer_ == 0 && !attends_;
  plan(n_rows, is_first);
  if (is_first) embed(n_rows, x);
  use_rows(n_rows);
  if (!attends_) {
    forward_.attention_inputs(n_rows, layer_, kv_);
  } else {
    forward_.attention_and_mlp(n_rows, layer_, kv_);
    const int out = config_.projector.out_size();
    for (size_t i = 0; i < config_.deepstack.size(); ++i) {
      if (config_.deepstack[i].layer != layer_) continue;
      project(projections_[i + 1], n_rows, x, out * static_cast<int>(i + 1));
    }
    if (layer_ + 1 == config_.layers.n_layers) {
      if (weights_.final_norm) backend_.norm_in_place(x, n_rows, *weights_.final_norm);
      project(projections_[0], n_rows, x, 0);
    }
  }
  finish();
  heartbeat_->beat();
  first_row_ += n_rows;
  if (first_row_ < n_rows_) return;
  first_row_ = 0;
  if (attends_) ++layer_;
  attends_ = !attends_;
}

// Plans the next chunk. The first pass over a chunk has given rows: patches and positions.
void Tower::plan(int n_rows, bool is_first) {
  const auto& segments = config_.has_windows(layer_) ? windows_ : tiles_;
  const int end_row = first_row_ + n_rows;
  sequences_.clear();
  const auto ends_before = [](const Segment& s, int row) { return s.end_row() <= row; };
  auto segment = std::lower_bound(segments.begin(), segments.end(), first_row_, ends_before);
  for (; segment != segments.end() && segment->first_row < end_row; ++segment) {
    const int first = std::max(segment->first_row, first_row_);
    const int end = std::min(segment->end_row(), end_row);
    sequences_.push_back({.first_row = first - first_row_,
                          .n_rows = end - first,
                          .first_position = first - segment->first_row,
                          .block_tables = {blocks_.data() + segment->first_block},
                          .n_later = segment->end_row() - end});
  }
  RowBatch batch{.model = kTowerModel,
                 .n_rows = n_rows,
                 .tokens = zeros_.data(),
                 .positions = zeros_.data(),
                 .rope_positions = rope_positions_.data() + kRopeAxes * size(first_row_),
                 .sequences = sequences_};
  if (is_first) {
    const size_t patch = size(config_.patch_size), hidden = size(config_.layers.hidden_size);
    given_rows_ = {
        .n_rows = n_rows, .values = given_.data(), .stride = static_cast<int64_t>(patch + hidden)};
    for (int i = 0; i < n_rows; ++i) {
      const size_t row = size(first_row_ + i);
      float* const to = given_.data() + size(i) * (patch + hidden);
      std::copy_n(pixels_.data() + row * patch, patch, to);
      std::copy_n(positions_.data() + row * hidden, hidden, to + patch);
    }
    batch.given = {&given_rows_, 1};
  }
  backend_.plan(batch, kv_.storages.front());
}

// x = W patches + b + positions, and its norm.
void Tower::embed(int n_rows, Buffer& x) {
  backend_.give_rows(0, config_.patch_size, Store::kSet, patches_);
  const Activations& rounded = rounded_patches_.made_for(
      weights_.patch, n_rows, [&](Activations& out) { backend_.round(patches_, n_rows, out); });
  backend_.matmul(rounded, n_rows, weights_.patch, x, Store::kSet);
  if (config_.n_positions > 0) {
    backend_.give_rows(config_.patch_size, config_.layers.hidden_size, Store::kAdd, x);
  }
  if (weights_.pre_norm) backend_.norm_in_place(x, n_rows, *weights_.pre_norm);
}

// Writes the projected rows of a chunk to the results, from `column` on. Changes x if the projector
// has a norm before its pooling.
void Tower::project(Projection& projection, int n_rows, Buffer& x, int column) {
  const ProjectorConfig& projector = projection.config;
  const ProjectorWeights& weights = projection.weights;
  const int n = n_rows / projector.group;
  if (weights.norm_before) backend_.norm_in_place(x, n_rows, *weights.norm_before);
  if (projector.pool == Pool::kMean) average(projector, n_rows, x);
  // The rows of a group are neighbours in x, so that joined rows need no copy.
  Buffer& pooled = projector.pool == Pool::kMean ? pooled_ : x;
  for (size_t i = 0; i < weights.linears.size(); ++i) {
    const Matrix& linear = weights.linears[i];
    const Activations& in = projection.inputs[i].made_for(linear, n, [&](Activations& out) {
      if (i == 0) {
        if (weights.norm_after) return backend_.norm(pooled, {.n = n}, *weights.norm_after, out);
        return backend_.round(pooled, n, out);
      }
      const ProjectorActivation activation = projector.linears[i - 1].activation;
      Buffer& before = projection.outputs[i - 1];
      if (activation == ProjectorActivation::kNone) return backend_.round(before, n, out);
      backend_.activate(before, n, activation_of(activation), false, out);
    });
    backend_.matmul(in, n, linear, projection.outputs[i], Store::kSet);
  }
  const size_t out = size(projector.out_size());
  const std::span<float> made(downloaded_.data(), size(n) * out);
  backend_.download(projection.outputs.back(), std::as_writable_bytes(made));
  finish();
  float* to = results_.data() + size(first_row_ / projector.group) * size(width()) + column;
  for (int i = 0; i < n; ++i, to += width()) std::copy_n(made.data() + size(i) * out, out, to);
}

// Sets the first rows of pooled_ to the scaled averages of the groups of a chunk. There are few of
// these numbers, and they are added on the host, in order, so that no device needs a kernel.
void Tower::average(const ProjectorConfig& projector, int n_rows, Buffer& x) {
  const int hidden = config_.layers.hidden_size;
  const std::span<float> rows(downloaded_.data(), size(n_rows) * size(hidden));
  backend_.download(x, std::as_writable_bytes(rows));
  finish();
  const float* from = rows.data();
  const int n = n_rows / projector.group;
  for (int i = 0; i < n; ++i) {
    float* const to = given_.data() + size(i) * size(hidden);
    std::fill_n(to, hidden, 0.0f);
    for (int r = 0; r < projector.group; ++r, from += hidden) {
      for (int c = 0; c < hidden; ++c) to[c] += from[c];
    }
    for (int c = 0; c < hidden; ++c) {
      to[c] = to[c] / static_cast<float>(projector.group) * projector.scale;
    }
  }
  given_rows_ = {.n_rows = n, .values = given_.data(), .stride = hidden};
  backend_.plan({.model = kTowerModel,
                 .n_rows = n,
                 .tokens = zeros_.data(),
                 .positions = zeros_.data(),
                 .rope_positions = rope_positions_.data(),
                 .given = {&given_rows_, 1}},
                kv_.storages.front());
  backend_.give_rows(0, hidden, Store::kSet, pooled_);
}

std::vector<TowerRows> Tower::take() {
  if (tiles_.empty()) refuse("no tiles are in progress; begin with some first");
  if (!is_done()) refuse("the tiles in progress are not complete; run until it returns True");
  std::vector<TowerRows> all;
  for (const Segment& tile : tiles_) {
    const size_t group = size(config_.projector.group), columns = size(width());
    TowerRows& rows = all.emplace_back();
    rows.values = std::span(results_).subspan(size(tile.first_row) / group * columns,
                                              size(tile.n_rows) / group * columns);
    if (!all_finite(rows.values)) {
      rows.failure = "the model's embeddings of the image are not all finite";
    }
  }
  drop();
  return all;
}

void Tower::drop() {
  tiles_.clear();
  windows_.clear();
  pixels_.clear();
  layer_ = first_row_ = n_rows_ = 0;
  attends_ = false;
}

}  // namespace pb
