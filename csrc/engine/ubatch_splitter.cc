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

UbatchSplitter::UbatchSplitter(int n_ubatch, bool keeps_whole)
    : n_ubatch_(static_cast<size_t>(n_ubatch)), keeps_whole_(keeps_whole) {
  tokens_.reserve(n_ubatch_);
  positions_.reserve(n_ubatch_);
  sequences_.reserve(n_ubatch_);
  wanted_.reserve(n_ubatch_);
  pooled_.reserve(n_ubatch_);
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
  sequences_.clear();
  wanted_.clear();
  pooled_.clear();
  while (entry_ < entries_.size() && fits_next()) take(entries_[entry_]);
  batch_.n_rows = static_cast<int>(tokens_.size());
  batch_.tokens = tokens_.data();
  batch_.positions = positions_.data();
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
  const size_t first_wanted = entry.tokens.size() - entry.n_wanted();
  for (size_t i = 0; i < n_rows; ++i) {
    const size_t offset = entry_offset_ + i;
    if (offset >= first_wanted) wanted_.push_back(tokens_.size(), entry_, offset);
    if (offset >= entry.first_pooled() && offset < entry.end_pooled()) {
      pooled_.push_back(tokens_.size(), entry_, offset);
    }
    tokens_.push_back(entry.tokens[offset]);
    positions_.push_back(first_position + static_cast<int>(i));
  }
  entry_offset_ += n_rows;
  if (entry_offset_ < entry.tokens.size()) return;
  ++entry_;
  entry_offset_ = 0;
}

}  // namespace pb
