// The NVIDIA driver and the GPUs of this machine, found without linking to either: the library is
// opened when it is asked for, so that one build runs with and without it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cuda/driver/build.h"
#include "cuda/driver/driver_library.h"

namespace pb::cuda {

enum class DriverState {
  kReady,          // GPU 0, which the engine takes, runs this build's code; in a build without
                   // CUDA, there is one
  kAbsent,         // no driver library
  kTooOld,         // older than this build's toolkit can do with; it is not started then
  kFailed,         // one of its functions gave an error, or is not there
  kNoDevice,       // it finds no GPU, or is not shown one
  kUnknownDevice,  // this build has no code for GPU 0
};

// "ready", "absent", "too_old", "failed", "no_device", "unknown_device".
const char* state_name(DriverState state);

struct DeviceInfo {
  std::string name;
  int major = 0;  // its compute capability: 9.0
  int minor = 0;
  size_t memory_bytes = 0;
};

struct Driver {
  DriverState state = DriverState::kReady;
  int version = 0;      // the newest CUDA it is for, 1000 * major + 10 * minor; 0: not known
  int error = 0;        // of kFailed: the CUresult; 0 where a function is not there
  std::string problem;  // what is lacking, and what to do about it; empty when kReady
  std::vector<DeviceInfo> devices;
};

// "13.0", of a version as the driver counts it.
std::string version_name(int version);

// Opens the driver and starts it in this process: a child forked afterwards cannot use CUDA. It
// makes no context and takes no memory of a GPU. Never throws for what it finds. library: another
// one than the system's, for tests.
Driver probe(const Build& build, const char* library = kDriverLibrary);

}  // namespace pb::cuda
