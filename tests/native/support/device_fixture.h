// What tests of the device layer share: a device of their own, and a kernel to launch on it.
#pragma once

#include <optional>
#include <string>

#include "cuda_fixture.h"

namespace pb::cuda {
namespace {

struct AddParams {
  float* x;  // (n)
  int n;
  float summand;
};

PB_KERNEL(add_to_all, AddParams, 64) {
  DYNAMIC_SHARED(float, shared);
  const int at = static_cast<int>(blockIdx.x * 64 + threadIdx.x);
  if (at >= p.n) return;
  shared[threadIdx.x] = p.x[at];
  p.x[at] = shared[threadIdx.x] + p.summand;
}

}  // namespace
}  // namespace pb::cuda

namespace pb::test {

using cuda::Device;
using cuda::DeviceMemory;
using cuda::Launch;

// A device of a test's own; at the end, all must have been given back.
class OwnDevice {
 public:
  OwnDevice() : before_(cuda_on_cpu::not_given_back()) {
    set_order(0);
    device_.emplace(cuda_on_cpu::emulated_driver());
    device_->load_module(nullptr);
  }
  ~OwnDevice() {
    device_.reset();
    EXPECT_EQ(cuda_on_cpu::not_given_back(), before_);
    cuda_on_cpu::reset_emulated_driver();
  }
  Device& operator*() { return *device_; }
  Device* operator->() { return &*device_; }

 private:
  std::string before_;
  std::optional<Device> device_;
};

inline std::string message_of(FunctionRef<void()> run, ErrorCode code = ErrorCode::kEngine) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT(error.code() == code);
    return error.what();
  } catch (const cuda_on_cpu::Error& error) {
    return error.what();
  }
  return "";
}

inline Launch<cuda::AddParams> add(const DeviceMemory& x, float summand,
                                   size_t shared_bytes = 256) {
  const int n = static_cast<int>(x.bytes() / sizeof(float));
  return {"add_to_all",
          {static_cast<unsigned>(n + 63) / 64},
          64,
          shared_bytes,
          {x.as<float>(), n, summand}};
}

}  // namespace pb::test
