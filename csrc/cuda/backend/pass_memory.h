// The host data of a pass, stored twice: in pinned memory, where the host writes it, and on the
// device, at addresses that never change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/attention/params_attention.h"
#include "cuda/driver/device.h"
#include "cuda/recurrent/params_recurrent.h"
#include "cuda/sampling/params_sampling.h"

namespace pb::cuda {

// The most rows of logits of one sampling call, which is a tile of wgmma.
inline constexpr int kMostSampledRows = 128;

// The most score changes that are in use at once, in addition to those of one row.
inline constexpr size_t kMostChanges = size_t{1} << 16;

// The greatest sizes of the arrays of one attention plan.
struct AttentionMemoryLimits {
  size_t max_queries = 0;
  size_t max_small_items = 0;
  size_t max_large_items = 0;
};

// The greatest sizes of all arrays.
struct PassLimits {
  size_t max_rows = 0;
  size_t given_columns = 0;
  std::vector<AttentionMemoryLimits> attention = {};  // (plans)
  size_t max_state_rows = 0;                          // 0 without recurrent layers
  size_t max_block_tables = 0;                        // of all plans
  size_t max_changes = 0;
};

// An array in both memories.
template <typename T>
struct Mirrored {
  T* host = nullptr;
  T* device = nullptr;
  size_t offset = 0;  // in bytes, from the start of either memory
  size_t capacity = 0;

  std::span<T> all() const { return {host, capacity}; }
  size_t bytes() const { return capacity * sizeof(T); }
};

// The arrays of one attention plan, except its block tables.
struct AttentionMemory {
  Mirrored<AttentionCounts> counts;  // (1)
  Mirrored<AttentionRow> rows;       // (max_rows)
  Mirrored<AttentionQuery> queries;
  Mirrored<AttentionItem> small_items;
  Mirrored<AttentionItem> large_items;
  Mirrored<int32_t> split_queries;  // (max_queries)
};

class PassMemory {
 public:
  // Throws the errors of Device.
  PassMemory(Device& device, const PassLimits& limits);

  // Copies arrays from the host to the device: the first one copies those of a plan, whose block
  // tables come last and may be partly used, the second one copies ranges of the arrays of
  // sampling.
  void upload_plan(size_t n_block_tables);
  void upload_given(size_t n_values);
  void upload_sampling(size_t first_row, size_t n_rows, size_t first_change, size_t n_changes);
  void download_samples(size_t first_row, size_t n_rows);

  // -- written by plan() --
  Mirrored<int32_t> tokens;                 // (max_rows)
  Mirrored<int32_t> positions;              // (max_rows)
  Mirrored<int32_t> rope_positions;         // (max_rows, kRopeAxes)
  Mirrored<int32_t> given_rows;             // (max_rows) numbers of rows; empty without given rows
  Mirrored<int32_t> logits_rows;            // (max_rows)
  Mirrored<int32_t> pooled_rows;            // (max_rows)
  std::vector<AttentionMemory> attention;   // (plans)
  Mirrored<StateRow> state_rows;            // (max_state_rows)
  Mirrored<StateSequence> state_sequences;  // (max_state_rows)
  Mirrored<int32_t> state_blocks;  // (max_state_rows): those of all sequences, one after the other
  Mirrored<int32_t> block_tables;  // those of all plans, one after the other

  // (max_rows, given_columns): the values of given_rows, which upload_plan() does not copy
  Mirrored<float> given;

  // -- written by sample() --
  Mirrored<RowSampling> sampling;  // (max_rows)
  Mirrored<ScoreChange> changes;
  Mirrored<SampledRow> sampled;  // (max_rows), copied from the device to the host

 private:
  // Assigns the next `n` elements of both memories to `array`.
  template <typename T>
  void take(Mirrored<T>& array, size_t n);
  template <typename T>
  void locate(Mirrored<T>& array);

  Device& device_;
  size_t bytes_ = 0;
  PinnedMemory host_;
  DeviceMemory memory_;
};

}  // namespace pb::cuda
