// Kernels with planted bugs: each is seen by the plain build, by AddressSanitizer or by
// ThreadSanitizer. A child process runs one of them, since sanitizers end it.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "attention_with_bugs.cuh"
#include "cuda_fixture.h"
#include "gemm_with_bugs.cuh"
#include "wgmma_with_bugs.cuh"

namespace pb::test {
namespace {

// What a build is expected to say of a bug; null where it does not see it.
struct PlantedBug {
  const char* kernel;
  const char* plain;
  const char* asan;
  const char* tsan;
};

constexpr const char* kWrong = "a wrong result";
constexpr const char* kHeap = "AddressSanitizer: heap-buffer-overflow";
constexpr const char* kRace = "ThreadSanitizer: data race";

constexpr PlantedBug kBugs[] = {
    {"gemm", nullptr, nullptr, nullptr},
    {"gemm_no_barrier_before", kWrong, kWrong, kRace},
    {"gemm_no_barrier_after", kWrong, kWrong, kRace},
    {"gemm_wrong_wait", kWrong, kWrong, kWrong},
    {"gemm_divergent_barrier", "threads of a block diverge", "threads of a block diverge",
     "threads of a block diverge"},
    {"gemm_no_wait", "copies that nobody waited for", "copies that nobody waited for",
     "copies that nobody waited for"},
    {"gemm_dynamic_bounds", nullptr, "AddressSanitizer: use-after-poison", nullptr},
    {"gemm_array_bounds", kWrong, "AddressSanitizer: use-after-poison", kRace},
    {"gemm_global_read", nullptr, kHeap, nullptr},
    {"gemm_global_write", nullptr, kHeap, nullptr},
    {"attention", nullptr, nullptr, nullptr},
    {"attention_no_barrier_scores", kWrong, kWrong, kRace},
    {"attention_shuffle_orders", nullptr, nullptr, kRace},
    {"attention_static_bounds", nullptr, "AddressSanitizer: global-buffer-overflow", nullptr},
    {"attention_unwritten", kWrong, kWrong, kWrong},
    {"wgmma", nullptr, nullptr, nullptr},
    {"wgmma_no_proxy_fence", "without fence.proxy.async", "without fence.proxy.async",
     "without fence.proxy.async"},
    {"wgmma_no_wait", kWrong, kWrong, nullptr},
    {"wgmma_loads_too_early", "an operand was changed while it was under way",
     "an operand was changed while it was under way",
     "an operand was changed while it was under way"},
};

const char* said_of(const PlantedBug& bug) {
#if defined(__SANITIZE_ADDRESS__)
  return bug.asan;
#elif defined(__SANITIZE_THREAD__)
  return bug.tsan;
#else
  return bug.plain;
#endif
}

bool is_bug(const PlantedBug& bug) { return bug.asan != nullptr || bug.tsan != nullptr; }

// -- in the child -----------------------------------------------------------------------------

bool are_close(const std::vector<float>& got, const std::vector<double>& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!(std::abs(got[i] - wanted[i]) < 1e-3)) return false;
  }
  return true;
}

std::vector<double> product_of(const std::vector<__nv_bfloat16>& x,
                               const std::vector<__nv_bfloat16>& w, size_t m, size_t n, size_t k) {
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

bool gemm_is_right(const std::string& kernel, Numbers& numbers) {
  const int m = 50;
  const int k = 192;
  const auto x = numbers.bf16s(static_cast<size_t>(m) * k);
  const auto w = numbers.bf16s(static_cast<size_t>(64) * k);
  const DeviceArray<__nv_bfloat16> dx(x);
  const DeviceArray<__nv_bfloat16> dw(w);
  DeviceArray<float> y(static_cast<size_t>(m) * 64);
  cuda::SharedBytes shared;
  cuda::take_gemm_arrays(shared);
  launch(kernel, dim3(1), dim3(128), shared.bytes(),
         cuda::GemmParams{dx.get(), dw.get(), y.get(), m, k});
  return are_close(y.host(), product_of(x, w, m, 64, k));
}

bool wgmma_is_right(const std::string& kernel, Numbers& numbers) {
  const int k = 256;
  const auto x = numbers.bf16s(static_cast<size_t>(64) * k);
  const auto w = numbers.bf16s(static_cast<size_t>(64) * k);
  const DeviceArray<__nv_bfloat16> dx(x);
  const DeviceArray<__nv_bfloat16> dw(w);
  DeviceArray<float> y(static_cast<size_t>(64) * 64);
  cuda::SharedBytes shared;
  cuda::take_wgmma_tiles(shared);
  launch(kernel, dim3(1), dim3(128), shared.bytes(),
         cuda::WgmmaParams{dx.get(), dw.get(), y.get(), k});
  return are_close(y.host(), product_of(x, w, 64, 64, k));
}

bool attention_is_right(const std::string& kernel, Numbers& numbers) {
  const size_t n = 61;
  const size_t dim = cuda::kDim;
  const auto q = numbers.floats(cuda::kQueries * dim);
  const auto keys = numbers.floats(n * dim, 0.2f);
  const auto values = numbers.floats(n * dim);
  std::vector<double> wanted(cuda::kQueries * dim);
  for (size_t query = 0; query < cuda::kQueries; ++query) {
    double sum = 0.0;
    for (size_t i = 0; i < n; ++i) {
      double score = 0.0;
      for (size_t d = 0; d < dim; ++d) score += double{q[query * dim + d]} * keys[i * dim + d];
      sum += std::exp(score);
      for (size_t d = 0; d < dim; ++d) {
        wanted[query * dim + d] += std::exp(score) * values[i * dim + d];
      }
    }
    for (size_t d = 0; d < dim; ++d) wanted[query * dim + d] /= sum;
  }
  const DeviceArray<float> dq(q);
  const DeviceArray<float> dk(keys);
  const DeviceArray<float> dv(values);
  DeviceArray<float> out(wanted.size());
  launch(kernel, dim3(1), dim3(128), 0,
         cuda::AttentionParams{dq.get(), dk.get(), dv.get(), static_cast<int>(n), out.get()});
  return are_close(out.host(), wanted);
}

int run_kernel(const std::string& kernel) {
  try {
    Numbers numbers(3);
    for (uint64_t seed = 0; seed <= n_orders(5); ++seed) {
      set_order(seed);
      const bool is_right = kernel.starts_with("gemm")    ? gemm_is_right(kernel, numbers)
                            : kernel.starts_with("wgmma") ? wgmma_is_right(kernel, numbers)
                                                          : attention_is_right(kernel, numbers);
      if (is_right) continue;
      std::printf("a wrong result\n");
      return 1;
    }
  } catch (const cuda_on_cpu::Error& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  std::printf("passed\n");
  return 0;
}

// -- in the parent ----------------------------------------------------------------------------

struct Ended {
  int status = 0;
  std::string said;
};

Ended run_child(const char* kernel) {
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
  for (const PlantedBug& bug : kBugs) {
    if (is_bug(bug)) continue;
    const Ended ended = run_child(bug.kernel);
    EXPECT_EQ(ended.status, 0);
    EXPECT_EQ(ended.said, "passed\n");
  }
}

TEST(each_planted_bug_is_seen_and_named) {
  for (const PlantedBug& bug : kBugs) {
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

}  // namespace
}  // namespace pb::test

int main(int argc, char** argv) {
  return argc > 1 ? pb::test::run_kernel(argv[1]) : pb::test::run_all();
}
