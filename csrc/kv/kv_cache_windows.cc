// Handles the sliding windows of KvCache's groups: finds the blocks that a sequence needs to
// continue, takes them from the index, and releases the blocks that have left the window.

#include <algorithm>
#include <string>

#include "base/error.h"
#include "kv/kv_cache.h"

namespace pb {

int KvCache::first_seen_block(int group, int length) const {
  const int window = groups_[static_cast<size_t>(group)].window;
  return window == 0 ? 0 : std::max(0, length + 1 - window) / block_size_;
}

int KvCache::block_at(const Sequence& sequence, int group, int i) const {
  const auto at = static_cast<size_t>(i);
  const Table& table = sequence.tables[static_cast<size_t>(group)];
  if (i >= table.first && at < table.blocks.size()) return table.blocks[at];
  return mapping(group).block_of(sequence.tables[0].blocks[at]);
}

// Returns true if every group has the blocks that are visible to the token at position n_tokens.
bool KvCache::has_windows_at(const Sequence& sequence, int n_tokens) const {
  const int n_blocks = blocks_for(static_cast<size_t>(n_tokens));
  for (int group = 1; group < n_groups(); ++group) {
    const bool is_within = n_tokens % block_size_ != 0 && n_tokens != sequence.length();
    if (is_state(group) && is_within) return false;
    const int end = std::min(n_blocks, sequence.tables[static_cast<size_t>(group)].first);
    for (int i = first_seen_block(group, n_tokens); i < end; ++i) {
      if (block_at(sequence, group, i) == kNone) return false;
    }
  }
  return true;
}

void KvCache::throw_window_gone(const char* argument, int seq_id, int n_tokens) const {
  const char* const why =
      state_group() >= 0
          ? "after which recurrent layers have no state"
          : "and layers with a sliding window have given back KV that the next token "
            "sees";
  throw Error(ErrorCode::kInvalidRequest,
              std::string(argument) + " would leave sequence " + std::to_string(seq_id) +
                  "'s first " + std::to_string(n_tokens) + " tokens, " + why +
                  "; take fewer, as seq_copyable says, and compute the rest");
}

// Returns how many of the first blocks of `chain`, a chain of group 0 in the index, a sequence can
// start with. After that many blocks, every group has the mapped blocks that the next token sees.
size_t KvCache::n_usable(std::span<const int32_t> chain) {
  std::ranges::fill(runs_, 0);  // runs_[group]: consecutive mapped blocks up to the current one
  int best = 0;
  for (int n = 1; n <= static_cast<int>(chain.size()); ++n) {
    bool is_usable = true;
    for (int group = 1; group < n_groups(); ++group) {
      int& run = runs_[static_cast<size_t>(group)];
      const int full = chain[static_cast<size_t>(n - 1)];
      run = mapping(group).block_of(full) == kNone ? 0 : run + 1;
      is_usable = is_usable && run >= n - first_seen_block(group, n * block_size_);
    }
    if (is_usable) best = n;
  }
  return static_cast<size_t>(best);
}

// Extends the tables of all groups except group 0 to n_blocks with the blocks of `from` that are
// visible to the token at position n_tokens. has_windows_at(from, n_tokens) must be true.
void KvCache::hold_windows(Sequence& sequence, const Sequence& from, int n_tokens,
                           size_t n_blocks) {
  for (int group = 1; group < n_groups(); ++group) {
    Table& table = sequence.tables[static_cast<size_t>(group)];
    const int first = first_seen_block(group, n_tokens);
    for (int i = static_cast<int>(table.blocks.size()); i < static_cast<int>(n_blocks); ++i) {
      const int block = i < first ? kNone : block_at(from, group, i);
      if (block != kNone) pool(group).retain(block);
      table.blocks.push_back(block == kNone ? 0 : block);
    }
    table.first = first;
  }
}

// Re-acquires released blocks that are visible to the token at position n_tokens, after the
// sequence has been truncated to n_tokens.
void KvCache::take_back(Sequence& sequence, int n_tokens) {
  const int n_blocks = blocks_for(static_cast<size_t>(n_tokens));
  for (int group = 1; group < n_groups(); ++group) {
    Table& table = sequence.tables[static_cast<size_t>(group)];
    const int first = first_seen_block(group, n_tokens);
    for (int i = first; i < std::min(n_blocks, table.first); ++i) {
      const int block = block_at(sequence, group, i);
      pool(group).retain(block);
      table.blocks[static_cast<size_t>(i)] = block;
    }
    table.first = std::min(table.first, first);
  }
}

// Releases the blocks that have left the window. They are evicted before other cached blocks,
// because they are useful only to a sequence that diverges from this one here or returns to this
// position.
void KvCache::give_back(Sequence& sequence) {
  for (int group = 1; group < n_groups(); ++group) {
    Table& table = sequence.tables[static_cast<size_t>(group)];
    const int first = first_seen_block(group, sequence.length());
    for (; table.first < first; ++table.first) {
      int32_t& block = table.blocks[static_cast<size_t>(table.first)];
      release_block(group, block, BlockPool::Keep::kShort);
      block = 0;
    }
  }
}

}  // namespace pb
