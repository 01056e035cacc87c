// What tests of kernels share: device memory, launches, random orders of threads, random numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "cuda/device_code/device_code.h"
#include "cuda/driver/device.h"
#include "emulated_driver.h"

namespace pb::test {

using cuda_on_cpu::MmaModel;

// Another GPU than the emulated one for all that follows, where it is set before anything else. It
// is never destroyed.
inline cuda::Device*& other_device() {
  static cuda::Device* device = nullptr;
  return device;
}

// The GPU that tests run on: the emulated one, or other_device().
inline cuda::Device& test_device() {
  static cuda::Device& device = *[] {
    if (other_device() != nullptr) return other_device();
    auto* const made = new cuda::Device(cuda_on_cpu::emulated_driver());  // never destroyed
    made->load_module(nullptr);
    return made;
  }();
  return device;
}

// The kernels that were launched, by name.
inline std::set<std::string>& launched_kernels() {
  static std::set<std::string> names;
  return names;
}

// An array in device memory: exactly so large, so that a sanitizer sees who goes beyond; all bits
// set at first, which is NaN.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : n_(n), memory_(test_device().allocate(n * sizeof(T))) {
    test_device().fill(get(), 0xff, n * sizeof(T));
    test_device().finish();
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { set(values); }

  // Its address, for launches only: the host cannot read or write there. host() and set() do.
  T* get() { return memory_.template as<T>(); }
  const T* get() const { return memory_.template as<T>(); }
  size_t size() const { return n_; }

  // A copy of what is there.
  std::vector<T> host() const {
    std::vector<T> values(n_);
    test_device().copy_to_host(values.data(), get(), n_ * sizeof(T));
    test_device().finish();
    return values;
  }

  // values (size())
  void set(const std::vector<T>& values) {
    if (values.size() != n_) throw std::invalid_argument("DeviceArray: values of another size");
    test_device().copy_to_device(get(), values.data(), n_ * sizeof(T));
    test_device().finish();
  }

 private:
  size_t n_;
  cuda::DeviceMemory memory_;
};

// Launches a kernel and waits for it. block: threads along x.
template <typename Params>
void launch(const std::string& kernel, dim3 grid, dim3 block, size_t shared_bytes,
            const Params& params) {
  if (block.y != 1 || block.z != 1) throw std::invalid_argument("launch: a block is a row");
  launched_kernels().insert(kernel);
  test_device().launch(cuda::Launch<Params>{
      kernel.c_str(), {grid.x, grid.y, grid.z}, block.x, shared_bytes, params});
  test_device().finish();
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
