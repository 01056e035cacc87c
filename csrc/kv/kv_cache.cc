#include "kv/kv_cache.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"

namespace pb {

namespace {

std::string str(int64_t n) { return std::to_string(n); }

// `value` where it is at least 1, an error that names it otherwise.
int positive(const char* name, int value) {
  if (value >= 1) return value;
  throw Error(ErrorCode::kConfig,
              std::string(name) + " is " + str(value) + "; it must be at least 1");
}

}  // namespace

KvCache::KvCache(int n_blocks, int block_size, int n_parallel, int max_length, CopyBlock copy_block,
                 uint64_t hash_mask)
    : block_size_(positive("block_size", block_size)),
      max_length_(positive("max_length", max_length)),
      copy_block_(std::move(copy_block)),
      index_(positive("n_blocks", n_blocks), block_size, hash_mask),
      pool_(n_blocks),
      sequences_(static_cast<size_t>(positive("n_parallel", n_parallel))) {
  if (!copy_block_) throw Error(ErrorCode::kConfig, "copy_block is empty; give a function");
}

int KvCache::seq_new(std::string_view name_space) {
  const auto free = std::ranges::find(sequences_, nullptr, &Sequence::name_space);
  if (free == sequences_.end()) {
    throw Error(ErrorCode::kNoFreeSequence, "all n_parallel = " + str(n_parallel()) +
                                                " sequences are in use; remove one, or make"
                                                " n_parallel larger");
  }
  // Reserved once for the longest sequence there may be: no later call on it allocates.
  free->tokens.reserve(static_cast<size_t>(max_length_));
  free->blocks.reserve(static_cast<size_t>(blocks_for(static_cast<size_t>(max_length_))));
  free->name_space = std::make_shared<const std::string>(name_space);
  return static_cast<int>(free - sequences_.begin());
}

void KvCache::seq_copy(int src, int dst, int n_tokens) {
  const Sequence& from = changeable("src", src);
  if (src == dst) {
    throw Error(ErrorCode::kInvalidRequest,
                "dst is " + str(dst) + ", which is src too; take another id from seq_new");
  }
  Sequence& to = empty("dst", dst);
  if (*from.name_space != *to.name_space) {
    throw Error(ErrorCode::kInvalidRequest, "dst is " + str(dst) + ", of name space '" +
                                                *to.name_space + "'; sequence " + str(src) +
                                                " is of '" + *from.name_space +
                                                "' and can only be copied within its own");
  }
  if (n_tokens < 0 || n_tokens > from.length()) {
    throw Error(ErrorCode::kInvalidRequest, "n_tokens is " + str(n_tokens) + "; sequence " +
                                                str(src) + " has " + str(from.length()) +
                                                " tokens");
  }
  const int n_full = n_tokens / block_size_;
  const bool is_partial = n_tokens % block_size_ != 0;
  if (is_partial && pool_.n_available() < 1) throw_full(1);
  // src holds the block that is copied, so making room for the copy cannot evict it.
  const int copy = is_partial ? copy_of(from.blocks[static_cast<size_t>(n_full)]) : kNone;
  for (int i = 0; i < n_full; ++i) {
    const int block = from.blocks[static_cast<size_t>(i)];
    pool_.retain(block);
    to.blocks.push_back(block);
  }
  if (is_partial) to.blocks.push_back(copy);
  to.tokens.assign(from.tokens.begin(), from.tokens.begin() + n_tokens);
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
  release_tail(sequence, static_cast<size_t>(blocks_for(static_cast<size_t>(start))));
  sequence.tokens.resize(static_cast<size_t>(start));
  if (start == 0) sequence.name_space = nullptr;
}

int KvCache::seq_length(int seq_id) const { return existing("seq_id", seq_id).length(); }

int KvCache::seq_exclusive_blocks(int seq_id) const {
  const Sequence& sequence = existing("seq_id", seq_id);
  const auto is_exclusive = [this](int block) { return pool_.refcount(block) == 1; };
  const bool replaces = sequence.replaced_block != kNone && is_exclusive(sequence.replaced_block);
  return static_cast<int>(std::ranges::count_if(sequence.blocks, is_exclusive)) +
         (replaces ? 1 : 0);
}

int KvCache::seq_match(int seq_id, std::span<const int32_t> tokens) {
  Sequence& sequence = empty("seq_id", seq_id);
  const size_t block_size = static_cast<size_t>(block_size_);
  int parent = PrefixIndex::kNone;
  size_t n_matched = 0;
  while (n_matched + block_size < tokens.size()) {  // < and not <=: one token is left to compute
    const int block =
        index_.find(sequence.name_space, parent, tokens.subspan(n_matched, block_size));
    if (block == PrefixIndex::kNone) break;
    pool_.retain(block);
    sequence.blocks.push_back(block);
    parent = block;
    n_matched += block_size;
  }
  sequence.tokens.assign(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(n_matched));
  return static_cast<int>(n_matched);
}

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
  const int n_new =
      blocks_for(sequence.tokens.size() + tokens.size()) - static_cast<int>(sequence.blocks.size());
  int last = length % block_size_ == 0 ? kNone : sequence.blocks.back();
  const bool is_shared = last != kNone && pool_.refcount(last) > 1;
  bool copies = last != kNone && (is_shared || index_.contains(last));
  if (copies && !is_shared && n_new >= pool_.n_available()) {
    // No room for a copy, but nobody else has the block: it leaves the index and is written in
    // place. Its children in the index are cached blocks (a used one would have this block shared),
    // and taking n_new blocks evicts every cached block.
    copies = false;
  }
  if (n_new + (copies ? 1 : 0) > pool_.n_available()) throw_full(n_new + (copies ? 1 : 0));

