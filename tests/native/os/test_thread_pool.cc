#include <time.h>

#include <array>
#include <chrono>
#include <csignal>

#include "check.h"
#include "os/thread_pool.h"

namespace {

using namespace std::chrono_literals;

double process_cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

TEST(every_index_is_run_once_in_chunks_of_the_grain) {
  for (const int n_threads : {1, 2, 3, 7}) {
    pb::ThreadPool pool(n_threads);
    EXPECT_EQ(pool.n_threads(), n_threads);
    for (const int64_t n : {0, 1, 2, 5, 64, 1000}) {
      for (const int64_t grain : {1, 3, 64, 5000}) {
        std::vector<int> runs(static_cast<size_t>(n), 0);
        std::atomic<int> wrong{0};
        pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int worker) {
          if (begin % grain != 0 || end - begin > grain || end <= begin || end > n) ++wrong;
          if (worker < 0 || worker >= n_threads) ++wrong;
          for (int64_t i = begin; i < end; ++i) ++runs[static_cast<size_t>(i)];
        });
        EXPECT_EQ(wrong.load(), 0);
        for (const int count : runs) EXPECT_EQ(count, 1);
      }
    }
  }
}

TEST(a_negative_length_runs_nothing) {
  pb::ThreadPool pool(2);
  bool ran = false;
  pool.parallel_for(-5, 1, [&](int64_t, int64_t, int) { ran = true; });
  EXPECT(!ran);
}

TEST(one_thread_and_one_chunk_run_on_the_caller) {
  const auto caller = std::this_thread::get_id();
  for (const int n_threads : {1, 4}) {
    pb::ThreadPool pool(n_threads);
    pool.parallel_for(10, n_threads == 1 ? 1 : 10, [&](int64_t, int64_t, int worker) {
      EXPECT(std::this_thread::get_id() == caller);
      EXPECT_EQ(worker, 0);
    });
  }
}

TEST(all_threads_take_part) {
  pb::ThreadPool pool(4);
  std::array<std::atomic<int>, 4> chunks{};
  std::atomic<int> arrived{0};
  // No chunk ends before four are under way: on four different threads.
  pool.parallel_for(4, 1, [&](int64_t, int64_t, int worker) {
    ++chunks[static_cast<size_t>(worker)];
    ++arrived;
    while (arrived.load() < 4) std::this_thread::yield();
  });
  for (const auto& count : chunks) EXPECT_EQ(count.load(), 1);
}

// The hazard of thread_pool.cc: loops of other lengths, bodies and data follow each other without a
// gap, while workers are late. A torn read would run an index twice, or another loop's body.
TEST(no_loop_leaks_into_the_next) {
  for (const int n_threads : {2, 3, 8}) {
    pb::ThreadPool pool(n_threads);
    for (int64_t loop = 0; loop < 20'000 / n_threads; ++loop) {
      const int64_t n = 2 + loop * 7 % 13;
      std::vector<int64_t> out(static_cast<size_t>(n), -1);
      pool.parallel_for(n, 1 + loop % 3, [&, loop](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) out[static_cast<size_t>(i)] = loop * 100 + i;
      });
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], loop * 100 + i);
    }
  }
}

// Gaps around the time that a worker spins: some park just as the next loop is published. A lost
// wake-up would leave the barrier below waiting for ever.
TEST(no_wake_up_is_lost) {
  pb::ThreadPool pool(3);
  for (int loop = 0; loop < 600; ++loop) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(loop % 100);
    while (std::chrono::steady_clock::now() < until) {
    }
    std::atomic<int> arrived{0};
    pool.parallel_for(3, 1, [&](int64_t, int64_t, int) {
      ++arrived;
      while (arrived.load() < 3) std::this_thread::yield();
    });
    EXPECT_EQ(arrived.load(), 3);
  }
}

TEST(a_worker_that_does_not_come_holds_nobody_up) {
  // More threads than cores by far: most are not scheduled while a loop lasts.
  pb::ThreadPool pool(64);
  std::atomic<int64_t> sum{0};
  for (int loop = 0; loop < 200; ++loop) {
    pool.parallel_for(100, 1, [&](int64_t begin, int64_t, int) { sum += begin; });
  }
  EXPECT_EQ(sum.load(), 200 * 4950);
}

