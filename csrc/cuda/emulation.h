// A GPU that is emulated on the CPU, in builds for tests (PYBATCHER_CUDA_EMULATED). No other build
// has one.
#pragma once

#include "cuda/driver_api.h"

namespace pb::cuda {

struct Emulation {
  const DriverApi* driver;
};

// Null where there is none.
const Emulation* emulation();

}  // namespace pb::cuda
