// Counts the progress of a computation, for a watcher on another thread: while the count grows the
// computation is alive, however slow.
#pragma once

#include <atomic>
#include <cstdint>

namespace pb {

class Heartbeat {
 public:
  // Called by the computing thread. Relaxed: it orders no other memory access.
  void beat() { count_.fetch_add(1, std::memory_order_relaxed); }

  // Called from any thread at any time; never waits.
  int64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> count_ = 0;
};

}  // namespace pb
