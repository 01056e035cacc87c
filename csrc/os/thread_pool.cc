// The protocol of the pool, which prevents a delayed worker from seeing parts of two loops.
//
// `state_` contains | stop | loop number | open | workers inside |. Four steps change it:
//   publish  (caller)  closed, 0 inside  -> next loop number, open, 0 inside
//   enter    (worker)  open, k inside    -> same loop, open, k + 1 inside     one compare-exchange
//   leave    (worker)  k inside          -> k - 1 inside
//   close    (caller)  open              -> closed; then it waits until 0 are inside
// A worker reads call_, body_, n_, grain_ and next_chunk_ only between enter and leave. The caller
// writes them only between "closed and 0 inside" and publish. No worker can enter in that time,
// even if it was delayed after it last read `state_`: its compare-exchange expects the value that
// it read, in which the loop is open, and succeeds only if `state_` still has that value. So every
// worker inside was counted while the current loop was open, and the caller waits for it. The loop
// number (46 bits) prevents a worker from entering the loop that it has just left.
//
// Memory order: publish releases the fields of the loop to enter, which acquires them. leave
// releases the results of the bodies to the caller, which acquires them when it reads the count 0.
// Read-modify-writes in between continue the release sequence.
//
// No wake-up is lost: a worker increments parked_ and then reads state_; the caller publishes and
// then reads parked_. All four operations are sequentially consistent, so that the worker finds the
// loop or the caller finds the worker parked. In the second case the caller locks and unlocks the
// mutex before it notifies, and the worker holds the mutex from before it reads state_ until it
// waits. The same holds in the opposite direction, for a caller that sets caller_waits_ and the
// last worker that leaves.

#include "os/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>

#include "base/error.h"

#ifndef _WIN32
#include <pthread.h>
#include <signal.h>
#endif

namespace pb {

namespace {

constexpr uint64_t kInsideMask = 0xffff;
constexpr uint64_t kOpen = uint64_t{1} << 16;
constexpr uint64_t kLoop = uint64_t{1} << 17;  // increment of the loop number
constexpr uint64_t kStop = uint64_t{1} << 63;

constexpr uint64_t loop_of(uint64_t state) { return (state & ~kStop) / kLoop; }
constexpr bool is_new_loop(uint64_t state, uint64_t last_loop) {
  return (state & kOpen) != 0 && loop_of(state) != last_loop;
}

// This time is long enough for the gaps between the loops of a forward pass, and too short to waste
// noticeable CPU time after the pass.
constexpr std::chrono::microseconds kSpinBeforeParking{40};
constexpr int kPausesPerClockRead = 32;
// The caller spins this long for workers that are about to finish. A worker that takes longer has
// lost its core to another program. It can run on the core of the caller once the caller blocks.
constexpr std::chrono::microseconds kSpinBeforeLeaving{100};

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

#ifndef _WIN32
// While an object of this class exists, new threads start with all signals blocked, except those
// that a fault in the thread raises. The program's own threads then receive its signals.
class BlockSignals {
 public:
  BlockSignals() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP})
      sigdelset(&blocked, fault);
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;

 private:
  sigset_t before_;
};
#else
struct BlockSignals {};
#endif

}  // namespace

ThreadPool::ThreadPool(int n_threads) {
  if (n_threads < 1 || n_threads > kMostThreads) {
    throw Error(ErrorCode::kConfig, "n_threads is " + std::to_string(n_threads) +
                                        "; it must be between 1 and " +
                                        std::to_string(kMostThreads));
  }
  workers_.reserve(static_cast<size_t>(n_threads - 1));
  [[maybe_unused]] const BlockSignals block;
  try {
    for (int worker = 1; worker < n_threads; ++worker) {
      workers_.emplace_back(&ThreadPool::worker_main, this, worker);
    }
  } catch (const std::system_error& e) {
    const size_t started = workers_.size();
    stop_workers();
    throw Error(ErrorCode::kEngine, "n_threads is " + std::to_string(n_threads) +
                                        "; the system started only " + std::to_string(started + 1) +
                                        " (" + e.what() + "): ask for fewer");
  }
}

