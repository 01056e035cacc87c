// Kernels with planted bugs: each is seen by the plain build, by AddressSanitizer or by
// ThreadSanitizer. A child process runs one of them, since sanitizers end it.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "cuda_fixture.h"

namespace pb::test {

// A kernel, and what each build is expected to say of it; null where it sees nothing. A kernel of
// which no build says anything has no bug.
struct PlantedBug {
  const char* kernel;
  const char* plain;
  const char* asan;
  const char* tsan;
};

inline constexpr const char* kWrong = "a wrong result";
inline constexpr const char* kHeap = "AddressSanitizer: heap-buffer-overflow";
inline constexpr const char* kPoison = "AddressSanitizer: use-after-poison";
inline constexpr const char* kRace = "ThreadSanitizer: data race";

// Of the program. is_right() runs the kernel and compares its result.
extern const std::span<const PlantedBug> planted_bugs;
bool is_right(const std::string& kernel, Numbers& numbers);

inline bool are_close(const std::vector<float>& got, const std::vector<double>& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!(std::abs(got[i] - wanted[i]) < 1e-3)) return false;
  }
  return true;
}

// y (m, n) = x (m, k) w (n, k)^T.
inline std::vector<double> product_of(const std::vector<__nv_bfloat16>& x,
                                      const std::vector<__nv_bfloat16>& w, size_t m, size_t n,
                                      size_t k) {
  std::vector<double> y(m * n);
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      for (size_t l = 0; l < k; ++l) {
        y[i * n + j] += double{__bfloat162float(x[i * k + l])} * __bfloat162float(w[j * k + l]);
      }
    }
  }
  return y;
}

inline const char* said_of(const PlantedBug& bug) {
#if defined(__SANITIZE_ADDRESS__)
  return bug.asan;
#elif defined(__SANITIZE_THREAD__)
  return bug.tsan;
#else
  return bug.plain;
#endif
}

inline bool has_bug(const PlantedBug& bug) {
  return bug.plain != nullptr || bug.asan != nullptr || bug.tsan != nullptr;
}

// What the child does.
inline int run_kernel(const std::string& kernel) {
  try {
    Numbers numbers(3);
    for (uint64_t seed = 0; seed <= n_orders(5); ++seed) {
      set_order(seed);
      if (is_right(kernel, numbers)) continue;
      std::printf("%s\n", kWrong);
      return 1;
    }
  } catch (const cuda_on_cpu::Error& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  std::printf("passed\n");
  return 0;
}

struct Ended {
  int status = 0;
  std::string said;
};

inline Ended run_child(const char* kernel) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    setenv("TSAN_OPTIONS", "halt_on_error=1", 1);
    execl("/proc/self/exe", "test_planted_bugs", kernel, nullptr);
    _exit(127);
  }
  close(ends[1]);
  Ended ended;
  char buffer[4096];
  for (ssize_t n = read(ends[0], buffer, sizeof buffer); n > 0;
       n = read(ends[0], buffer, sizeof buffer)) {
    ended.said.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  waitpid(child, &ended.status, 0);
  return ended;
}

TEST(kernels_without_a_bug_pass) {
  for (const PlantedBug& bug : planted_bugs) {
    if (has_bug(bug)) continue;
    const Ended ended = run_child(bug.kernel);
    EXPECT_EQ(ended.status, 0);
    EXPECT_EQ(ended.said, "passed\n");
  }
}

TEST(each_planted_bug_is_seen_and_named) {
  for (const PlantedBug& bug : planted_bugs) {
    if (said_of(bug) == nullptr) continue;
    const Ended ended = run_child(bug.kernel);
    EXPECT(ended.status != 0);
    if (ended.said.find(said_of(bug)) == std::string::npos) {
      fail(
          __FILE__, __LINE__,
          std::string(bug.kernel) + ": no '" + said_of(bug) + "' in " + ended.said.substr(0, 2000));
    }
  }
}

}  // namespace pb::test

int main(int argc, char** argv) {
  return argc > 1 ? pb::test::run_kernel(argv[1]) : pb::test::run_all(argc, argv);
}
