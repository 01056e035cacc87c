// A fixed set of threads that run one parallel loop at a time.
//
// Work is handed out in chunks of a shared counter, so a thread that the system
// delays holds nobody up. Which thread runs which chunk is never fixed: callers may
// split work over outputs only, never over a reduction (invariant 1).
// Between loops the workers spin for a few tens of microseconds, then park; so does a caller that
// waits for a worker.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "os/cores.h"  // available_cores(): the n_threads to start from; kMostThreads

namespace pb {

class ThreadPool {
 public:
  // n_threads counts the caller of parallel_for: n_threads - 1 are started. Throws kConfig where it
  // is not in 1..kMostThreads, kEngine where the system will not start that many.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end, worker) for disjoint ranges that cover [0, n), each at most `grain`
  // (>= 1) long and starting at a multiple of `grain`; 0 <= worker < n_threads(), one at a time.
  // Returns when all are done and what they wrote can be read. The caller runs chunks as worker 0;
  // a loop of one chunk wakes nobody. `body` must not throw and must not call parallel_for.
  // One caller at a time.
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
  void take_chunks(int worker);  // until none is left
  void worker_main(int worker);
  uint64_t await_loop(uint64_t last_loop);  // the state once there is a loop to enter, or the end
  bool enter(uint64_t* last_loop);
  void leave();
  void await_workers();  // until none is inside
  void stop_workers();

  // The loop in progress. Written by the caller while the loop is closed and nobody is inside, read
  // by workers that are inside; see thread_pool.cc for why the two can never overlap.
  Call call_ = nullptr;
  void* body_ = nullptr;
  int64_t n_ = 0;
  int64_t grain_ = 1;

  alignas(64) std::atomic<int64_t> next_chunk_{0};
  // Workers inside, whether the loop is open, which loop it is, whether the pool ends: one word, so
  // that entering is one atomic step.
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int> parked_{0};
  std::atomic<bool> caller_waits_{false};
  std::mutex mutex_;
  std::condition_variable wake_;  // workers
  std::condition_variable left_;  // the caller
  std::vector<std::thread> workers_;
};

}  // namespace pb
