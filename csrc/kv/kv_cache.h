// Who holds which KV page: sequences, reference counts and the prefix index.
//
// Bookkeeping only. The keys and values themselves lie in the backend's storage, page by
// page; the cache asks for a copy of a page through `CopyPage` where a partial page must
// become two. Nothing here is thread-safe: the engine is its one owner.
//
// A page is in exactly one of three states:
//   free      refcount 0, not in the index
//   cached    refcount 0, in the index: kept for seq_match, evicted least recently used first
//   used      refcount > 0 (in the index or not)
// so free + cached + used = total, and idle means used = 0.
//
// What always holds (check_integrity() proves it):
//   - The pages that a sequence fills are in the index, with its tokens. Its last page, where it
//   fills it in
//     part, may be (after seq_remove) and may be another's too; it is never written to as such.
//   - Whoever holds a page holds the pages before it, and gives them up after it. So a page that is
//     evicted has no child left in the index: leaves go before their parents.
//
// A call that throws has changed nothing but what it may have evicted. After the first use of an
// id, calls on its sequence allocate no memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "kv/page_pool.h"
#include "kv/prefix_index.h"

namespace pb {

class KvCache {
 public:
  // Copies what page `from` holds to page `to`. Where it throws, the call that needed it fails. It
  // may not change the cache: such calls throw kEngine.
  using CopyPage = std::function<void(int from, int to)>;

  // n_pages pages of block_size positions each; at most n_parallel sequences; no sequence longer
  // than max_length positions. All >= 1, or kConfig. `hash_mask` is for tests: see PrefixIndex.
  KvCache(int n_pages, int block_size, int n_parallel, int max_length, CopyPage copy_page,
          uint64_t hash_mask = ~uint64_t{0});
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  // The lowest free id. Throws kNoFreeSequence when n_parallel are in use. Prefix pages are only
  // ever shared between sequences of one name space.
  int seq_new(std::string_view name_space = {});

  // Every call below that takes a seq_id throws kInvalidRequest where no sequence has it. Every
  // call that changes a sequence, but commit and rollback, throws kEngine while it has a
  // reservation.

  // dst (empty, another id, same name space) starts with src's first n_tokens (0..length of src):
  // full pages shared, a partial last page copied. Throws kInvalidRequest, or kKvCacheFull when
  // there is no page for the copy.
  void seq_copy(int src, int dst, int n_tokens);

  // Drops [start, end) of a sequence; end must be its length (or -1, which means that), or
  // kInvalidRequest. Dropping all of it (start = 0) frees the id too. A page that stays partly is
  // left as it is: reserve() makes it the sequence's own before anything is written to it.
  void seq_remove(int seq_id, int start = 0, int end = -1);

  int seq_length(int seq_id) const;

  // Pages that this sequence alone holds: so many more are free or cached once it is removed.
  int seq_exclusive_pages(int seq_id) const;

  // Attaches to an empty sequence the longest cached prefix of `tokens`: whole pages, at most
  // tokens.size() - 1 tokens, so that one is left to compute. Returns the tokens attached.
  int seq_match(int seq_id, std::span<const int32_t> tokens);

  // -- the two halves of an append. The engine reserves for all rows of a step, computes, commits.

  // Makes pages exist for `tokens` (at least one) after the sequence's end, and a last partial page
  // that is shared or in the index the sequence's own (copy on write). Length does not change.
  // Throws kKvCacheFull, kRequestTooLong, kInvalidRequest; then nothing has changed.
  void reserve(int seq_id, std::span<const int32_t> tokens);

  // The reserved tokens are computed: length grows, pages that became full enter the index. A full
  // page whose content the index already holds is given up for the one there (they are equal, bit
  // for bit, by invariant 1). Throws kEngine where nothing is reserved.
  void commit(int seq_id);

  // The first n_tokens (at least one) of the reserved are committed and the rest given up, which
  // has never been in the index then. Throws kEngine where there are not so many.
  void commit(int seq_id, int n_tokens);

  // The reserved tokens are given up: length, tokens and pages are as before the reservation. Does
  // nothing where nothing is reserved, so that a failed step may roll back all of its sequences.
  void rollback(int seq_id);

  // -- views for the forward pass; valid until the next call that changes the sequence

  // Page numbers that hold the sequence, reserved ones included: position p is in
  // pages[p / block_size].
  std::span<const int32_t> pages(int seq_id) const;
  // Tokens of the sequence, the reserved ones not included.
  std::span<const int32_t> tokens(int seq_id) const;

  bool seq_exists(int seq_id) const;
  int n_parallel() const { return static_cast<int>(sequences_.size()); }
  int block_size() const { return block_size_; }
  int max_length() const { return max_length_; }
  int total_pages() const { return pool_.total(); }
  int free_pages() const { return pool_.n_free(); }
  int cached_pages() const { return pool_.n_cached(); }
  int used_sequences() const;

  // Forgets every cached (unreferenced) page.
  void drop_cached();

  // Recounts everything from the sequences up; throws kEngine naming the first thing that is off.
  void check_integrity() const;

 private:
  static constexpr int kNone = -1;

  struct Sequence {
    NameSpace name_space;         // null = the id is free
    std::vector<int32_t> pages;   // for tokens, the reserved ones included
    std::vector<int32_t> tokens;  // the reserved ones at the end
    int n_reserved = 0;
    int replaced_page = kNone;  // reserve() copied the last page from it; held until it is settled

    int length() const { return static_cast<int>(tokens.size()) - n_reserved; }
  };

  Sequence& existing(const char* argument, int seq_id);
  const Sequence& existing(const char* argument, int seq_id) const;
  Sequence& changeable(const char* argument, int seq_id);  // and without a reservation
  Sequence& empty(const char* argument, int seq_id);       // and without a token

  int take_page();  // and forgets what the index held there
  void release_page(int page);
  int copy_of(int page);  // a page taken for a copy of `page`; throws as CopyPage does
  void release_tail(Sequence& sequence, size_t n_pages_kept);
  int pages_for(size_t n_tokens) const;
  [[noreturn]] void throw_full(int n_needed) const;

  int block_size_;
  int max_length_;
  CopyPage copy_page_;
  PrefixIndex index_;
  PagePool pool_;
  std::vector<Sequence> sequences_;  // by id
  bool is_copying_ = false;          // copy_page_ is running
};

}  // namespace pb
