// Detection of the NVIDIA driver and the GPUs of this machine. The library is opened at run time,
// so that one build runs with and without it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cuda/driver/build.h"
#include "cuda/driver/driver_library.h"

namespace pb::cuda {

enum class DriverState {
  kReady,          // GPU 0, which the engine uses, runs this build's code. A build without
                   // CUDA only needs a GPU.
  kAbsent,         // there is no driver library
  kTooOld,         // the driver is older than this build's toolkit needs, and is not initialised
  kFailed,         // a function of the driver is missing or returned an error
  kNoDevice,       // the driver finds no GPU, or is not allowed to see one
  kUnknownDevice,  // this build has no code for GPU 0
};

// Returns "ready", "absent", "too_old", "failed", "no_device" or "unknown_device".
const char* state_name(DriverState state);

struct DeviceInfo {
  std::string name;
  int major = 0;  // compute capability: 9.0
  int minor = 0;
  size_t memory_bytes = 0;
};

struct Driver {
  DriverState state = DriverState::kReady;
  int version = 0;      // the newest CUDA that it supports, 1000 * major + 10 * minor; 0: unknown
  int error = 0;        // the CUresult for kFailed; 0 if a function is missing
  std::string problem;  // the problem and its remedy; empty if kReady
  std::vector<DeviceInfo> devices;
};

// Returns a driver's version number as text, for example "13.0".
std::string version_name(int version);

// Opens the driver and initialises it in this process; a child that is forked later cannot use
// CUDA. Creates no context and allocates no GPU memory. Never throws because of its findings.
// `library` replaces the system's driver in tests.
Driver probe(const Build& build, const char* library = kDriverLibrary);

}  // namespace pb::cuda
