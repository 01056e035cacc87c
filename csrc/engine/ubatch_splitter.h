// Splits the ragged rows of a step into ubatches: physical passes of at most n_ubatch rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/step.h"
#include "kv/kv_cache.h"
#include "ops/row_batch.h"

namespace pb {

// Selected rows of a ubatch, as three parallel arrays.
struct UbatchRows {
  std::vector<int32_t> rows;     // index of the row in the ubatch
  std::vector<int32_t> entries;  // index of the row's entry
  std::vector<int32_t> offsets;  // index of the row's token in its entry

  size_t size() const { return rows.size(); }
  void reserve(size_t n);
  void clear();
  void push_back(size_t row, size_t entry, size_t offset);
};

// The rope positions of a sequence, where ropes have axes. Rows after those of `given` have the
// row's position plus `offset` on all axes.
struct RopePositions {
  std::vector<int32_t> given;  // (rows, kRopeAxes)
  int32_t offset = 0;
};

// Fills ubatches with rows in the order of the entries. All ubatches but the last are full, and an
// entry may be split among several ubatches. If keeps_whole is set, entries are not split, so
// ubatches may be partly empty and no entry may have more than n_ubatch rows. Only the constructor
// allocates memory.
class UbatchSplitter {
 public:
  // rope_positions: those of each sequence, by its id; empty if no rope has axes. It must outlive
  // this. image_columns: numbers of an image row.
  UbatchSplitter(int n_ubatch, bool keeps_whole, std::span<const RopePositions> rope_positions = {},
                 int image_columns = 0);

  // Starts with the first entry. The entries must be reserved in `kv`. `entries` and `kv` must
  // live, and `kv` must not change, until the last ubatch is computed.
  void start(std::span<const StepEntry> entries, const KvCache& kv);

  // Moves to the next ubatch, or to the first one after start(). Returns false if there is none.
  bool next();

  // Returns the rows of the current ubatch with their block tables, but without sampling requests.
  const RowBatch& batch() const { return batch_; }

  // Return the rows of the current ubatch whose logits are wanted, and the rows that are pooled, in
  // order.
  const UbatchRows& wanted() const { return wanted_; }
  const UbatchRows& pooled() const { return pooled_; }

 private:
  void take(const StepEntry& entry);
  void take_rope_positions(int seq_id, int first_position, size_t n_rows);
  void take_images(const StepEntry& entry, size_t n_rows);

  bool fits_next() const;

  size_t n_ubatch_;
  bool keeps_whole_;
  int64_t image_columns_;
  std::span<const StepEntry> entries_;
  const KvCache* kv_ = nullptr;
  size_t entry_ = 0;         // index of the entry whose rows are next
  size_t entry_offset_ = 0;  // rows of that entry in earlier ubatches

  std::vector<int32_t> tokens_;     // (rows of the ubatch)
  std::vector<int32_t> positions_;  // (rows of the ubatch)
  std::span<const RopePositions> rope_positions_;
  std::vector<int32_t> row_rope_positions_;  // (rows of the ubatch, kRopeAxes)
  std::vector<GivenRows> given_;
  std::vector<SequenceRows> sequences_;
  UbatchRows wanted_;
  UbatchRows pooled_;
  RowBatch batch_;
};

}  // namespace pb
