// A GPU that is emulated on the CPU, in a module of the tests. No other one has it.
#pragma once

#include "cuda/driver/driver_api.h"

namespace pb::cuda {

struct Emulation {
  const DriverApi* driver;
};

// Null where there is none.
const Emulation* emulation();

}  // namespace pb::cuda
