// A fixed set of threads that run one parallel loop at a time.
//
// Threads take chunks of the loop from a shared counter, so that a thread that the system delays
// does not delay the others. The assignment of chunks to threads varies: callers may split work
// over outputs only, never over a reduction (invariant 1). Between loops the workers spin for a few
// tens of microseconds and then park. A caller that waits for a worker does the same.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "os/cores.h"  // available_cores(), the default of n_threads; kMostThreads

namespace pb {

class ThreadPool {
 public:
  // n_threads includes the caller of parallel_for(), so n_threads - 1 threads are started. Throws
  // kConfig if it is not in 1..kMostThreads, and kEngine if the system refuses to start that many
  // threads.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end, worker) for disjoint ranges that cover [0, n). Each range has at most
  // `grain` (>= 1) elements and starts at a multiple of `grain`. 0 <= worker < n_threads(), and
  // calls with the same worker number never overlap. Returns when all calls have returned; their
  // writes are then visible. The caller runs chunks as worker 0, and a loop of one chunk wakes no
  // other thread. `body` must not throw and must not call parallel_for. Only one thread may call
  // parallel_for at a time.
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
  void take_chunks(int worker);  // runs chunks until none is left
  void worker_main(int worker);
  // Returns the state when there is a new loop, or when the pool stops.
  uint64_t await_loop(uint64_t last_loop);
  bool enter(uint64_t* last_loop);
  void leave();
  void await_workers();  // waits until no worker is inside
  void stop_workers();

  // The current loop. The caller writes these fields while the loop is closed and no worker is
  // inside, and workers read them while they are inside. thread_pool.cc explains why the two never
  // overlap.
  Call call_ = nullptr;
  void* body_ = nullptr;
  int64_t n_ = 0;
  int64_t grain_ = 1;

  alignas(64) std::atomic<int64_t> next_chunk_{0};
  // The number of workers inside, whether the loop is open, the loop number, and whether the pool
  // stops. They share one word, so that entering is one atomic step.
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int> parked_{0};
  std::atomic<bool> caller_waits_{false};
  std::mutex mutex_;
  std::condition_variable wake_;  // notifies workers
  std::condition_variable left_;  // notifies the caller
  std::vector<std::thread> workers_;
};

}  // namespace pb
