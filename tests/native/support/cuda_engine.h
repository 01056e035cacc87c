// Engines whose device is the emulator.
#pragma once

#include <memory>

#include "cuda/backend/cuda_backend.h"
#include "emulated_driver.h"
#include "ops/backend.h"

namespace pb::test {

inline std::unique_ptr<Backend> make_emulated_backend(
    cuda::CudaOptions options = {},
    const cuda::DriverApi& driver = cuda_on_cpu::emulated_driver()) {
  auto device = std::make_unique<cuda::Device>(driver);
  device->load_module("emulated");
  return std::make_unique<cuda::CudaBackend>(std::move(device), "cuda (emulated)", 1, options);
}

}  // namespace pb::test
