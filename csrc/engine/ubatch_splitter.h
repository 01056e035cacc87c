// Splits the ragged rows of a step into ubatches: physical passes of at most n_ubatch rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/step.h"
#include "kv/kv_cache.h"
#include "ops/backend.h"

namespace pb {

// Some rows of a ubatch.
struct UbatchRows {
  std::vector<int32_t> rows;     // numbers of the rows in the ubatch
  std::vector<int32_t> entries;  // index of the row's entry
  std::vector<int32_t> offsets;  // index of the row's token in its entry

  size_t size() const { return rows.size(); }
  void reserve(size_t n);
  void clear();
  void push_back(size_t row, size_t entry, size_t offset);
};

// Fills ubatches in the order of the entries; all but the last are full. The rows of one entry may
// be split among several ubatches, unless entries are kept whole: then no entry may have more than
// n_ubatch rows. Only the constructor allocates.
class UbatchSplitter {
 public:
  UbatchSplitter(int n_ubatch, bool keeps_whole);

  // Starts over. `entries` are reserved in `kv`; both must live, and `kv` stay as it is, until the
  // last ubatch is computed.
  void start(std::span<const StepEntry> entries, const KvCache& kv);

  // Moves to the next ubatch; false when there is none. The first is reached by the first call.
  bool next();

  // The rows of the ubatch, with block tables; without requests.
  const RowBatch& batch() const { return batch_; }

  // Rows of this ubatch whose logits are wanted, and those that are pooled; in order.
  const UbatchRows& wanted() const { return wanted_; }
  const UbatchRows& pooled() const { return pooled_; }

 private:
  void take(const StepEntry& entry);

  bool fits_next() const;

  size_t n_ubatch_;
  bool keeps_whole_;
  std::span<const StepEntry> entries_;
  const KvCache* kv_ = nullptr;
  size_t entry_ = 0;         // the entry whose rows come next
  size_t entry_offset_ = 0;  // rows of that entry in earlier ubatches

  std::vector<int32_t> tokens_;     // (rows of the ubatch)
  std::vector<int32_t> positions_;  // (rows of the ubatch)
  std::vector<SequenceRows> sequences_;
  UbatchRows wanted_;
  UbatchRows pooled_;
  RowBatch batch_;
};

}  // namespace pb
