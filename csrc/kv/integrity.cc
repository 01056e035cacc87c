// KvCache::check_integrity: what kv_cache.h says always holds, recounted from the sequences up.

#include <algorithm>
#include <string>

#include "base/error.h"
#include "kv/kv_cache.h"

namespace pb {

void KvCache::check_integrity() const {
  const auto check = [](bool holds, const auto&... what) {
    if (!holds) throw Error(ErrorCode::kEngine, (std::string() + ... + what));
  };
  const size_t block_size = static_cast<size_t>(block_size_);
  std::vector<int> holders(static_cast<size_t>(total_blocks()), 0);
  std::vector<bool> is_written(holders.size(), false);  // by a reservation that is under way

  for (int seq_id = 0; seq_id < n_parallel(); ++seq_id) {
    const Sequence& sequence = sequences_[static_cast<size_t>(seq_id)];
    const std::string name = "sequence " + std::to_string(seq_id);
    if (sequence.name_space == nullptr) {
      check(sequence.tokens.empty() && sequence.blocks.empty() && sequence.n_reserved == 0 &&
                sequence.replaced_block == kNone,
            name, " is free and holds something");
      continue;
    }
    check(sequence.length() >= 0 && sequence.tokens.size() <= static_cast<size_t>(max_length_),
          name, " has a wrong length");
    check(sequence.blocks.size() == static_cast<size_t>(blocks_for(sequence.tokens.size())), name,
          " has ", std::to_string(sequence.blocks.size()), " blocks for ",
          std::to_string(sequence.tokens.size()), " tokens");
    for (const int block : sequence.blocks) {
      check(block >= 0 && block < total_blocks(), name, " holds block ", std::to_string(block),
            ", which does not exist");
      ++holders[static_cast<size_t>(block)];
    }
    if (sequence.replaced_block != kNone) ++holders[static_cast<size_t>(sequence.replaced_block)];

    const size_t length = static_cast<size_t>(sequence.length());
    int parent = PrefixIndex::kNone;
    for (size_t i = 0; i < length / block_size; ++i) {
      const int block = sequence.blocks[i];
      const auto content = std::span(sequence.tokens).subspan(i * block_size, block_size);
      check(index_.contains(block) && index_.matches(block, sequence.name_space, parent, content),
            name, " fills block ", std::to_string(block),
            ", which is not in the index as it should be");
      parent = block;
    }
    if (sequence.n_reserved == 0) continue;
    for (size_t i = length / block_size; i < sequence.blocks.size(); ++i) {
      is_written[static_cast<size_t>(sequence.blocks[i])] = true;
    }
  }

  int n_used = 0;
  for (int block = 0; block < total_blocks(); ++block) {
    const int n_holders = holders[static_cast<size_t>(block)];
    const std::string name = "block " + std::to_string(block);
    check(pool_.refcount(block) == n_holders, name, " has reference count ",
          std::to_string(pool_.refcount(block)), " and ", std::to_string(n_holders), " holders");
    check(n_holders == 0 || !pool_.is_cached(block), name, " is cached and held");
    check(!pool_.is_cached(block) || index_.contains(block), name,
          " is cached and not in the index");
    check(n_holders > 0 || pool_.is_cached(block) || !index_.contains(block), name,
          " is free and in the index");
    check(!is_written[static_cast<size_t>(block)] || (n_holders == 1 && !index_.contains(block)),
          name, " is being written to and is shared or in the index");
    if (n_holders > 0) ++n_used;
  }
  check(free_blocks() + cached_blocks() + n_used == total_blocks(), "free ",
        std::to_string(free_blocks()), " + cached ", std::to_string(cached_blocks()), " + used ",
        std::to_string(n_used), " is not the total of ", std::to_string(total_blocks()));
  pool_.check_integrity();
  index_.check_integrity();
}

}  // namespace pb
