// Speed of the CPU's matrix products against what the machine can do at most, in one run:
//   bench_kernels [target] [threads]
// Read bandwidth is a plain sum over 256 MiB; the peaks are chains of fma, vdpbf16ps and
// tdpbf16ps in registers.
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/cpu_backend.h"
#include "cpu/dispatch.h"

namespace {

using namespace pb;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of the fastest of at least three calls, about `budget` seconds of them.
template <typename F>
double fastest(F f, double budget = 0.25) {
  double best = 1e30;
  const double start = now();
  for (int i = 0; i < 3 || now() - start < budget; ++i) {
    const double begin = now();
    f();
    best = std::min(best, now() - begin);
  }
  return best;
}

constexpr int kChains = 12;
constexpr int64_t kPeakSteps = 2'000'000;
constexpr int64_t kTileSteps = 200'000;

__attribute__((target("avx2,fma"))) float fma_chains_256() {
  __m256 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.999f);
  for (int64_t i = 0; i < kPeakSteps; ++i) {
#pragma GCC unroll 12
    for (auto& s : sums) s = _mm256_fmadd_ps(s, a, a);
  }
  for (auto& s : sums) sums[0] = _mm256_add_ps(sums[0], s);
  return _mm256_cvtss_f32(sums[0]);
}

__attribute__((target("avx512f"))) float fma_chains_512() {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.999f);
  for (int64_t i = 0; i < kPeakSteps; ++i) {
#pragma GCC unroll 12
    for (auto& s : sums) s = _mm512_fmadd_ps(s, a, a);
  }
  for (auto& s : sums) sums[0] = _mm512_add_ps(sums[0], s);
  return _mm512_cvtss_f32(sums[0]);
}

__attribute__((target("avx512f,avx512bf16"))) float bf16_chains() {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512bh a = (__m512bh)_mm512_set1_epi16(0x3c00);
  for (int64_t i = 0; i < kPeakSteps; ++i) {
#pragma GCC unroll 12
    for (auto& s : sums) s = _mm512_dpbf16_ps(s, a, a);
  }
  for (auto& s : sums) sums[0] = _mm512_add_ps(sums[0], s);
  return _mm512_cvtss_f32(sums[0]);
}

// Four chains of tiles; a thread of a process that may not use them never gets here.
__attribute__((target("amx-tile,amx-bf16"))) float amx_chains() {
  alignas(64) uint8_t shapes[64] = {1};
  for (int t = 0; t < 8; ++t) {
    shapes[16 + 2 * t] = 64;
    shapes[48 + t] = 16;
  }
  asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
  for (int64_t i = 0; i < kTileSteps; ++i) {
    asm volatile(
        "tdpbf16ps %tmm6, %tmm4, %tmm0\n tdpbf16ps %tmm7, %tmm4, %tmm1\n"
        "tdpbf16ps %tmm6, %tmm5, %tmm2\n tdpbf16ps %tmm7, %tmm5, %tmm3");
  }
  asm volatile("tilerelease");
  return 0.0f;
}

__attribute__((target("avx2"))) float sum_of(const float* p, int64_t n) {
  __m256 sums[8];
  for (auto& s : sums) s = _mm256_setzero_ps();
  for (int64_t i = 0; i < n; i += 64) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sums[j] = _mm256_add_ps(sums[j], _mm256_loadu_ps(p + i + j * 8));
  }
  for (auto& s : sums) sums[0] = _mm256_add_ps(sums[0], s);
  return _mm256_cvtss_f32(sums[0]);
}

volatile float sink;

double peak_gflops(ThreadPool& pool, float (*chains)(), double flops) {
  const double t = fastest(
      [&] {
        pool.parallel_for(pool.n_threads(), 1, [&](int64_t, int64_t, int) { sink = chains(); });
      },
      0.1);
  return pool.n_threads() * flops / t / 1e9;
}

double read_bandwidth(ThreadPool& pool) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  constexpr int64_t kChunk = 65536;
  AlignedBuffer data(kBytes);
  const float* p = data.as<float>();
  const double t = fastest([&] {
    pool.parallel_for(kBytes / kChunk, 1, [&](int64_t begin, int64_t end, int) {
      sink = sum_of(p + begin * kChunk / 4, (end - begin) * kChunk / 4);
    });
  });
  return kBytes / t / 1e9;
}

Matrix random_matrix(Backend& backend, int n_out, int n_in, DType dtype) {
  std::vector<uint16_t> values(static_cast<size_t>(n_out) * n_in);
  uint32_t state = 1;
  for (uint16_t& v : values) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<uint16_t>(0x3c00u | (state >> 31 << 15) |
                              (state >> 16 & 0x7f));  // +-[2^-7, 2^-6)
  }
  const TensorView part{"w", values.data(), DType::kBF16, n_out, n_in, n_in, 1};
  const TensorView no_bias;
  return backend.make_matrix({&part, 1}, {&no_bias, 1}, dtype);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string target = argc > 1 ? argv[1] : "";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 0;
  auto backend = make_cpu_backend(threads, target);
  ThreadPool pool(backend->n_threads());
  std::printf("%s, %d threads\n", backend->target().c_str(), backend->n_threads());
  std::printf("read %.1f GB/s", read_bandwidth(pool));
  constexpr double kSteps = static_cast<double>(kPeakSteps) * kChains;
  std::printf(", fma 256 %.0f GFLOP/s", peak_gflops(pool, fma_chains_256, kSteps * 16));
  if (__builtin_cpu_supports("avx512f")) {
    std::printf(", fma 512 %.0f", peak_gflops(pool, fma_chains_512, kSteps * 32));
  }
  if (__builtin_cpu_supports("avx512bf16")) {
    std::printf(", vdpbf16ps %.0f", peak_gflops(pool, bf16_chains, kSteps * 64));
  }
  if (cpu::cpu_supports(cpu::avx512_amx::kKernels)) {
    std::printf(", tdpbf16ps %.0f", peak_gflops(pool, amx_chains, kTileSteps * 4.0 * 16384));
  }
  std::printf("\n");

  constexpr int kShapes[][2] = {{2048, 2048}, {8192, 2048}, {2048, 8192}, {128256, 2048}};
  constexpr int kRows[] = {1, 4, 8, 16, 32, 512};
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    for (const auto& [n_out, n_in] : kShapes) {
      // Copies enough that the caches do not hold them all.
      const size_t bytes = static_cast<size_t>(n_out) * n_in * dtype_size(dtype);
      std::vector<Matrix> matrices;
      for (size_t held = 0; held < (size_t{192} << 20); held += bytes) {
        matrices.push_back(random_matrix(*backend, n_out, n_in, dtype));
      }
      for (int rows : kRows) {
        if (rows == 512 && n_out > 10000) continue;  // the head never sees a whole prefill
        Activations x = backend->make_activations(rows, n_in, dtype);
        std::memset(x.data.as<std::byte>(), 0x3c, x.data.bytes());
        std::vector<float> y(static_cast<size_t>(rows) * n_out);
        const size_t passes = rows == 512 ? 1 : matrices.size();
        const double t = fastest([&] {
          for (size_t i = 0; i < passes; ++i)
            backend->matmul(x, rows, matrices[i], y.data(), Store::kSet);
        });
        std::printf("%s %6d x %4d, %3d rows: %8.3f ms  %6.1f GB/s  %7.1f GFLOP/s\n",
                    dtype_name(dtype), n_out, n_in, rows, t * 1e3 / passes,
                    bytes * passes / t / 1e9, 2.0 * n_out * n_in * rows * passes / t / 1e9);
      }
    }
  }
}
