#include "machine_limits.h"

#include <immintrin.h>

#include <cstring>

#include "cpu/dispatch/dispatch.h"

namespace pb::bench {
namespace {

constexpr int kChains = 12;
constexpr int64_t kSteps = 1'000'000;
constexpr int64_t kTileSteps = 100'000;

__attribute__((target("avx2,fma"))) float fma_256() {
  __m256 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.999f);
  for (int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (auto& s : sums) s = _mm256_fmadd_ps(s, a, a);
  }
  for (auto& s : sums) sums[0] = _mm256_add_ps(sums[0], s);
  return _mm256_cvtss_f32(sums[0]);
}

__attribute__((target("avx512f"))) float fma_512() {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.999f);
  for (int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (auto& s : sums) s = _mm512_fmadd_ps(s, a, a);
  }
  for (auto& s : sums) sums[0] = _mm512_add_ps(sums[0], s);
  return _mm512_cvtss_f32(sums[0]);
}

__attribute__((target("avx512f,avx512bf16"))) float dot_bf16() {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512bh a = (__m512bh)_mm512_set1_epi16(0x3c00);
  for (int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (auto& s : sums) s = _mm512_dpbf16_ps(s, a, a);
  }
  for (auto& s : sums) sums[0] = _mm512_add_ps(sums[0], s);
  return _mm512_cvtss_f32(sums[0]);
}

// In one statement with registers of its own: the compiler would store every sum on its way through
// several. What the sums begin with does not matter.
__attribute__((target("avx512f,avx512vnni"))) float dot_int8() {
  static_assert(kChains == 12);
  const __m512i a = _mm512_set1_epi8(3);
  for (int64_t i = 0; i < kSteps; ++i) {
    asm volatile(
        "vpdpbusd %0, %0, %%zmm1\n\t"
        "vpdpbusd %0, %0, %%zmm2\n\t"
        "vpdpbusd %0, %0, %%zmm3\n\t"
        "vpdpbusd %0, %0, %%zmm4\n\t"
        "vpdpbusd %0, %0, %%zmm5\n\t"
        "vpdpbusd %0, %0, %%zmm6\n\t"
        "vpdpbusd %0, %0, %%zmm7\n\t"
        "vpdpbusd %0, %0, %%zmm8\n\t"
        "vpdpbusd %0, %0, %%zmm9\n\t"
        "vpdpbusd %0, %0, %%zmm10\n\t"
        "vpdpbusd %0, %0, %%zmm11\n\t"
        "vpdpbusd %0, %0, %%zmm12\n\t"
        :
        : "v"(a)
        : "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
          "xmm12");
  }
  return 0.0f;
}

__attribute__((target("avx2"))) float dot_int8_256() {
  static_assert(kChains == 12);
  const __m256i a = _mm256_set1_epi8(3);
  for (int64_t i = 0; i < kSteps; ++i) {
    asm volatile(
        "%{vex%} vpdpbusd %0, %0, %%ymm1\n\t"
        "%{vex%} vpdpbusd %0, %0, %%ymm2\n\t"
        "%{vex%} vpdpbusd %0, %0, %%ymm3\n\t"
        "%{vex%} vpdpbusd %0, %0, %%ymm4\n\t"
        "%{vex%} vpdpbusd %0, %0, %%ymm5\n\t"
        "%{vex%} vpdpbusd %0, %0, %%ymm6\n\t"
        "%{vex%} vpdpbusd %0, %0, %%ymm7\n\t"
        "%{vex%} vpdpbusd %0, %0, %%ymm8\n\t"
        "%{vex%} vpdpbusd %0, %0, %%ymm9\n\t"
        "%{vex%} vpdpbusd %0, %0, %%ymm10\n\t"
        "%{vex%} vpdpbusd %0, %0, %%ymm11\n\t"
        "%{vex%} vpdpbusd %0, %0, %%ymm12\n\t"
        :
        : "x"(a)
        : "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
          "xmm12");
  }
  return 0.0f;
}

// Eight tiles of 16 rows of 64 bytes; see the instruction ldtilecfg.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

__attribute__((target("amx-tile"))) void load_tiles() {
  const TileConfig config;
  alignas(64) uint8_t ones[1024];
  std::memset(ones, 0x3c, sizeof ones);
  // The intrinsics of gcc 12 do not say that they read all of what they are pointed to.
  asm volatile("" : : "r"(&config), "r"(ones) : "memory");
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, ones, 64);
  _tile_loadd(5, ones, 64);
  _tile_loadd(6, ones, 64);
  _tile_loadd(7, ones, 64);
}

