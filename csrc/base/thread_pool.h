// A fixed set of threads that run one parallel loop at a time.
//
// Work is handed out in chunks of a shared counter, so a thread that the system
// delays holds nobody up. Which thread runs which chunk is never fixed: callers may
// split work over outputs only, never over a reduction (invariant 1).
// Between loops the workers spin for a few tens of microseconds, then park.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace pb {

// Cores this process may use: its affinity mask and its cgroup's CPU quota. At least 1.
int available_cores();

class ThreadPool {
 public:
  // n_threads >= 1, the caller of parallel_for included: n_threads - 1 are started.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end, worker) for disjoint ranges that cover [0, n), each at most `grain`
  // long and starting at a multiple of `grain`; 0 <= worker < n_threads(). Returns when all are
  // done. `body` must not throw and must not call parallel_for. One caller at a time.
  template <typename Body>
  void parallel_for(int64_t n, int64_t grain, Body&& body) {
    auto call = [](void* b, int64_t begin, int64_t end, int worker) {
      (*static_cast<std::remove_reference_t<Body>*>(b))(begin, end, worker);
    };
    run(n, grain, call, const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* body, int64_t begin, int64_t end, int worker);
  void run(int64_t n, int64_t grain, Call call, void* body);
  void work(int worker);  // takes chunks until none is left
  void worker_main(int worker);

  // The loop in progress. Written by the caller before it raises `generation_`.
  Call call_ = nullptr;
  void* body_ = nullptr;
  int64_t n_ = 0;
  int64_t grain_ = 1;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> active_{0};  // workers still inside the loop
  std::atomic<bool> stop_{false};
  std::atomic<int> parked_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace pb
