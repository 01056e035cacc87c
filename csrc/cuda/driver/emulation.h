// A GPU that is emulated on the CPU, which only the tests' module links.
#pragma once

#include "cuda/driver/driver_api.h"

namespace pb::cuda {

struct Emulation {
  const DriverApi* driver;
};

// Returns the emulation, or null if the module has none.
const Emulation* emulation();

}  // namespace pb::cuda
