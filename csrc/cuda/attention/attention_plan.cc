#include "cuda/attention/attention_plan.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace pb::cuda {
namespace {

static_assert(kSegment == kAttentionSegment);

int segments_before(int end) { return (end + kSegment - 1) / kSegment; }

// Returns the greatest number of segments that the queries of one sequence in a tile see.
int most_segments(const AttentionLimits& limits) {
  const int all = segments_before(limits.max_positions);
  if (limits.widest_window == 0) return all;
  const int64_t after = limits.causal ? 0 : limits.widest_window - 1;
  const int tile = std::max(limits.large_tile, kSmallTile);
  const int64_t seen = limits.widest_window + after + tile - 1;
  return static_cast<int>(std::min<int64_t>(all, (seen - 1) / kSegment + 2));
}

bool is_longer(const AttentionItem& a, const AttentionItem& b) {
  return std::tuple(a.first_segment - a.end_segment, a.first_query, a.first_segment) <
         std::tuple(b.first_segment - b.end_segment, b.first_query, b.first_segment);
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionLimits& limits)
    : limits_(limits), most_in_small_tiles_(limits.large_tile / 2) {
  n_states_ = limits.state_bytes /
              (static_cast<int64_t>(sizeof(float)) * limits.n_kv_heads * (limits.head_dim + 2));
  const auto n_rows = static_cast<size_t>(limits.max_rows);
  const size_t n_queries = n_rows * static_cast<size_t>(limits.group);
  const auto n_states = static_cast<size_t>(n_states_);
  const auto n_segments = static_cast<size_t>(most_segments(limits));
  // Counts the full tiles and at most one partial tile for each sequence, which has at least one
  // row.
  const size_t n_small = n_queries / kSmallTile + n_rows;
  const auto most_in_small = static_cast<size_t>(std::max(1, most_in_small_tiles_));
  const size_t n_large = limits.large_tile > 0 ? n_queries / most_in_small : 0;
  entries_.reserve(n_rows);
  rests_.reserve(n_rows);
  members_.reserve(n_small + n_large);
  tiles_.reserve(n_small + n_large);
  rows_.reserve(n_rows);
  queries_.reserve(n_queries);
  // Each item of a split tile leaves a state of each of its queries.
  small_items_.reserve(n_small + std::min(n_states, n_small * n_segments));
  large_items_.reserve(n_large + std::min(n_states / most_in_small, n_large * n_segments));
  split_queries_.reserve(std::min(n_queries, n_states));
  block_tables_.reserve(static_cast<size_t>(limits.max_table_entries));
}

AttentionCounts AttentionPlan::counts() const {
  return {static_cast<int32_t>(rows_.size()), static_cast<int32_t>(small_items_.size()),
          static_cast<int32_t>(large_items_.size()), static_cast<int32_t>(split_queries_.size())};
}

uint8_t AttentionPlan::lists() const {
  return static_cast<uint8_t>((small_items_.empty() ? 0 : kSmallItems) |
                              (large_items_.empty() ? 0 : kLargeItems) |
                              (split_queries_.empty() ? 0 : kSplitQueries));
}

const int32_t* AttentionPlan::table_of(const SequenceRows& sequence) const {
  return sequence.block_tables[static_cast<size_t>(limits_.layer_group)];
}

void AttentionPlan::make(const RowBatch& batch, int first_table) {
  first_table_ = first_table;
  n_states_used_ = 0;
  entries_.clear();
  rests_.clear();
  members_.clear();
  tiles_.clear();
  queries_.clear();
  small_items_.clear();
  large_items_.clear();
  split_queries_.clear();
  block_tables_.clear();
  rows_.resize(static_cast<size_t>(batch.n_rows));
  for (const SequenceRows& sequence : batch.sequences) add_rows(sequence);
  if (limits_.large_tile > 0) {
    for (Entry& entry : entries_) add_large_tiles(entry);
  }
  add_small_tiles();
  add_tiles_items(true);
  add_tiles_items(false);
  // Blocks take items in turn, so that the shortest items come last.
  std::sort(large_items_.begin(), large_items_.end(), is_longer);
  std::sort(small_items_.begin(), small_items_.end(), is_longer);
}

void AttentionPlan::add_rows(const SequenceRows& sequence) {
  const int size = limits_.block_size;
  const int32_t* const table = table_of(sequence);
  for (int i = 0; i < sequence.n_rows; ++i) {
    const int position = sequence.first_position + i;
    rows_[static_cast<size_t>(sequence.first_row + i)] = {
        position, table[position / size] * size + position % size};
  }
  const int n_blocks = (sequence.end_position() + size - 1) / size;
  entries_.push_back({&sequence, first_table_ + static_cast<int>(block_tables_.size()), 0,
                      sequence.n_rows * limits_.group});
  block_tables_.insert(block_tables_.end(), table, table + n_blocks);
}

// Takes the sequence's next n queries.
AttentionPlan::Member AttentionPlan::next_member(Entry& entry, int n) const {
  const int first = entry.n_done;
  entry.n_done += n;
  const int position = entry.sequence->first_position;
  const int min_end = position + first / limits_.group + 1;
  const int max_end = position + (first + n - 1) / limits_.group + 1;
  int seen_end = max_end;
  if (!limits_.causal) {
    const int window = limits_.widest_window;
    const int limit = entry.sequence->end_position();
    seen_end = window > 0 ? std::min(limit, max_end + window - 1) : limit;
  }
  return {&entry, first, n, min_end, max_end, seen_end};
}

int AttentionPlan::first_segment(const Member& member) const {
  const int window = limits_.widest_window;
  return window > 0 ? std::max(0, member.min_end - window) / kSegment : 0;
}

void AttentionPlan::add_large_tiles(Entry& entry) {
  while (entry.n_queries - entry.n_done > most_in_small_tiles_) {
    const int n = std::min(entry.n_queries - entry.n_done, limits_.large_tile);
    tiles_.push_back({static_cast<int>(members_.size()), 1, true});
    members_.push_back(next_member(entry, n));
  }
}

void AttentionPlan::add_small_tiles() {
  const SegmentSharing sharing(limits_.layer_group, limits_.block_size);
  for (Entry& entry : entries_) {
    while (entry.n_queries - entry.n_done >= kSmallTile) {
      tiles_.push_back({static_cast<int>(members_.size()), 1, false});
      members_.push_back(next_member(entry, kSmallTile));
    }
    const int rest = entry.n_queries - entry.n_done;
    if (rest > 0) rests_.push_back(next_member(entry, rest));
  }
  std::sort(rests_.begin(), rests_.end(), [&](const Member& a, const Member& b) {
    return sharing.comes_before(*a.entry->sequence, *b.entry->sequence);
  });
  int room = 0;  // free queries of the last tile
  for (size_t i = 0; i < rests_.size(); ++i) {
    Member& rest = rests_[i];
    int unseen = 0;  // leading segments that one of the two does not see
    if (i > 0) {
      rest.shared = sharing.n_shared(*rests_[i - 1].entry->sequence, *rest.entry->sequence);
      unseen = std::max(first_segment(rests_[i - 1]), first_segment(rest));
    }
    if (rest.shared > unseen && rest.n <= room) {
      tiles_.back().n_members += 1;
    } else {
      tiles_.push_back({static_cast<int>(members_.size()), 1, false});
      room = kSmallTile;
    }
    room -= rest.n;
    members_.push_back(rest);
  }
}

void AttentionPlan::add_tiles_items(bool large) {
  int64_t n_segments = 0;
  for (const Tile& tile : tiles_) {
    if (tile.large != large) continue;
    for (const Member& member : members_of(tile)) {
      const bool alone = &member == &members_[static_cast<size_t>(tile.first_member)];
      const int shared = alone ? 0 : member.shared;
      n_segments += segments_before(member.seen_end) - std::max(shared, first_segment(member));
    }
  }
  // `longest` is the number of segments of each block if all blocks had the same number.
  const int n_blocks = large ? limits_.n_resident_large_blocks : limits_.n_resident_blocks;
  const int64_t n_at_once = std::max(1, n_blocks / limits_.n_kv_heads);
  const auto longest =
      static_cast<int>(std::max<int64_t>(1, (n_segments + n_at_once - 1) / n_at_once));
  for (const Tile& tile : tiles_) {
    if (tile.large != large) continue;
    const std::span<Member> members = members_of(tile);
    add_queries(members);
    const Member& only = members.front();
    const bool wanted =
        members.size() > 1 || segments_before(only.seen_end) - first_segment(only) > longest;
    if (wanted && reserve_states(members)) {
      add_run(members, 0, longest, true);
      continue;
    }
    for (size_t i = 0; i < members.size(); ++i) {
      add_run(members.subspan(i, 1), 0, std::numeric_limits<int>::max(), false);
    }
  }
}

void AttentionPlan::add_queries(std::span<Member> members) {
  for (Member& member : members) {
    member.first_query = static_cast<int>(queries_.size());
    const SequenceRows& sequence = *member.entry->sequence;
    for (int i = member.first; i < member.first + member.n; ++i) {
      const int row = i / limits_.group;
      queries_.push_back({.row = sequence.first_row + row,
                          .head = i % limits_.group,
                          .end = sequence.first_position + row + 1,
                          .limit = sequence.end_position(),
                          .first_state = 0});
    }
  }
}

// Reserves states for the members' queries. Returns false if there is not enough room for them.
bool AttentionPlan::reserve_states(std::span<const Member> members) {
  int64_t needed = 0;
  for (const Member& member : members) {
    needed += int64_t{member.n} * (segments_before(member.seen_end) - first_segment(member));
  }
  if (needed > n_states_ - n_states_used_) return false;
  for (const Member& member : members) {
    const int first = first_segment(member);
    for (int i = member.first_query; i < member.first_query + member.n; ++i) {
      queries_[static_cast<size_t>(i)].first_state = static_cast<int32_t>(n_states_used_) - first;
      n_states_used_ += segments_before(member.seen_end) - first;
      split_queries_.push_back(i);
    }
  }
  return true;
}

// Adds items for the segments from `segment` on of members that share all segments before it. The
// members have common items as long as all of them share segments, then separate items. An item has
// at most `longest` segments.
void AttentionPlan::add_run(std::span<const Member> members, int segment, int longest, bool split) {
  int common = segments_before(members.front().seen_end);
  for (size_t i = 1; i < members.size(); ++i) common = std::min(common, members[i].shared);
  int begin = std::numeric_limits<int>::max();
  for (const Member& member : members) begin = std::min(begin, first_segment(member));
  for (int first = std::max(begin, segment); first < common;) {
    const int n = std::min(longest, common - first);
    add_item(members, first, first + n, split);
    first += n;
  }
  if (members.size() == 1) return;
  size_t run = 0;
  for (size_t i = 1; i <= members.size(); ++i) {
    if (i < members.size() && members[i].shared > common) continue;
    add_run(members.subspan(run, i - run), common, longest, split);
    run = i;
  }
}

void AttentionPlan::add_item(std::span<const Member> members, int first_segment, int end_segment,
                             bool split) {
  const Member& first = members.front();
  AttentionItem item{.first_query = first.first_query,
                     .n_queries = 0,
                     .block_table = first.entry->block_table,
                     .first_segment = first_segment,
                     .end_segment = end_segment,
                     .min_end = first.min_end,
                     .max_end = first.max_end,
                     .limit = first.entry->sequence->end_position(),
                     .split = split ? 1 : 0};
  for (const Member& member : members) {
    item.n_queries += member.n;
    item.min_end = std::min(item.min_end, member.min_end);
    item.max_end = std::max(item.max_end, member.max_end);
    item.limit = std::max(item.limit, member.entry->sequence->end_position());
  }
  const bool large = limits_.large_tile > 0 && first.n > most_in_small_tiles_;
  (large ? large_items_ : small_items_).push_back(item);
}

}  // namespace pb::cuda
