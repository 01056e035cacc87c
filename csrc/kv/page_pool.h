// The states of KV pages: free, cached or used, and who goes when room is needed.
//
//   free      nobody holds it and nothing in it is worth keeping
//   cached    nobody holds it, its content may be asked for again: evicted least recently used
//   first used      held `refcount` times
// Every operation is O(1) and allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pb {

class PagePool {
 public:
  explicit PagePool(int n_pages);

  int total() const { return static_cast<int>(pages_.size()); }
  int n_free() const { return static_cast<int>(free_.size()); }
  int n_cached() const { return n_cached_; }
  // Pages that take() can give.
  int n_available() const { return n_free() + n_cached_; }

  int refcount(int page) const { return at(page).refcount; }
  bool is_cached(int page) const { return at(page).cached; }

  // A page with reference count 1: a free one, or else the cached one released longest ago, whose
  // content the caller then forgets. Needs n_available() > 0.
  int take();

  // One more holder of a used or cached page.
  void retain(int page);

  // One holder less of a used page. The last one leaves it cached, as the youngest, where `keep`,
  // and free otherwise.
  void release(int page, bool keep);

  // The cached page that take() evicts first, -1 where there is none.
  int oldest_cached() const { return oldest_; }

  // Makes a cached page free.
  void drop(int page);

  // Recounts the free and the cached pages. Throws kEngine naming the first thing that is off.
  void check_integrity() const;

 private:
  static constexpr int32_t kNone = -1;

  struct Page {
    int32_t refcount = 0;
    bool cached = false;
    int32_t older = kNone;  // neighbours among the cached
    int32_t younger = kNone;
  };

  const Page& at(int page) const { return pages_[static_cast<size_t>(page)]; }
  Page& at(int page) { return pages_[static_cast<size_t>(page)]; }
  void unlink(int page);  // cached -> in no list

  std::vector<Page> pages_;
  std::vector<int32_t> free_;  // a stack
  int32_t oldest_ = kNone;
  int32_t youngest_ = kNone;
  int n_cached_ = 0;
};

}  // namespace pb
