// Cuts the ragged rows of a step into physical passes of at most n_ubatch rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/step.h"
#include "kv/kv_cache.h"
#include "ops/backend.h"

namespace pb {

// Tiles in the order of the entries, each full but the last; the rows of one entry may lie in
// several. Allocates only when made.
class Tiler {
 public:
  explicit Tiler(int n_ubatch);

  // Starts over. `entries` are reserved in `kv`; both must live, and `kv` stay as it is, until the
  // last tile is done with.
  void start(std::span<const StepEntry> entries, const KvCache& kv);

  // Moves to the next tile; false when there is none. The first is reached by the first call.
  bool next();

  // The tile: its rows, with page tables.
  const RowBatch& batch() const { return batch_; }

  // Rows of this tile whose logits are wanted; of each its entry, and which of its tokens it is.
  std::span<const int32_t> wanted_rows() const { return wanted_rows_; }
  std::span<const int32_t> wanted_entries() const { return wanted_entries_; }
  std::span<const int32_t> wanted_offsets() const { return wanted_offsets_; }

 private:
  void take(const StepEntry& entry, int entry_index);

  size_t n_ubatch_;
  std::span<const StepEntry> entries_;
  const KvCache* kv_ = nullptr;
  size_t entry_ = 0;         // the one whose rows come next
  size_t entry_offset_ = 0;  // rows of it that are done

  std::vector<int32_t> tokens_;     // (rows of the tile)
  std::vector<int32_t> positions_;  // (rows of the tile)
  std::vector<SequenceRows> sequences_;
  std::vector<int32_t> wanted_rows_;
  std::vector<int32_t> wanted_entries_;
  std::vector<int32_t> wanted_offsets_;
  RowBatch batch_;
};

}  // namespace pb
