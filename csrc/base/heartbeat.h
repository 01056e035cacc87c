// Counts the progress of a computation for a watchdog on another thread. While the count increases,
// the computation is alive, however slow it is.
#pragma once

#include <atomic>
#include <cstdint>

namespace pb {

class Heartbeat {
 public:
  // Called by the computing thread. The increment is relaxed, because it orders no other memory
  // access.
  void beat() { count_.fetch_add(1, std::memory_order_relaxed); }

  // Returns the count. Any thread may call this function at any time. It never waits.
  int64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> count_ = 0;
};

}  // namespace pb
