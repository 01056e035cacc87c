#include "kv/block_pool.h"

#include <string>

#include "base/error.h"

namespace pb {

BlockPool::BlockPool(int n_blocks) : blocks_(static_cast<size_t>(n_blocks)) {
  free_.reserve(blocks_.size());
  for (int block = n_blocks - 1; block >= 0; --block) free_.push_back(block);
}

int BlockPool::take() {
  int block;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else {
    block = oldest_;
    unlink(block);
  }
  at(block).refcount = 1;
  return block;
}

void BlockPool::retain(int block) {
  if (at(block).cached) unlink(block);
  ++at(block).refcount;
}

void BlockPool::release(int block, Keep keep) {
  Block& p = at(block);
  if (--p.refcount > 0) return;
  if (keep == Keep::kNot) {
    free_.push_back(block);
    return;
  }
  p.cached = true;
  p.older = keep == Keep::kLong ? youngest_ : kNone;
  p.younger = keep == Keep::kLong ? kNone : oldest_;
  (p.older == kNone ? oldest_ : at(p.older).younger) = block;
  (p.younger == kNone ? youngest_ : at(p.younger).older) = block;
  ++n_cached_;
}

void BlockPool::drop(int block) {
  unlink(block);
  free_.push_back(block);
}

void BlockPool::unlink(int block) {
  Block& p = at(block);
  (p.older == kNone ? oldest_ : at(p.older).younger) = p.younger;
  (p.younger == kNone ? youngest_ : at(p.younger).older) = p.older;
  p.cached = false;
  --n_cached_;
}

void BlockPool::check_integrity() const {
  const auto fail = [](const std::string& what) { throw Error(ErrorCode::kEngine, what); };
  std::vector<bool> seen(blocks_.size(), false);
  for (const int block : free_) {
    if (seen[static_cast<size_t>(block)]) {
      fail("block " + std::to_string(block) + " is free twice");
    }
    seen[static_cast<size_t>(block)] = true;
    if (at(block).refcount != 0 || at(block).cached) {
      fail("block " + std::to_string(block) + " is free and in use");
    }
  }
  int n_cached = 0;
  int older = kNone;
  for (int block = oldest_; block != kNone; block = at(block).younger) {
    if (seen[static_cast<size_t>(block)]) {
      fail("block " + std::to_string(block) + " is cached twice, or cached and free");
    }
    seen[static_cast<size_t>(block)] = true;
    if (at(block).refcount != 0 || !at(block).cached || at(block).older != older) {
      fail("block " + std::to_string(block) + " is wrongly linked among the cached");
    }
    older = block;
    ++n_cached;
  }
  if (older != youngest_ || n_cached != n_cached_) {
    fail("cached blocks: " + std::to_string(n_cached) + " are linked, " +
         std::to_string(n_cached_) + " were counted");
  }
  for (int block = 0; block < total(); ++block) {
    if (!seen[static_cast<size_t>(block)] && at(block).refcount < 1) {
      fail("block " + std::to_string(block) + " is lost: not free, not cached, held by nobody");
    }
  }
}

}  // namespace pb