ThreadPool::~ThreadPool() { stop_workers(); }

void ThreadPool::stop_workers() {
  {
    const std::lock_guard lock(mutex_);
    state_.fetch_or(kStop, std::memory_order_seq_cst);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t n, int64_t grain, Call call, void* body) {
  if (workers_.empty() || n <= grain) {
    for (int64_t begin = 0; begin < n; begin += grain) {
      call(body, begin, std::min(begin + grain, n), 0);
    }
    return;
  }
  call_ = call;
  body_ = body;
  n_ = n;
  grain_ = grain;
  next_chunk_.store(0, std::memory_order_relaxed);
  const uint64_t closed = state_.load(std::memory_order_relaxed);
  state_.store((closed + kLoop) | kOpen, std::memory_order_seq_cst);  // publish
  if (parked_.load(std::memory_order_seq_cst) > 0) {
    {
      const std::lock_guard lock(mutex_);
    }
    wake_.notify_all();
  }
  take_chunks(0);
  state_.fetch_and(~kOpen, std::memory_order_relaxed);  // close
  await_workers();
}

void ThreadPool::await_workers() {
  const auto all_left = [&](std::memory_order order) {
    return (state_.load(order) & kInsideMask) == 0;
  };
  if (all_left(std::memory_order_acquire)) return;
  const auto leave_at = std::chrono::steady_clock::now() + kSpinBeforeLeaving;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (all_left(std::memory_order_acquire)) return;
      pause();
    }
  } while (std::chrono::steady_clock::now() < leave_at);

  std::unique_lock lock(mutex_);
  caller_waits_.store(true, std::memory_order_seq_cst);
  left_.wait(lock, [&] { return all_left(std::memory_order_seq_cst); });
  caller_waits_.store(false, std::memory_order_relaxed);
}

void ThreadPool::leave() {
  const uint64_t before = state_.fetch_sub(1, std::memory_order_seq_cst);
  if ((before & kInsideMask) != 1 || !caller_waits_.load(std::memory_order_seq_cst)) return;
  {
    const std::lock_guard lock(mutex_);
  }
  left_.notify_one();
}

void ThreadPool::take_chunks(int worker) {
  const int64_t n_chunks = (n_ - 1) / grain_ + 1;
  while (true) {
    const int64_t chunk = next_chunk_.fetch_add(1, std::memory_order_relaxed);
    if (chunk >= n_chunks) return;
    const int64_t begin = chunk * grain_;
    call_(body_, begin, std::min(begin + grain_, n_), worker);
  }
}

void ThreadPool::worker_main(int worker) {
  uint64_t last_loop = 0;
  while ((await_loop(last_loop) & kStop) == 0) {
    if (!enter(&last_loop)) continue;
    take_chunks(worker);
    leave();
  }
}

uint64_t ThreadPool::await_loop(uint64_t last_loop) {
  const auto is_due = [&](uint64_t state) {
    return (state & kStop) != 0 || is_new_loop(state, last_loop);
  };
  const auto park_at = std::chrono::steady_clock::now() + kSpinBeforeParking;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      const uint64_t state = state_.load(std::memory_order_relaxed);
      if (is_due(state)) return state;
      pause();
    }
  } while (std::chrono::steady_clock::now() < park_at);

  std::unique_lock lock(mutex_);
  parked_.fetch_add(1, std::memory_order_seq_cst);
  uint64_t state = state_.load(std::memory_order_seq_cst);
  while (!is_due(state)) {
    wake_.wait(lock);
    state = state_.load(std::memory_order_seq_cst);
  }
  parked_.fetch_sub(1, std::memory_order_relaxed);
  return state;
}

bool ThreadPool::enter(uint64_t* last_loop) {
  uint64_t state = state_.load(std::memory_order_relaxed);
  while (is_new_loop(state, *last_loop)) {
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
      *last_loop = loop_of(state);
      return true;
    }
  }
  return false;
}

}  // namespace pb