// As slow cores do: all threads but one stay in their first chunk until every other chunk is done.
// Chunks that belonged to a thread would never be.
TEST(a_slow_thread_holds_up_no_chunk_but_its_own) {
  constexpr int kThreads = 4, kChunks = 100;
  pb::ThreadPool pool(kThreads);
  for (int loop = 0; loop < 50; ++loop) {
    std::atomic<int> begun{0}, done{0}, given_up{0};
    std::array<std::atomic<int>, kThreads> chunks{};
    const auto last = std::chrono::steady_clock::now() + 60s;  // a failure instead of a hang
    pool.parallel_for(kChunks, 1, [&](int64_t, int64_t, int worker) {
      ++chunks[static_cast<size_t>(worker)];
      if (++begun < kThreads) {
        while (done < kChunks - kThreads + 1 && given_up == 0) {
          std::this_thread::yield();
          if (std::chrono::steady_clock::now() > last) ++given_up;
        }
      }
      ++done;
    });
    EXPECT_EQ(given_up.load(), 0);
    EXPECT_EQ(done.load(), kChunks);
    int most = 0;
    for (const auto& count : chunks) most = std::max(most, count.load());
    EXPECT_EQ(most, kChunks - kThreads + 1);
  }
}

TEST(an_idle_pool_costs_no_cpu) {
  pb::ThreadPool pool(4);
  std::atomic<int> runs{0};
  pool.parallel_for(100, 1, [&](int64_t, int64_t, int) { ++runs; });
  std::this_thread::sleep_for(50ms);  // time to park
  const double before = process_cpu_seconds();
  std::this_thread::sleep_for(300ms);
  EXPECT(process_cpu_seconds() - before < 0.005);
}

TEST(pools_come_and_go) {
  for (int i = 0; i < 100; ++i) {
    pb::ThreadPool pool(3);
    if (i % 2 == 0) continue;  // ended before its workers have begun
    std::atomic<int> runs{0};
    pool.parallel_for(10, 1, [&](int64_t, int64_t, int) { ++runs; });
    EXPECT_EQ(runs.load(), 10);
  }
}

// As when another program has taken the core of one of them: the caller gives its own away.
TEST(a_caller_that_waits_for_a_worker_uses_no_cpu_time) {
  pb::ThreadPool pool(2);
  std::array<int, 2> runs{};
  const double before = process_cpu_seconds();
  for (int i = 0; i < 20; ++i) {
    std::atomic<int> started{0};
    pool.parallel_for(2, 1, [&](int64_t begin, int64_t, int worker) {
      ++started;
      while (started < 2) std::this_thread::yield();  // one chunk each
      if (worker != 0) std::this_thread::sleep_for(20ms);
      ++runs[static_cast<size_t>(begin)];
    });
  }
  EXPECT(process_cpu_seconds() - before < 0.05);  // of the 0.4 s that it waited
  EXPECT_EQ(runs[0], 20);
  EXPECT_EQ(runs[1], 20);
}

TEST(two_pools_do_not_disturb_each_other) {
  std::array<int64_t, 2> sums{};
  std::array<std::thread, 2> callers;
  for (size_t i = 0; i < 2; ++i) {
    callers[i] = std::thread([&, i] {
      pb::ThreadPool pool(2);
      for (int loop = 0; loop < 300; ++loop) {
        std::array<int64_t, 2> parts{};
        pool.parallel_for(50, 1, [&](int64_t begin, int64_t, int worker) {
          parts[static_cast<size_t>(worker)] += begin;
        });
        sums[i] += parts[0] + parts[1];
      }
    });
  }
  for (auto& caller : callers) caller.join();
  for (const int64_t sum : sums) EXPECT_EQ(sum, 300 * 1225);
}

TEST(n_threads_out_of_range_is_refused) {
  EXPECT_THROWS(pb::ErrorCode::kConfig, pb::ThreadPool(0));
  EXPECT_THROWS(pb::ErrorCode::kConfig, pb::ThreadPool(-3));
  EXPECT_THROWS(pb::ErrorCode::kConfig, pb::ThreadPool(1025));
}

#ifdef __linux__
TEST(workers_leave_the_signals_of_the_program_alone) {
  sigset_t interrupt, after;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  pthread_sigmask(SIG_UNBLOCK, &interrupt, nullptr);
  pb::ThreadPool pool(2);
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(sigismember(&after, SIGINT), 0);
  std::atomic<int> arrived{0};
  std::array<std::atomic<int>, 2> int_blocked{};
  std::array<std::atomic<int>, 2> segv_blocked{};
  pool.parallel_for(2, 1, [&](int64_t, int64_t, int worker) {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    int_blocked[static_cast<size_t>(worker)] = sigismember(&mask, SIGINT);
    segv_blocked[static_cast<size_t>(worker)] = sigismember(&mask, SIGSEGV);
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(int_blocked[0].load(), 0);
  EXPECT_EQ(int_blocked[1].load(), 1);
  EXPECT_EQ(segv_blocked[1].load(), 0);
}
#endif

PB_TEST_MAIN()