__attribute__((target("amx-tile"))) float store_tiles() {
  alignas(64) float sums[256];
  _tile_stored(0, sums, 64);
  _tile_release();
  return sums[0];
}

__attribute__((target("amx-tile,amx-bf16"))) float tile_bf16() {
  load_tiles();
  for (int64_t i = 0; i < kTileSteps; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  return store_tiles();
}

__attribute__((target("amx-tile,amx-int8"))) float tile_int8() {
  load_tiles();
  for (int64_t i = 0; i < kTileSteps; ++i) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  return store_tiles();
}

// Loads alone do not reach what the memory gives. Of the distances tried, and with every prefetch
// just before a load, these and their neighbours read fastest.
constexpr int kFarPrefetch = 3584;  // bytes ahead, into the second level of the cache
constexpr int kNearPrefetch = 768;

__attribute__((target("avx2"))) float sum_of(const float* p, int64_t n) {
  __m256 sums[8];
  for (auto& s : sums) s = _mm256_setzero_ps();
  for (int64_t i = 0; i < n; i += 64) {
    const char* at = reinterpret_cast<const char*>(p + i);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      if (j % 2 == 0) {
        __builtin_prefetch(at + kFarPrefetch + j * 32, 0, 2);
        __builtin_prefetch(at + kNearPrefetch + j * 32, 0, 3);
        asm volatile("" ::: "memory");  // or the compiler gathers them
      }
      sums[j] = _mm256_add_ps(sums[j], _mm256_loadu_ps(p + i + j * 8));
    }
  }
  for (auto& s : sums) sums[0] = _mm256_add_ps(sums[0], s);
  return _mm256_cvtss_f32(sums[0]);
}

constexpr int kReadChunk = 1 << 18;

volatile float sink;

double peak(ThreadPool& pool, float (*chains)(), double ops) {
  double best = 1e30;
  const double start = now();
  for (int i = 0; i < 3 || now() - start < 0.2; ++i) {
    const double begin = now();
    pool.parallel_for(pool.n_threads(), 1, [&](int64_t, int64_t, int) { sink = chains(); });
    best = std::min(best, now() - begin);
  }
  return pool.n_threads() * ops / best / 1e9;
}

}  // namespace

AlignedBuffer make_readable(size_t bytes) {
  constexpr size_t kChunk = kReadChunk;
  AlignedBuffer data((bytes + kChunk - 1) / kChunk * kChunk);
  std::memset(data.as<std::byte>(), 0x3c, data.bytes());
  return data;
}

double read_once(ThreadPool& pool, const AlignedBuffer& data) {
  constexpr int64_t kChunk = kReadChunk;
  const float* p = data.as<float>();
  const double begin = now();
  pool.parallel_for(static_cast<int64_t>(data.bytes()) / kChunk, 1,
                    [&](int64_t first, int64_t end, int) {
                      sink = sum_of(p + first * kChunk / 4, (end - first) * kChunk / 4);
                    });
  return now() - begin;
}

std::vector<Peak> peaks(ThreadPool& pool) {
  constexpr double kVectors = static_cast<double>(kSteps) * kChains;
  constexpr double kTiles = static_cast<double>(kTileSteps) * 4;
  std::vector<Peak> all;
  const auto add = [&](const char* name, float (*chains)(), double ops) {
    all.push_back({name, peak(pool, chains, ops)});
  };
  if (__builtin_cpu_supports("fma")) add("fma256", fma_256, kVectors * 8 * 2);
  if (cpu::cpu_supports(*cpu::find_target("avx_vnni"))) {
    add("vpdpbusd256", dot_int8_256, kVectors * 32 * 2);
  }
  if (__builtin_cpu_supports("avx512f")) add("fma512", fma_512, kVectors * 16 * 2);
  if (__builtin_cpu_supports("avx512bf16")) add("vdpbf16ps", dot_bf16, kVectors * 32 * 2);
  if (__builtin_cpu_supports("avx512vnni")) add("vpdpbusd", dot_int8, kVectors * 64 * 2);
  if (cpu::cpu_supports(*cpu::find_target("avx512_amx"))) {
    add("tdpbf16ps", tile_bf16, kTiles * 16 * 16 * 32 * 2);
    add("tdpbssd", tile_int8, kTiles * 16 * 16 * 64 * 2);
  }
  return all;
}

}  // namespace pb::bench
