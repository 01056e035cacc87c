// What tests of kernels share: device memory, launches, random orders of threads, random numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "cuda/kernels/device_code.h"

namespace pb::test {

using cuda_on_cpu::MmaModel;

// An array in device memory: exactly so large, so that a sanitizer sees who goes beyond; all bits
// set at first, which is NaN.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : n_(n), data_(nullptr, std::free) {
    void* at = nullptr;
    if (posix_memalign(&at, 256, std::max<size_t>(1, n * sizeof(T))) != 0) std::abort();
    data_.reset(static_cast<T*>(at));
    std::memset(at, 0xff, n * sizeof(T));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    std::copy(values.begin(), values.end(), data_.get());
  }

  T* get() { return data_.get(); }
  const T* get() const { return data_.get(); }
  size_t size() const { return n_; }
  std::vector<T> host() const { return {data_.get(), data_.get() + n_}; }

 private:
  size_t n_;
  std::unique_ptr<T, decltype(&std::free)> data_;
};

// Launches a kernel and waits for it.
template <typename Params>
void launch(const std::string& kernel, dim3 grid, dim3 block, size_t shared_bytes,
            const Params& params) {
  cuda_on_cpu::launch(kernel, grid, block, shared_bytes, &params, sizeof params);
}

// The order of threads and blocks from here on (0: as numbered), and how an mma adds.
inline void set_order(uint64_t seed, MmaModel mma = MmaModel::kSequential) {
  cuda_on_cpu::options().seed = seed;
  cuda_on_cpu::options().mma = mma;
}

// How many random orders a test tries: PYBATCHER_ORDERS, or `usual`.
inline uint64_t n_orders(uint64_t usual) {
  const char* asked = std::getenv("PYBATCHER_ORDERS");
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : usual;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Normally distributed numbers, the same in every run.
class Numbers {
 public:
  explicit Numbers(uint32_t seed) : random_(seed) {}
  float next(float scale = 1.0f) { return scale * normal_(random_); }
  std::vector<float> floats(size_t n, float scale = 1.0f) {
    std::vector<float> values(n);
    for (float& v : values) v = next(scale);
    return values;
  }
  std::vector<__nv_bfloat16> bf16s(size_t n, float scale = 1.0f) {
    std::vector<__nv_bfloat16> values(n);
    for (__nv_bfloat16& v : values) v = __float2bfloat16_rn(next(scale));
    return values;
  }

 private:
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
};

}  // namespace pb::test
