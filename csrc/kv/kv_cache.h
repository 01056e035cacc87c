// Who holds which KV page: sequences, reference counts and the prefix index.
//
// Bookkeeping only. The keys and values themselves lie in the backend's storage, page by
// page; the cache asks for a copy of a page through `CopyPage` where a shared partial page must
// become two. Nothing here is thread-safe: the engine is its one owner.
//
// A page is in exactly one of three states:
//   free      refcount 0, not in the index
//   cached    refcount 0, in the index: kept for seq_match, evicted least recently used first
//   used      refcount > 0 (in the index or not)
// so free + cached + used = total, and idle means used = 0.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace pb {

class KvCache {
 public:
  using CopyPage = std::function<void(int from, int to)>;

  // n_pages pages of block_size positions each; at most n_parallel sequences; no sequence longer
  // than max_length positions.
  KvCache(int n_pages, int block_size, int n_parallel, int max_length, CopyPage copy_page);

  // The lowest free id. Throws kNoFreeSequence when n_parallel are in use. Prefix pages are only
  // ever shared between sequences of one name space.
  int seq_new(std::string_view name_space = {});

  // dst (empty, another id, same name space) starts with src's first n_tokens (0..length of src):
  // full pages shared, a partial last page copied. Throws kKvCacheFull when there is no page for the copy.
  void seq_copy(int src, int dst, int n_tokens);

  // Drops [start, end) of a sequence; end must be its length (or -1, which means that).
  // Dropping all of it (start = 0) frees the id too. A page that stays partly is left as it is:
  // reserve() makes it the sequence's own before anything is written to it.
  void seq_remove(int seq_id, int start = 0, int end = -1);

  int seq_length(int seq_id) const;

  // Attaches to an empty sequence the longest cached prefix of `tokens`: whole pages, at most
  // tokens.size() - 1 tokens, so that one is left to compute. Returns the tokens attached.
  int seq_match(int seq_id, std::span<const int32_t> tokens);

  // -- the two halves of an append. The engine reserves for all rows of a step, computes, commits.

  // Makes pages exist for `tokens` after the sequence's end, and a last partial page that is shared or in the
  // index the sequence's own (copy on write). Length does not change. Throws kKvCacheFull or kRequestTooLong; then nothing has changed.
  void reserve(int seq_id, std::span<const int32_t> tokens);

  // The reserved tokens are computed: length grows, pages that became full enter the index. A full
  // page whose content the index already holds is given up for the one there (they are equal, bit
  // for bit, by invariant 1).
  void commit(int seq_id);

  // The reserved tokens are given up; length stays.
  void rollback(int seq_id);

  // -- views for the forward pass; valid until the next call that changes the sequence

  // Page numbers that hold the sequence, reserved ones included: position p is in pages[p / block_size].
  std::span<const int32_t> pages(int seq_id) const;
  // Tokens of the sequence, the reserved ones not included.
  std::span<const int32_t> tokens(int seq_id) const;

  bool seq_exists(int seq_id) const;
  int n_parallel() const { return static_cast<int>(sequences_.size()); }
  int block_size() const { return block_size_; }
  int max_length() const { return max_length_; }
  int total_pages() const { return static_cast<int>(pages_.size()); }
  int free_pages() const { return static_cast<int>(free_.size()); }
  int cached_pages() const { return static_cast<int>(lru_.size()); }
  int used_sequences() const;

  // Forgets every cached (unreferenced) page.
  void drop_cached();

  // Recounts everything from the sequences up; throws kEngine naming the first thing that is off.
  void check_integrity() const;

 private:
  using NameSpace = std::shared_ptr<const std::string>;

  struct Page {
    int refcount = 0;
    bool indexed = false;
    uint64_t hash = 0;            // of name space, all tokens before and its own
    uint64_t serial = 0;          // unique a content; 0 = none. Children name their parent by it
    uint64_t parent_serial = 0;   // 0 = first page of a sequence
    NameSpace name_space;
    std::vector<int32_t> tokens;  // block_size of them once indexed
    std::list<int>::iterator lru; // valid while cached
  };

  struct Sequence {
    bool used = false;
    NameSpace name_space;
    std::vector<int32_t> pages;
    std::vector<int32_t> tokens;  // length = tokens.size() - reserved
    int reserved = 0;
    int indexed_pages = 0;        // leading pages that are in the index (or equal to one there)
  };

  int block_size_;
  int max_length_;
  CopyPage copy_page_;
  std::vector<Page> pages_;
  std::vector<int> free_;              // a stack
  std::list<int> lru_;                 // cached pages, oldest first
  std::unordered_multimap<uint64_t, int> index_;  // hash -> page
  std::vector<Sequence> sequences_;
  uint64_t next_serial_ = 1;
};

}  // namespace pb
