#include "kv/page_pool.h"

#include <string>

#include "base/error.h"

namespace pb {

PagePool::PagePool(int n_pages) : pages_(static_cast<size_t>(n_pages)) {
  free_.reserve(pages_.size());
  for (int page = n_pages - 1; page >= 0; --page) free_.push_back(page);
}

int PagePool::take() {
  int page;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    page = oldest_;
    unlink(page);
  }
  at(page).refcount = 1;
  return page;
}

void PagePool::retain(int page) {
  if (at(page).cached) unlink(page);
  ++at(page).refcount;
}

void PagePool::release(int page, bool keep) {
  if (--at(page).refcount > 0) return;
  if (!keep) {
    free_.push_back(page);
    return;
  }
  at(page).cached = true;
  at(page).older = youngest_;
  at(page).younger = kNone;
  (youngest_ == kNone ? oldest_ : at(youngest_).younger) = page;
  youngest_ = page;
  ++n_cached_;
}

void PagePool::drop(int page) {
  unlink(page);
  free_.push_back(page);
}

void PagePool::unlink(int page) {
  Page& p = at(page);
  (p.older == kNone ? oldest_ : at(p.older).younger) = p.younger;
  (p.younger == kNone ? youngest_ : at(p.younger).older) = p.older;
  p.cached = false;
  --n_cached_;
}

void PagePool::check_integrity() const {
  const auto fail = [](const std::string& what) { throw Error(ErrorCode::kEngine, what); };
  std::vector<bool> seen(pages_.size(), false);
  for (const int page : free_) {
    if (seen[static_cast<size_t>(page)]) {
      fail("page " + std::to_string(page) + " is free twice");
    }
    seen[static_cast<size_t>(page)] = true;
    if (at(page).refcount != 0 || at(page).cached) {
      fail("page " + std::to_string(page) + " is free and in use");
    }
  }
  int n_cached = 0;
  int older = kNone;
  for (int page = oldest_; page != kNone; page = at(page).younger) {
    if (seen[static_cast<size_t>(page)]) {
      fail("page " + std::to_string(page) + " is cached twice, or cached and free");
    }
    seen[static_cast<size_t>(page)] = true;
    if (at(page).refcount != 0 || !at(page).cached || at(page).older != older) {
      fail("page " + std::to_string(page) + " is wrongly linked among the cached");
    }
    older = page;
    ++n_cached;
  }
  if (older != youngest_ || n_cached != n_cached_) {
    fail("cached pages: " + std::to_string(n_cached) + " are linked, " + std::to_string(n_cached_) +
         " were counted");
  }
  for (int page = 0; page < total(); ++page) {
    if (!seen[static_cast<size_t>(page)] && at(page).refcount < 1) {
      fail("page " + std::to_string(page) + " is lost: not free, not cached, held by nobody");
    }
  }
}

}  // namespace pb
