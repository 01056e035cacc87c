// KvCache::check_integrity recounts all blocks from the sequences up and verifies the invariants of
// kv_cache.h.

#include <algorithm>
#include <string>

#include "base/error.h"
#include "kv/kv_cache.h"

namespace pb {
namespace {

template <typename... What>
void check(bool holds, const What&... what) {
  if (!holds) throw Error(ErrorCode::kEngine, (std::string() + ... + what));
}

std::string str(size_t n) { return std::to_string(n); }

}  // namespace

void KvCache::check_integrity() const {
  std::vector<std::vector<int>> holders;
  // True for blocks that the current reservation writes to.
  std::vector<std::vector<bool>> is_written;
  for (const Group& group : groups_) {
    holders.emplace_back(static_cast<size_t>(group.pool.total()), 0);
    is_written.emplace_back(holders.back().size(), false);
  }
  for (int seq_id = 0; seq_id < n_parallel(); ++seq_id) {
    const Sequence& sequence = sequences_[static_cast<size_t>(seq_id)];
    const std::string name = "sequence " + std::to_string(seq_id);
    check(sequence.tables.size() == groups_.size(), name, " has a wrong number of block tables");
    if (sequence.name_space != nullptr) {
      check(sequence.length() >= 0 && sequence.tokens.size() <= static_cast<size_t>(max_length_),
            name, " has a wrong length");
    } else {
      check(sequence.tokens.empty() && sequence.n_reserved == 0, name,
            " is free and holds something");
    }
    for (int group = 0; group < n_groups(); ++group) {
      check_table(seq_id, group, holders[static_cast<size_t>(group)],
                  is_written[static_cast<size_t>(group)]);
    }
  }
  for (int group = 0; group < n_groups(); ++group) {
    check_pool(group, holders[static_cast<size_t>(group)], is_written[static_cast<size_t>(group)]);
  }
  for (int group = 1; group < n_groups(); ++group) check_mapping(group);
  index_.check_integrity();
}

// Verifies the block table of a sequence and counts its references to blocks.
void KvCache::check_table(int seq_id, int group, std::vector<int>& holders,
                          std::vector<bool>& is_written) const {
  const Sequence& sequence = sequences_[static_cast<size_t>(seq_id)];
  const Table& table = sequence.tables[static_cast<size_t>(group)];
  const std::string name = "sequence " + std::to_string(seq_id);
  if (sequence.name_space == nullptr) {
    check(table.blocks.empty() && table.first == 0 && table.replaced == kNone, name,
          " is free and holds something");
    return;
  }
  check(table.blocks.size() == static_cast<size_t>(blocks_for(sequence.tokens.size())), name,
        " has ", str(table.blocks.size()), " blocks for ", str(sequence.tokens.size()), " tokens");
  check(table.first == first_seen_block(group, sequence.length()), name,
        " holds blocks of a window from the ", std::to_string(table.first), ". on, and needs the ",
        std::to_string(first_seen_block(group, sequence.length())), ".");
  const auto first = static_cast<size_t>(table.first);
  for (size_t i = 0; i < table.blocks.size(); ++i) {
    const int block = table.blocks[i];
    check(i < first ? block == 0 : block >= 0 && block < total_blocks(group), name, " holds block ",
          std::to_string(block), ", which does not exist");
    if (i >= first) ++holders[static_cast<size_t>(block)];
  }
  if (table.replaced != kNone) ++holders[static_cast<size_t>(table.replaced)];

  const size_t block_size = static_cast<size_t>(block_size_);
  const size_t n_full = static_cast<size_t>(sequence.length()) / block_size;
  const std::vector<int32_t>& full = sequence.tables[0].blocks;
  for (size_t i = first; i < n_full; ++i) {
    const int block = table.blocks[i];
    const auto content = std::span(sequence.tokens).subspan(i * block_size, block_size);
    const int parent = i == 0 ? PrefixIndex::kNone : full[i - 1];
    const auto is_of = [&](const NameSpace& name_space) {
      return index_.matches(block, name_space, parent, content);
    };
    const bool is_right =
        group > 0 ? mapping(group).block_of(full[i]) == block
                  : index_.contains(block) &&
                        (is_of(sequence.name_space) ||
                         (index_.may_be_common_after(parent) && is_of(common_name_space())));
    check(is_right, name, " fills block ", std::to_string(block),
          ", which is not in the index as it should be");
  }
  if (sequence.n_reserved == 0) return;
  for (size_t i = n_full; i < table.blocks.size(); ++i) {
    is_written[static_cast<size_t>(table.blocks[i])] = true;
  }
}

void KvCache::check_pool(int group, const std::vector<int>& holders,
                         const std::vector<bool>& is_written) const {
  const BlockPool& pool = this->pool(group);
  int n_used = 0;
  for (int block = 0; block < pool.total(); ++block) {
    const int n_holders = holders[static_cast<size_t>(block)];
    const std::string name = "block " + std::to_string(block);
    check(pool.refcount(block) == n_holders, name, " has reference count ",
          std::to_string(pool.refcount(block)), " and ", std::to_string(n_holders), " holders");
    check(n_holders == 0 || !pool.is_cached(block), name, " is cached and held");
    check(!pool.is_cached(block) || is_indexed(group, block), name,
          " is cached and not in the index");
    check(n_holders > 0 || pool.is_cached(block) || !is_indexed(group, block), name,
          " is free and in the index");
    check(!is_written[static_cast<size_t>(block)] || (n_holders == 1 && !is_indexed(group, block)),
          name, " is being written to and is shared or in the index");
    if (n_holders > 0) ++n_used;
  }
  check(pool.n_free() + pool.n_cached() + n_used == pool.total(), "free ",
        std::to_string(pool.n_free()), " + cached ", std::to_string(pool.n_cached()), " + used ",
        std::to_string(n_used), " is not the total of ", std::to_string(pool.total()));
  pool.check_integrity();
}

void KvCache::check_mapping(int group) const {
  const KvGroupMapping& pairs = mapping(group);
  for (int block = 0; block < total_blocks(group); ++block) {
    const int full = pairs.full_of(block);
    if (full == kNone) continue;
    const std::string name = "block " + std::to_string(block) + " of a window";
    check(full >= 0 && full < total_blocks() && pairs.block_of(full) == block, name,
          " has a companion that has another");
    check(index_.contains(full), name, " has a companion that is not in the index");
    check(pool(group).refcount(block) == 0 || pool(0).refcount(full) > 0, name,
          " is held and its companion is not");
  }
  for (int full = 0; full < total_blocks(); ++full) {
    const int block = pairs.block_of(full);
    check(block == kNone ||
              (block >= 0 && block < total_blocks(group) && pairs.full_of(block) == full),
          "block ", std::to_string(full), " has a companion that has another");
  }
}

}  // namespace pb
