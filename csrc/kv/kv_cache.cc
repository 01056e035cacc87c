#include "kv/kv_cache.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"

namespace pb {

namespace {

std::string str(int64_t n) { return std::to_string(n); }

// Returns `value` if it is at least 1, else throws kConfig with its name.
int positive(const char* name, int value) {
  if (value >= 1) return value;
  throw Error(ErrorCode::kConfig,
              std::string(name) + " is " + str(value) + "; it must be at least 1");
}

}  // namespace

KvCache::KvCache(std::span<const LayerGroup> groups, int block_size, int n_parallel, int max_length,
                 CopyBlock copy_block, uint64_t hash_mask)
    : block_size_(positive("block_size", block_size)),
      max_length_(positive("max_length", max_length)),
      copy_block_(std::move(copy_block)),
      index_(positive("n_blocks", groups.empty() ? 0 : groups[0].n_blocks), block_size, hash_mask),
      sequences_(static_cast<size_t>(positive("n_parallel", n_parallel))),
      copies_(groups.size()),
      runs_(groups.size()) {
  if (!copy_block_) throw Error(ErrorCode::kConfig, "copy_block is empty; give a function");
  if (groups[0].window != 0) {
    throw Error(ErrorCode::kConfig, "the first group's window is " + str(groups[0].window) +
                                        "; it must be 0: the first group keeps all positions");
  }
  for (const LayerGroup& group : groups) {
    const bool is_first = groups_.empty();
    if (!is_first) positive("window", group.window);
    const int n_blocks = positive("n_blocks", group.n_blocks);
    groups_.push_back(
        {group.window, group.is_state, BlockPool(n_blocks),
         is_first ? KvGroupMapping(0, 0) : KvGroupMapping(groups[0].n_blocks, n_blocks)});
  }
  for (Sequence& sequence : sequences_) sequence.tables.resize(groups.size());
}

KvCache::KvCache(int n_blocks, int block_size, int n_parallel, int max_length, CopyBlock copy_block,
                 uint64_t hash_mask)
    : KvCache(std::vector{LayerGroup{.window = 0, .n_blocks = n_blocks}}, block_size, n_parallel,
              max_length, std::move(copy_block), hash_mask) {}

int KvCache::seq_new(std::string_view name_space) {
  return take_sequence(std::make_shared<const std::string>(name_space));
}

int KvCache::seq_new_common() { return take_sequence(common_name_space()); }

int KvCache::take_sequence(NameSpace name_space) {
  const auto free = std::ranges::find(sequences_, nullptr, &Sequence::name_space);
  if (free == sequences_.end()) {
    throw Error(ErrorCode::kNoFreeSequence, "all n_parallel = " + str(n_parallel()) +
                                                " sequences are in use; remove one, or make"
                                                " n_parallel larger");
  }
  // Reserves memory for the longest possible sequence, so that no later call on it allocates.
  free->tokens.reserve(static_cast<size_t>(max_length_));
  for (Table& table : free->tables) {
    table.blocks.reserve(static_cast<size_t>(blocks_for(static_cast<size_t>(max_length_))));
  }
  free->name_space = std::move(name_space);
  return static_cast<int>(free - sequences_.begin());
}

const KvCache::Sequence& KvCache::source(int src, int n_tokens) const {
  const Sequence& from = existing("src", src);
  if (n_tokens >= 0 && n_tokens <= from.length()) return from;
  throw Error(ErrorCode::kInvalidRequest, "n_tokens is " + str(n_tokens) + "; sequence " +
                                              str(src) + " has " + str(from.length()) + " tokens");
}

void KvCache::seq_copy(int src, int dst, int n_tokens) {
  const Sequence& from = changeable("src", src);
  if (src == dst) {
    throw Error(ErrorCode::kInvalidRequest,
                "dst is " + str(dst) + ", which is src too; take another id from seq_new");
  }
  Sequence& to = empty("dst", dst);
  if (from.name_space != common_name_space() &&
      !is_same_name_space(from.name_space, to.name_space)) {
    const std::string where =
        to.name_space == common_name_space() ? "common" : "of name space '" + *to.name_space + "'";
    throw Error(ErrorCode::kInvalidRequest, "dst is " + str(dst) + ", " + where + "; sequence " +
                                                str(src) + " is of '" + *from.name_space +
                                                "' and can only be copied within its own");
  }
  (void)source(src, n_tokens);
  if (!has_windows_at(from, n_tokens)) throw_window_gone("src", src, n_tokens);
  const size_t n_full = static_cast<size_t>(n_tokens / block_size_);
  const bool is_partial = n_tokens % block_size_ != 0;
  for (size_t i = 0; i < n_full; ++i) {
    const int block = from.tables[0].blocks[i];
    pool(0).retain(block);
    to.tables[0].blocks.push_back(block);
  }
  // Holds the partly filled block of `from` until it is copied, so that taking a block for the copy
  // cannot evict it.
  hold_windows(to, from, n_tokens, n_full + (is_partial ? 1 : 0));
  try {
    for (int group = 0; is_partial && group < n_groups(); ++group) {
      if (!is_state(group) && pool(group).n_available() < 1) throw_full(group, 1);
    }
    if (is_partial) {
      to.tables[0].blocks.push_back(copy_of(0, from.tables[0].blocks[n_full]));
      for (int group = 1; group < n_groups(); ++group) {
        // State blocks are shared: committed ones are never written to.
        if (is_state(group)) continue;
        int32_t& block = to.tables[static_cast<size_t>(group)].blocks.back();
        const int copy = copy_of(group, block);
        release_block(group, std::exchange(block, copy));
      }
    }
  } catch (...) {
    release_tail(to, 0);
    throw;
  }
  to.tokens.assign(from.tokens.begin(), from.tokens.begin() + n_tokens);
}

int KvCache::seq_copyable(int src, int n_tokens) const {
  const Sequence& from = source(src, n_tokens);
  if (has_windows_at(from, n_tokens)) return n_tokens;
  int n = n_tokens / block_size_ * block_size_;
  while (!has_windows_at(from, n)) n -= block_size_;
  return n;
}

void KvCache::seq_remove(int seq_id, int start, int end) {
  Sequence& sequence = changeable("seq_id", seq_id);
  const int length = sequence.length();
  if (end != -1 && end != length) {
    throw Error(ErrorCode::kInvalidRequest,
                "end is " + str(end) + "; sequence " + str(seq_id) + " has " + str(length) +
                    " tokens and only its tail can be removed: end must be"
                    " that or -1");
  }
  if (start < 0 || start > length) {
    throw Error(ErrorCode::kInvalidRequest, "start is " + str(start) + "; sequence " + str(seq_id) +
                                                " has " + str(length) + " tokens");
  }
  if (!has_windows_at(sequence, start)) throw_window_gone("start", seq_id, start);
  release_tail(sequence, static_cast<size_t>(blocks_for(static_cast<size_t>(start))));
  take_back(sequence, start);
  sequence.tokens.resize(static_cast<size_t>(start));
  if (start == 0) sequence.name_space = nullptr;
}

int KvCache::seq_length(int seq_id) const { return existing("seq_id", seq_id).length(); }

int KvCache::seq_exclusive_blocks(int seq_id) const {
  const Table& table = existing("seq_id", seq_id).tables[0];
  const auto is_exclusive = [this](int block) { return pool(0).refcount(block) == 1; };
  const bool replaces = table.replaced != kNone && is_exclusive(table.replaced);
  return static_cast<int>(std::ranges::count_if(table.blocks, is_exclusive)) + (replaces ? 1 : 0);
}

int KvCache::seq_match(int seq_id, std::span<const int32_t> tokens) {
  Sequence& sequence = empty("seq_id", seq_id);
  const size_t block_size = static_cast<size_t>(block_size_);
  std::vector<int32_t>& chain = sequence.tables[0].blocks;
  int parent = PrefixIndex::kNone;
  // The comparison is < and not <=, so that one token is left to compute.
  while ((chain.size() + 1) * block_size < tokens.size()) {
    const int block =
        find_block(sequence, parent, tokens.subspan(chain.size() * block_size, block_size));
    if (block == PrefixIndex::kNone) break;
    chain.push_back(block);
    parent = block;
  }
  chain.resize(n_usable(chain));
  for (const int block : chain) pool(0).retain(block);
  const size_t n_matched = chain.size() * block_size;
  hold_windows(sequence, sequence, static_cast<int>(n_matched), chain.size());
  sequence.tokens.assign(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(n_matched));
  return static_cast<int>(n_matched);
}

std::span<const int32_t> KvCache::block_table(int seq_id, int group) const {
  return existing("seq_id", seq_id).tables[static_cast<size_t>(group)].blocks;
}

int KvCache::first_block(int seq_id, int group) const {
  return existing("seq_id", seq_id).tables[static_cast<size_t>(group)].first;
}

int KvCache::state_block(int seq_id, int n_tokens) const {
  if (n_tokens == 0) return kNone;
  const Sequence& sequence = existing("seq_id", seq_id);
  const Table& table = sequence.tables[static_cast<size_t>(state_group())];
  if (n_tokens == sequence.length() && table.replaced != kNone) return table.replaced;
  return table.blocks[static_cast<size_t>((n_tokens - 1) / block_size_)];
}

std::span<const int32_t> KvCache::tokens(int seq_id) const {
  const Sequence& sequence = existing("seq_id", seq_id);
  return std::span(sequence.tokens).first(static_cast<size_t>(sequence.length()));
}

bool KvCache::seq_exists(int seq_id) const {
  return seq_id >= 0 && seq_id < n_parallel() &&
         sequences_[static_cast<size_t>(seq_id)].name_space != nullptr;
}

int KvCache::used_sequences() const {
  return n_parallel() -
         static_cast<int>(std::ranges::count(sequences_, nullptr, &Sequence::name_space));
}

int KvCache::appendable_blocks() const {
  int least = pool(0).n_available();
  for (const Group& group : groups_) {
    const int replaced = group.is_state ? partly_filled() : 0;
    least = std::min(least, group.pool.n_available() - replaced);
  }
  return least;
}

int KvCache::partly_filled() const {
  const auto is_partial = [this](const Sequence& s) { return s.length() % block_size_ != 0; };
  return static_cast<int>(std::ranges::count_if(sequences_, is_partial));
}

int KvCache::most_appendable_blocks() const {
  int least = pool(0).total();
  for (const Group& group : groups_) least = std::min(least, group.pool.total());
  return least;
}

void KvCache::drop_cached() {
  for (int group = 0; group < n_groups(); ++group) {
    while (pool(group).n_cached() > 0) {
      const int block = pool(group).oldest_cached();
      leave_index(group, block);
      pool(group).drop(block);
    }
  }
}

// Returns the indexed block that the sequence may use for `tokens` after block `parent`: a common
// one if there is one, else one of its own name space, else kNone.
int KvCache::find_block(const Sequence& sequence, int parent,
                        std::span<const int32_t> tokens) const {
  const NameSpace& common = common_name_space();
  if (index_.may_be_common_after(parent) && sequence.name_space != common) {
    const int block = index_.find(common, parent, tokens);
    if (block != PrefixIndex::kNone) return block;
  }
  return index_.find(sequence.name_space, parent, tokens);
}

const KvCache::Sequence& KvCache::existing(const char* argument, int seq_id) const {
  if (seq_exists(seq_id)) return sequences_[static_cast<size_t>(seq_id)];
  std::string in_use;
  for (int id = 0; id < n_parallel(); ++id) {
    if (seq_exists(id)) in_use += (in_use.empty() ? "" : ", ") + str(id);
  }
  throw Error(ErrorCode::kInvalidRequest,
              std::string(argument) + " is " + str(seq_id) + "; " +
                  (in_use.empty() ? "no sequence is in use: call seq_new first"
                                  : "the sequences in use are " + in_use));
}

KvCache::Sequence& KvCache::existing(const char* argument, int seq_id) {
  if (is_copying_) {
    throw Error(ErrorCode::kEngine, "copy_block called the cache that called it; it may not");
  }
  return const_cast<Sequence&>(std::as_const(*this).existing(argument, seq_id));
}

KvCache::Sequence& KvCache::changeable(const char* argument, int seq_id) {
  Sequence& sequence = existing(argument, seq_id);
  if (sequence.n_reserved == 0) return sequence;
  throw Error(ErrorCode::kEngine, std::string(argument) + " is " + str(seq_id) +
                                      ", which has a reservation of " + str(sequence.n_reserved) +
                                      " tokens; commit it or roll it back first");
}

KvCache::Sequence& KvCache::empty(const char* argument, int seq_id) {
  Sequence& sequence = changeable(argument, seq_id);
  if (sequence.tokens.empty()) return sequence;
  throw Error(ErrorCode::kInvalidRequest, std::string(argument) + " is " + str(seq_id) +
                                              ", which has " + str(sequence.length()) +
                                              " tokens; it must be empty: call seq_new");
}

bool KvCache::is_indexed(int group, int block) const {
  return group == 0 ? index_.contains(block) : mapping(group).full_of(block) != kNone;
}

void KvCache::leave_index(int group, int block) {
  if (group > 0) return mapping(group).part(block);
  index_.erase(block);
  for (int other = 1; other < n_groups(); ++other) {
    const int companion = mapping(other).block_of(block);
    if (companion == kNone) continue;
    mapping(other).part(companion);
    if (pool(other).is_cached(companion)) pool(other).drop(companion);
  }
}

int KvCache::take_block(int group) {
  const int block = pool(group).take();
  leave_index(group, block);
  return block;
}

void KvCache::release_block(int group, int block, BlockPool::Keep keep) {
  pool(group).release(block, is_indexed(group, block) ? keep : BlockPool::Keep::kNot);
}

int KvCache::copy_of(int group, int block) {
  const int copy = take_block(group);
  is_copying_ = true;
  try {
    copy_block_(group, block, copy);
  } catch (...) {
    is_copying_ = false;
    release_block(group, copy);
    throw;
  }
  is_copying_ = false;
  return copy;
}

// Releases the last block first, so that among the cached blocks a block is older than its parent.
void KvCache::release_tail(Sequence& sequence, size_t n_blocks_kept) {
  for (int group = n_groups() - 1; group >= 0; --group) {
    Table& table = sequence.tables[static_cast<size_t>(group)];
    while (table.blocks.size() > n_blocks_kept) {
      const bool is_held = static_cast<int>(table.blocks.size()) > table.first;
      if (is_held) release_block(group, table.blocks.back());
      table.blocks.pop_back();
    }
    if (n_blocks_kept == 0) table.first = 0;
  }
}

int KvCache::blocks_for(size_t n_tokens) const {
  const size_t block_size = static_cast<size_t>(block_size_);
  return static_cast<int>((n_tokens + block_size - 1) / block_size);
}

void KvCache::throw_full(int group, int n_needed) const {
  const int window = groups_[static_cast<size_t>(group)].window;
  throw Error(ErrorCode::kKvCacheFull,
              str(n_needed) + " KV blocks of " + str(block_size_) + " tokens are needed" +
                  (is_state(group) ? " for states of recurrent layers"
                   : window > 0    ? " for layers that see " + str(window) + " tokens"
                                   : "") +
                  " and " + str(pool(group).n_available()) + " of " + str(total_blocks(group)) +
                  " can be had; " +
                  (window > 0 ? "append fewer tokens at once, or remove a sequence"
                              : "remove a sequence, or make n_ctx larger"));
}

}  // namespace pb
