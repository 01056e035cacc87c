// Appends tokens to a sequence of KvCache: reserve, then commit or rollback.

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "kv/kv_cache.h"

namespace pb {

namespace {

std::string str(int64_t n) { return std::to_string(n); }

}  // namespace

void KvCache::reserve(int seq_id, std::span<const int32_t> tokens) {
  Sequence& sequence = changeable("seq_id", seq_id);
  const int length = sequence.length();
  if (tokens.empty()) {
    throw Error(ErrorCode::kInvalidRequest,
                "tokens is empty; sequence " + str(seq_id) + " needs at least one to append");
  }
  if (tokens.size() > static_cast<size_t>(max_length_ - length)) {
    throw Error(ErrorCode::kRequestTooLong,
                "tokens has " + str(static_cast<int64_t>(tokens.size())) + " items; sequence " +
                    str(seq_id) + " has " + str(length) + " tokens and may have " +
                    str(max_length_) + ": send fewer, or make n_ctx larger");
  }
  const int n_new = blocks_for(sequence.tokens.size() + tokens.size()) -
                    static_cast<int>(sequence.tables[0].blocks.size());
  decide_copies(sequence, n_new);
  make_last_blocks_own(sequence);
  for (int group = 0; group < n_groups(); ++group) {
    std::vector<int32_t>& blocks = sequence.tables[static_cast<size_t>(group)].blocks;
    for (int i = 0; i < n_new; ++i) blocks.push_back(take_block(group));
  }
  sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
  sequence.n_reserved = static_cast<int>(tokens.size());
}

// Sets copies_[group] to whether the sequence's partly filled last block must be copied before it
// is written to. Throws kKvCacheFull if a group has too few blocks for the copy and n_new new
// blocks.
void KvCache::decide_copies(const Sequence& sequence, int n_new) {
  const bool is_partial = sequence.length() % block_size_ != 0;
  for (int group = 0; group < n_groups(); ++group) {
    const int available = pool(group).n_available();
    bool copies = false;
    if (is_partial) {
      const int last = sequence.tables[static_cast<size_t>(group)].blocks.back();
      const bool is_shared = is_state(group) || pool(group).refcount(last) > 1;
      // State blocks are not copied: the step reads the replaced block and writes to a new one.
      //
      // If there is no room for a copy but only this sequence holds the block, the block leaves the
      // index and is written in place. Its children in the index are all cached (a used child would
      // imply that this block is shared), and taking n_new blocks evicts every cached block.
      copies = is_shared || (is_indexed(group, last) && n_new < available);
    }
    const int n_needed = n_new + (copies ? 1 : 0);
    if (n_needed > available) throw_full(group, n_needed);
    copies_[static_cast<size_t>(group)] = copies;
  }
}

// Replaces the last block by a copy in groups where copies_ is set, and removes it from the index
// in the others.
void KvCache::make_last_blocks_own(Sequence& sequence) {
  if (sequence.length() % block_size_ == 0) return;
  int group = 0;
  try {  // copies are made first, since only they can still throw
    for (; group < n_groups(); ++group) {
      if (!copies_[static_cast<size_t>(group)]) continue;
      Table& table = sequence.tables[static_cast<size_t>(group)];
      const int last = table.blocks.back();
      const int copy = is_state(group) ? take_block(group) : copy_of(group, last);
      table.replaced = std::exchange(table.blocks.back(), copy);
    }
  } catch (...) {
    for (--group; group >= 0; --group) {
      if (!copies_[static_cast<size_t>(group)]) continue;
      Table& table = sequence.tables[static_cast<size_t>(group)];
      release_block(group, table.blocks.back());
      table.blocks.back() = std::exchange(table.replaced, kNone);
    }
    throw;
  }
  for (group = 0; group < n_groups(); ++group) {
    if (copies_[static_cast<size_t>(group)]) continue;
    leave_index(group, sequence.tables[static_cast<size_t>(group)].blocks.back());
  }
}

void KvCache::commit(int seq_id) {
  commit(seq_id, std::max(1, existing("seq_id", seq_id).n_reserved));
}

void KvCache::commit(int seq_id, int n_tokens) {
  Sequence& sequence = existing("seq_id", seq_id);
  if (n_tokens < 1 || n_tokens > sequence.n_reserved) {
    throw Error(ErrorCode::kEngine, "n_tokens is " + str(n_tokens) + "; sequence " + str(seq_id) +
                                        " has " + str(sequence.n_reserved) +
                                        " tokens reserved; commit one to all of them"
                                        " after reserve");
  }
  if (state_group() >= 0 && n_tokens < sequence.n_reserved) {
    throw Error(ErrorCode::kEngine,
                "n_tokens is " + str(n_tokens) + "; sequence " + str(seq_id) + " has " +
                    str(sequence.n_reserved) +
                    " tokens reserved, and there are states after all of them only");
  }
  sequence.tokens.resize(static_cast<size_t>(sequence.length() + n_tokens));
  release_tail(sequence, static_cast<size_t>(blocks_for(sequence.tokens.size())));
  const size_t block_size = static_cast<size_t>(block_size_);
  const size_t first = (sequence.tokens.size() - static_cast<size_t>(n_tokens)) / block_size;
  const size_t n_full = sequence.tokens.size() / block_size;
  sequence.n_reserved = 0;
  for (int group = n_groups() - 1; group >= 0; --group) {
    int& replaced = sequence.tables[static_cast<size_t>(group)].replaced;
    if (replaced != kNone) release_block(group, std::exchange(replaced, kNone));
  }
  const std::vector<int32_t>& blocks = sequence.tables[0].blocks;
  for (size_t i = first; i < n_full; ++i) {
    enter_index(sequence, i, i == 0 ? PrefixIndex::kNone : blocks[i - 1]);
  }
  give_back(sequence);
}

// Adds the full blocks at index i of the block tables to the prefix index, or replaces them by
// indexed blocks with the same content.
void KvCache::enter_index(Sequence& sequence, size_t i, int parent) {
  const size_t block_size = static_cast<size_t>(block_size_);
  const auto content = std::span(sequence.tokens).subspan(i * block_size, block_size);
  // If the index has an equal block, the sequence releases its own, which reserve() made exclusive
  // to it. So every full block that a sequence holds is in the index, and its children find it
  // there.
  const auto take_twin = [&](int group, int32_t& own, int twin) {
    pool(group).retain(twin);
    release_block(group, own);
    own = twin;
  };
  int32_t& full = sequence.tables[0].blocks[i];
  const int twin = find_block(sequence, parent, content);
  if (twin == PrefixIndex::kNone) {
    index_.insert(full, sequence.name_space, parent, content);
  } else {
    take_twin(0, full, twin);
  }
  for (int group = 1; group < n_groups(); ++group) {
    int32_t& own = sequence.tables[static_cast<size_t>(group)].blocks[i];
    const int companion = mapping(group).block_of(full);
    if (companion == KvGroupMapping::kNone) {
      mapping(group).join(full, own);
    } else {
      take_twin(group, own, companion);
    }
  }
}

void KvCache::rollback(int seq_id) {
  Sequence& sequence = existing("seq_id", seq_id);
  const size_t length = static_cast<size_t>(sequence.length());
  release_tail(sequence, static_cast<size_t>(blocks_for(length)));
  sequence.tokens.resize(length);
  sequence.n_reserved = 0;
  for (int group = 0; group < n_groups(); ++group) {
    Table& table = sequence.tables[static_cast<size_t>(group)];
    if (table.replaced == kNone) continue;
    release_block(group, table.blocks.back());
    table.blocks.back() = std::exchange(table.replaced, kNone);
  }
}

}  // namespace pb
