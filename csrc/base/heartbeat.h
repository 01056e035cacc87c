// Counts how far a computation has come, for whoever watches it from another thread: one that beats
// is slow, one that does not hangs.
#pragma once

#include <atomic>
#include <cstdint>

namespace pb {

class Heartbeat {
 public:
  // By whoever computes. Orders nothing: the count is all that is told.
  void beat() { count_.fetch_add(1, std::memory_order_relaxed); }

  // From any thread, at any time, without waiting.
  int64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> count_ = 0;
};

}  // namespace pb
