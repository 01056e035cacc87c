// The vision tower: computes embeddings of images with the operations of a Backend and the layers
// of Forward.
//
// The tower computes all tiles in flight together, layer by layer, in chunks of rows. In each
// layer, all chunks first store their keys and values, and then attend to those of their tiles. A
// call of run() computes a few chunks, so that passes of the text model can run between two calls.
// The bits of a row depend on its tile alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/heartbeat.h"
#include "config/vision_config.h"
#include "model/activation_set.h"
#include "model/forward.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace pb {

// One image, or a part of a large one. The patches of one result row are consecutive.
struct TowerTile {
  int n_rows = 0;                             // patches, a multiple of the projector's group
  std::span<const float> patches = {};        // (n_rows, patch_size)
  std::span<const int32_t> coordinates = {};  // (n_rows, 2): row and column, for rotary embeddings
  int n_taps = 0;                             // rows of the position table for each patch
  std::span<const int32_t> table_index = {};  // (n_rows, n_taps)
  std::span<const float> table_weight = {};   // (n_rows, n_taps): factors of these rows
  // The lengths of the windows, which are consecutive rows; empty if no layer has windows.
  std::span<const int32_t> windows = {};
};

struct TowerLimits {
  int n_rows = 0;    // rows in flight
  int n_ubatch = 0;  // rows of a chunk, which has one whole group at least
  DType kv_dtype = DType::kF32;
};

// Returns the bytes of the rows in flight of a tower, in device and host memory, and of its rotary
// tables.
size_t tower_bytes(const VisionConfig& config, const TowerLimits& limits);

// The result of a tile.
struct TowerRows {
  std::span<const float> values;  // (n_rows / group, width)
  const char* failure = nullptr;  // set if not all values are finite
};

class Tower {
 public:
  // Allocates all buffers. The arguments except `limits` must outlive this.
  Tower(const VisionConfig& config, const TowerWeights& weights, Backend& backend,
        const TowerLimits& limits, std::shared_ptr<Heartbeat> heartbeat);

  // Returns the most rows that can be in flight.
  int max_rows() const { return limits_.n_rows; }
  int width() const { return config_.width(); }

  // Begins with tiles; their numbers are copied. Throws kInvalidRequest, naming the tile and the
  // field, and kInvalidRequest if work is in progress.
  void begin(std::span<const TowerTile> tiles);

  // Computes chunks until n_row_layers rows times layers are computed, or all. Returns true if all
  // are. Allocates no memory. Throws kEngine if the device fails, which ends the work, and
  // kInvalidRequest if no work is in progress.
  bool run(int64_t n_row_layers);

  // Returns the results of all tiles, in order, and ends the work. The spans are valid until the
  // next begin(). Throws kInvalidRequest unless run() has returned true.
  std::vector<TowerRows> take();

  // Ends the work in progress, if any.
  void drop();

 private:
  // Rows that attend to each other: a tile, or a window of a tile.
  struct Segment {
    int first_row;
    int n_rows;
    int first_block;  // of the KV storage

    int end_row() const { return first_row + n_rows; }
  };
  // A projector with its buffers.
  struct Projection {
    Projection(const ProjectorConfig& config, const ProjectorWeights& weights, Backend& backend,
               int max_rows);

    const ProjectorConfig& config;
    const ProjectorWeights& weights;
    std::vector<ActivationSet> inputs;  // of each linear layer
    std::vector<Buffer> outputs;        // (max_rows, n_out) f32 of each linear layer
  };

  void use_rows(int n_rows);
  void check(const TowerTile& tile, const std::string& name) const;
  void add(const TowerTile& tile);
  int chunk_rows() const;
  bool is_done() const { return layer_ == config_.layers.n_layers; }

  void run_chunk();
  void plan(int n_rows, bool is_first);
  void embed(int n_rows, Buffer& x);
  void project(Projection& projection, int n_rows, Buffer& x, int column);
  void average(const ProjectorConfig& projector, int n_rows, Buffer& x);
  void finish() { backend_.finish(*heartbeat_); }

  const VisionConfig& config_;
  const TowerWeights& weights_;
  Backend& backend_;
  TowerLimits limits_;
  std::shared_ptr<Heartbeat> heartbeat_;
  Forward forward_;
  ModelKv kv_;      // the keys and values of one layer, for the rows in flight
  Buffer patches_;  // (limits_.n_ubatch, patch_size) f32
  ActivationSet rounded_patches_;
  Buffer x_;       // (n_rows, hidden) f32: the residual stream of the rows in flight
  Buffer qkv_;     // (n_rows, columns of qkv) f32
  Buffer pooled_;  // (groups of a chunk, hidden) f32, for averages
  std::vector<Projection> projections_;  // the projector, then those of deepstack

  // Host memory of the rows in flight.
  std::vector<float> pixels_;            // (rows, patch_size)
  std::vector<float> positions_;         // (rows, hidden): from the position table
  std::vector<int32_t> rope_positions_;  // (rows, kRopeAxes)
  std::vector<float> results_;           // (rows / group, width)
  // Host memory of a chunk.
  std::vector<float> given_;             // (n_ubatch, patch_size + hidden)
  std::vector<float> downloaded_;        // (n_ubatch, hidden or output of a projector)
  GivenRows given_rows_;                 // of given_
  std::vector<SequenceRows> sequences_;  // of the planned chunk
  std::vector<int32_t> zeros_;           // (n_ubatch): tokens and positions that nothing reads
  std::vector<int32_t> blocks_;          // 0, 1, 2 ...: the block tables of all segments

  // The work in progress; empty: none.
  std::vector<Segment> tiles_;
  std::vector<Segment> windows_;
  int layer_ = 0;
  bool attends_ = false;  // false: keys and values are stored; true: attention is computed
  int first_row_ = 0;     // of the next chunk
  int n_rows_ = 0;        // in flight
};

}  // namespace pb
