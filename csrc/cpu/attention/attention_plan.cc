#include "cpu/attention/attention_plan.h"

#include <algorithm>
#include <tuple>

#include "cpu/dispatch/kernels.h"

namespace pb::cpu {

void AttentionPlan::reserve(int max_rows, int group, int layer_group) {
  group_ = group;
  layer_group_ = layer_group;
  // Counts the full blocks and at most one partial block for each sequence; there are at most
  // max_rows sequences.
  const size_t n_blocks =
      static_cast<size_t>(max_rows) * group / kQueriesPerBlock + static_cast<size_t>(max_rows);
  order_.reserve(static_cast<size_t>(max_rows));
  blocks_.reserve(n_blocks);
  members_.reserve(n_blocks);
}

void AttentionPlan::order(const RowBatch& batch, const SegmentSharing& sharing) {
  order_.clear();
  for (const SequenceRows& sequence : batch.sequences) {
    order_.push_back({&sequence, sequence.end_position() / kSegment, 0, 0, 0, 0});
  }
  std::sort(order_.begin(), order_.end(), [&](const Entry& a, const Entry& b) {
    return sharing.comes_before(*a.sequence, *b.sequence);
  });
  int longest = 0;
  for (size_t i = 0; i < order_.size(); ++i) {
    Entry& entry = order_[i];
    entry.rank = entry.prefix_group = static_cast<int>(i);
    if (i > 0) {
      const Entry& before = order_[i - 1];
      entry.shared = sharing.n_shared(*before.sequence, *entry.sequence);
      if (entry.shared > 0) entry.prefix_group = before.prefix_group;
    }
    longest = std::max(entry.shared > 0 ? longest : 0, entry.sequence->end_position());
    order_[static_cast<size_t>(entry.prefix_group)].longest = longest;
  }
  for (Entry& entry : order_)
    entry.longest = order_[static_cast<size_t>(entry.prefix_group)].longest;
  std::sort(order_.begin(), order_.end(), [](const Entry& a, const Entry& b) {
    return std::tie(b.longest, a.prefix_group, a.rank) <
           std::tie(a.longest, b.prefix_group, b.rank);
  });
}

void AttentionPlan::add_full_blocks(const Entry& entry) {
  const int queries = entry.sequence->n_rows * group_;
  for (int first = 0; queries - first >= kQueriesPerBlock; first += kQueriesPerBlock) {
    blocks_.push_back({static_cast<int>(members_.size()), 1, kQueriesPerBlock});
    members_.push_back({entry.sequence, first, kQueriesPerBlock, 0});
  }
}

void AttentionPlan::add_rest(const Entry& entry) {
  shared_ = std::min(shared_, entry.shared);
  const int n = entry.sequence->n_rows * group_ % kQueriesPerBlock;
  if (n == 0) return;
  const bool joins = shared_ > 0 && blocks_.back().n_queries + n <= kQueriesPerBlock;
  if (!joins) {
    blocks_.push_back({static_cast<int>(members_.size()), 0, 0});
    shared_ = 0;
  }
  members_.push_back({entry.sequence, entry.sequence->n_rows * group_ - n, n, shared_});
  blocks_.back().n_members += 1;
  blocks_.back().n_queries += n;
  shared_ = entry.n_whole;
}

void AttentionPlan::make(const RowBatch& batch, int block_size) {
  order(batch, SegmentSharing(layer_group_, block_size));
  blocks_.clear();
  members_.clear();
  for (const Entry& entry : order_) add_full_blocks(entry);
  shared_ = 0;  // no member joins a full block
  for (const Entry& entry : order_) add_rest(entry);
}

}  // namespace pb::cpu
