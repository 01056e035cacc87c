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

KvCache::KvCache(int n_pages, int block_size, int n_parallel, int max_length, CopyPage copy_page,
                 uint64_t hash_mask)
    : block_size_(positive("block_size", block_size)),
      max_length_(positive("max_length", max_length)),
      copy_page_(std::move(copy_page)),
      index_(positive("n_pages", n_pages), block_size, hash_mask),
      pool_(n_pages),
      sequences_(static_cast<size_t>(positive("n_parallel", n_parallel))) {
  if (!copy_page_) throw Error(ErrorCode::kConfig, "copy_page is empty; give a function");
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
  free->pages.reserve(static_cast<size_t>(pages_for(static_cast<size_t>(max_length_))));
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
  // src holds the page that is copied, so making room for the copy cannot evict it.
  const int copy = is_partial ? copy_of(from.pages[static_cast<size_t>(n_full)]) : kNone;
  for (int i = 0; i < n_full; ++i) {
    const int page = from.pages[static_cast<size_t>(i)];
    pool_.retain(page);
    to.pages.push_back(page);
  }
  if (is_partial) to.pages.push_back(copy);
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
  release_tail(sequence, static_cast<size_t>(pages_for(static_cast<size_t>(start))));
  sequence.tokens.resize(static_cast<size_t>(start));
  if (start == 0) sequence.name_space = nullptr;
}

int KvCache::seq_length(int seq_id) const { return existing("seq_id", seq_id).length(); }

int KvCache::seq_exclusive_pages(int seq_id) const {
  const Sequence& sequence = existing("seq_id", seq_id);
  const auto is_exclusive = [this](int page) { return pool_.refcount(page) == 1; };
  const bool replaces = sequence.replaced_page != kNone && is_exclusive(sequence.replaced_page);
  return static_cast<int>(std::ranges::count_if(sequence.pages, is_exclusive)) + (replaces ? 1 : 0);
}

int KvCache::seq_match(int seq_id, std::span<const int32_t> tokens) {
  Sequence& sequence = empty("seq_id", seq_id);
  const size_t block = static_cast<size_t>(block_size_);
  int parent = PrefixIndex::kNone;
  size_t n_matched = 0;
  while (n_matched + block < tokens.size()) {  // < and not <=: one token is left to compute
    const int page = index_.find(sequence.name_space, parent, tokens.subspan(n_matched, block));
    if (page == PrefixIndex::kNone) break;
    pool_.retain(page);
    sequence.pages.push_back(page);
    parent = page;
    n_matched += block;
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
      pages_for(sequence.tokens.size() + tokens.size()) - static_cast<int>(sequence.pages.size());
  int last = length % block_size_ == 0 ? kNone : sequence.pages.back();
  const bool is_shared = last != kNone && pool_.refcount(last) > 1;
  bool copies = last != kNone && (is_shared || index_.contains(last));
  if (copies && !is_shared && n_new >= pool_.n_available()) {
    // No room for a copy, but nobody else has the page: it leaves the index and is written in
    // place. Its children in the index are cached pages (a used one would have this page shared),
    // and taking n_new pages evicts every cached page.
    copies = false;
  }
  if (n_new + (copies ? 1 : 0) > pool_.n_available()) throw_full(n_new + (copies ? 1 : 0));

  if (copies) {  // first, since only this can still throw
    sequence.pages.back() = copy_of(last);
    sequence.replaced_page = last;
  } else if (last != kNone) {
    index_.erase(last);
  }
  for (int i = 0; i < n_new; ++i) sequence.pages.push_back(take_page());
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
  release_tail(sequence, static_cast<size_t>(pages_for(sequence.tokens.size())));
  sequence.n_reserved = n_tokens;
  const size_t block = static_cast<size_t>(block_size_);
  const size_t first = static_cast<size_t>(sequence.length()) / block;
  const size_t n_full = sequence.tokens.size() / block;
  if (sequence.replaced_page != kNone) release_page(std::exchange(sequence.replaced_page, kNone));
  sequence.n_reserved = 0;
  int parent = first == 0 ? PrefixIndex::kNone : sequence.pages[first - 1];
  for (size_t i = first; i < n_full; ++i) {
    int32_t& page = sequence.pages[i];
    const auto content = std::span(sequence.tokens).subspan(i * block, block);
    const int twin = index_.find(sequence.name_space, parent, content);
    if (twin == PrefixIndex::kNone) {
      index_.insert(page, sequence.name_space, parent, content);
    } else {
      // Always given up, never left with others: reserve() made it this sequence's alone. So every
      // full page is in the index, and its children find it there.
      pool_.retain(twin);
      release_page(page);
      page = twin;
    }
    parent = page;
  }
}

void KvCache::rollback(int seq_id) {
  Sequence& sequence = existing("seq_id", seq_id);
  const size_t length = static_cast<size_t>(sequence.length());
  release_tail(sequence, static_cast<size_t>(pages_for(length)));
  sequence.tokens.resize(length);
  sequence.n_reserved = 0;
  if (sequence.replaced_page != kNone) {
    release_page(sequence.pages.back());
    sequence.pages.back() = std::exchange(sequence.replaced_page, kNone);
  }
}

std::span<const int32_t> KvCache::pages(int seq_id) const {
  return existing("seq_id", seq_id).pages;
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
    const int page = pool_.oldest_cached();
    index_.erase(page);
    pool_.drop(page);
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
    throw Error(ErrorCode::kEngine, "copy_page called the cache that called it; it may not");
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

int KvCache::take_page() {
  const int page = pool_.take();
  index_.erase(page);
  return page;
}

void KvCache::release_page(int page) { pool_.release(page, index_.contains(page)); }

int KvCache::copy_of(int page) {
  const int copy = take_page();
  is_copying_ = true;
  try {
    copy_page_(page, copy);
  } catch (...) {
    is_copying_ = false;
    release_page(copy);
    throw;
  }
  is_copying_ = false;
  return copy;
}

// The last page first, so that among the cached a page is older than its parent.
void KvCache::release_tail(Sequence& sequence, size_t n_pages_kept) {
  while (sequence.pages.size() > n_pages_kept) {
    release_page(sequence.pages.back());
    sequence.pages.pop_back();
  }
}

int KvCache::pages_for(size_t n_tokens) const {
  const size_t block = static_cast<size_t>(block_size_);
  return static_cast<int>((n_tokens + block - 1) / block);
}

void KvCache::throw_full(int n_needed) const {
  throw Error(ErrorCode::kKvCacheFull, str(n_needed) + " KV pages of " + str(block_size_) +
                                           " tokens are needed and " + str(pool_.n_available()) +
                                           " of " + str(total_pages()) +
                                           " can be had; remove a sequence, or make n_ctx larger");
}

}  // namespace pb