  if (copies) {  // first, since only this can still throw
    sequence.blocks.back() = copy_of(last);
    sequence.replaced_block = last;
  } else if (last != kNone) {
    index_.erase(last);
  }
  for (int i = 0; i < n_new; ++i) sequence.blocks.push_back(take_block());
  sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
  sequence.n_reserved = static_cast<int>(tokens.size());
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
  sequence.tokens.resize(static_cast<size_t>(sequence.length() + n_tokens));
  release_tail(sequence, static_cast<size_t>(blocks_for(sequence.tokens.size())));
  sequence.n_reserved = n_tokens;
  const size_t block_size = static_cast<size_t>(block_size_);
  const size_t first = static_cast<size_t>(sequence.length()) / block_size;
  const size_t n_full = sequence.tokens.size() / block_size;
  if (sequence.replaced_block != kNone)
    release_block(std::exchange(sequence.replaced_block, kNone));
  sequence.n_reserved = 0;
  int parent = first == 0 ? PrefixIndex::kNone : sequence.blocks[first - 1];
  for (size_t i = first; i < n_full; ++i) {
    int32_t& block = sequence.blocks[i];
    const auto content = std::span(sequence.tokens).subspan(i * block_size, block_size);
    const int twin = index_.find(sequence.name_space, parent, content);
    if (twin == PrefixIndex::kNone) {
      index_.insert(block, sequence.name_space, parent, content);
    } else {
      // Always given up, never left with others: reserve() made it this sequence's alone. So every
      // full block is in the index, and its children find it there.
      pool_.retain(twin);
      release_block(block);
      block = twin;
    }
    parent = block;
  }
}

void KvCache::rollback(int seq_id) {
  Sequence& sequence = existing("seq_id", seq_id);
  const size_t length = static_cast<size_t>(sequence.length());
  release_tail(sequence, static_cast<size_t>(blocks_for(length)));
  sequence.tokens.resize(length);
  sequence.n_reserved = 0;
  if (sequence.replaced_block != kNone) {
    release_block(sequence.blocks.back());
    sequence.blocks.back() = std::exchange(sequence.replaced_block, kNone);
  }
}

std::span<const int32_t> KvCache::block_table(int seq_id) const {
  return existing("seq_id", seq_id).blocks;
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

void KvCache::drop_cached() {
  while (pool_.n_cached() > 0) {
    const int block = pool_.oldest_cached();
    index_.erase(block);
    pool_.drop(block);
  }
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

int KvCache::take_block() {
  const int block = pool_.take();
  index_.erase(block);
  return block;
}

void KvCache::release_block(int block) { pool_.release(block, index_.contains(block)); }

int KvCache::copy_of(int block) {
  const int copy = take_block();
  is_copying_ = true;
  try {
    copy_block_(block, copy);
  } catch (...) {
    is_copying_ = false;
    release_block(copy);
    throw;
  }
  is_copying_ = false;
  return copy;
}

// The last block first, so that among the cached a block is older than its parent.
void KvCache::release_tail(Sequence& sequence, size_t n_blocks_kept) {
  while (sequence.blocks.size() > n_blocks_kept) {
    release_block(sequence.blocks.back());
    sequence.blocks.pop_back();
  }
}

int KvCache::blocks_for(size_t n_tokens) const {
  const size_t block_size = static_cast<size_t>(block_size_);
  return static_cast<int>((n_tokens + block_size - 1) / block_size);
}

void KvCache::throw_full(int n_needed) const {
  throw Error(ErrorCode::kKvCacheFull, str(n_needed) + " KV blocks of " + str(block_size_) +
                                           " tokens are needed and " + str(pool_.n_available()) +
                                           " of " + str(total_blocks()) +
                                           " can be had; remove a sequence, or make n_ctx larger");
}

}  // namespace pb
