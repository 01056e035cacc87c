#include "engine/ubatch_splitter.h"

#include <algorithm>

namespace pb {

void UbatchRows::reserve(size_t n) {
  rows.reserve(n);
  entries.reserve(n);
  offsets.reserve(n);
}

void UbatchRows::clear() {
  rows.clear();
  entries.clear();
  offsets.clear();
}

void UbatchRows::push_back(size_t row, size_t entry, size_t offset) {
  rows.push_back(static_cast<int32_t>(row));
  entries.push_back(static_cast<int32_t>(entry));
  offsets.push_back(static_cast<int32_t>(offset));
}

UbatchSplitter::UbatchSplitter(int n_ubatch, bool keeps_whole,
                               std::span<const RopePositions> rope_positions, int image_columns)
    : n_ubatch_(static_cast<size_t>(n_ubatch)),
      keeps_whole_(keeps_whole),
      image_columns_(image_columns),
      rope_positions_(rope_positions) {
  tokens_.reserve(n_ubatch_);
  positions_.reserve(n_ubatch_);
  sequences_.reserve(n_ubatch_);
  wanted_.reserve(n_ubatch_);
  pooled_.reserve(n_ubatch_);
  given_.reserve(n_ubatch_);
  if (!rope_positions.empty()) row_rope_positions_.reserve(n_ubatch_ * kRopeAxes);
}

void UbatchSplitter::start(std::span<const StepEntry> entries, const KvCache& kv) {
  entries_ = entries;
  kv_ = &kv;
  entry_ = 0;
  entry_offset_ = 0;
}

bool UbatchSplitter::next() {
  tokens_.clear();
  positions_.clear();
  row_rope_positions_.clear();
  given_.clear();
  sequences_.clear();
  wanted_.clear();
  pooled_.clear();
  while (entry_ < entries_.size() && fits_next()) take(entries_[entry_]);
  batch_.n_rows = static_cast<int>(tokens_.size());
  batch_.tokens = tokens_.data();
  batch_.positions = positions_.data();
  batch_.rope_positions = rope_positions_.empty() ? nullptr : row_rope_positions_.data();
  batch_.given = given_;
  batch_.sequences = sequences_;
  batch_.logits_rows = wanted_.rows;
  batch_.pooled_rows = pooled_.rows;
  return batch_.n_rows > 0;
}

// Returns true if the ubatch has room for the next row, or for the whole next entry if entries are
// kept whole.
bool UbatchSplitter::fits_next() const {
  const size_t wanted = keeps_whole_ ? entries_[entry_].tokens.size() : 1;
  return tokens_.size() + wanted <= n_ubatch_;
}

// Appends as many of the entry's remaining rows as the ubatch has room for.
void UbatchSplitter::take(const StepEntry& entry) {
  const size_t n_rows = std::min(n_ubatch_ - tokens_.size(), entry.tokens.size() - entry_offset_);
  const int first_position = kv_->seq_length(entry.seq_id) + static_cast<int>(entry_offset_);
  SequenceRows& rows = sequences_.emplace_back(SequenceRows{
      .first_row = static_cast<int>(tokens_.size()),
      .n_rows = static_cast<int>(n_rows),
      .first_position = first_position,
  });
  for (int group = 0; group < kv_->n_groups(); ++group) {
    rows.block_tables[static_cast<size_t>(group)] = kv_->block_table(entry.seq_id, group).data();
  }
  if (kv_->state_group() >= 0) {
    rows.state_from = kv_->state_block(entry.seq_id, first_position);
  }
  if (!rope_positions_.empty()) take_rope_positions(entry.seq_id, first_position, n_rows);
  take_images(entry, n_rows);
  const size_t first_wanted = entry.tokens.size() - entry.n_wanted();
  for (size_t i = 0; i < n_rows; ++i) {
    const size_t offset = entry_offset_ + i;
    if (offset >= first_wanted) wanted_.push_back(tokens_.size(), entry_, offset);
    if (offset >= entry.first_pooled() && offset < entry.end_pooled()) {
      pooled_.push_back(tokens_.size(), entry_, offset);
    }
    // A given row replaces the embedding of its token, which may be any.
    tokens_.push_back(entry.tokens[offset] < kFirstImageId ? entry.tokens[offset] : 0);
    positions_.push_back(first_position + static_cast<int>(i));
  }
  entry_offset_ += n_rows;
  if (entry_offset_ < entry.tokens.size()) return;
  ++entry_;
  entry_offset_ = 0;
}

void UbatchSplitter::take_rope_positions(int seq_id, int first_position, size_t n_rows) {
  const RopePositions& of = rope_positions_[static_cast<size_t>(seq_id)];
  for (size_t i = 0; i < n_rows; ++i) {
    const size_t position = static_cast<size_t>(first_position) + i;
    for (size_t axis = 0; axis < kRopeAxes; ++axis) {
      const size_t at = position * kRopeAxes + axis;
      const bool is_given = at < of.given.size();
      row_rope_positions_.push_back(is_given ? of.given[at]
                                             : static_cast<int32_t>(position) + of.offset);
    }
  }
}

// Appends the given rows of the entry's next n_rows rows.
void UbatchSplitter::take_images(const StepEntry& entry, size_t n_rows) {
  const int first = static_cast<int>(entry_offset_);
  const int end = first + static_cast<int>(n_rows);
  for (const EntryImage& image : entry.images) {
    const int from = std::max(first, image.offset);
    const int to = std::min(end, image.offset + image.n_rows);
    if (from >= to) continue;
    given_.push_back({.first_row = static_cast<int>(tokens_.size()) + from - first,
                      .n_rows = to - from,
                      .values = image.values + (from - image.offset) * image_columns_,
                      .stride = image_columns_});
  }
}

}  // namespace pb
