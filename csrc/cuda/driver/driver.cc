#include "cuda/driver/driver.h"

#include <utility>

#include "cuda/driver/driver_api.h"

namespace pb::cuda {
namespace {

struct Failure {
  Result code;
  std::string what;
};

// The library's functions by name. They are called before it is known whether the driver has all of
// them.
class Functions {
 public:
  explicit Functions(const DriverLibrary& library) : library_(library) {}

  // Calls a function of the library. Throws Failure if there is no such function or it returns an
  // error.
  template <typename... Args>
  void call(const char* name, Args... args) const {
    const auto function = find<Args...>(name);
    if (function == nullptr) throw Failure{0, std::string("it has no ") + name};
    const Result code = function(args...);
    if (code != kSuccess) {
      throw Failure{code, std::string(name) + " gave " + std::to_string(code) + text(code)};
    }
  }

 private:
  template <typename... Args>
  auto find(const char* name) const {
    return reinterpret_cast<Result (*)(Args...)>(library_.find(name));
  }

  std::string text(Result code) const {
    const auto describe = find<Result, const char**>("cuGetErrorString");
    const char* said = nullptr;
    if (describe == nullptr || describe(code, &said) != kSuccess || said == nullptr) return "";
    return std::string(" (") + said + ")";
  }

  const DriverLibrary& library_;
};

DeviceInfo describe_device(const Functions& library, int ordinal) {
  DeviceId id = 0;
  library.call("cuDeviceGet", &id, ordinal);
  char name[256] = {};
  library.call("cuDeviceGetName", &name[0], static_cast<int>(sizeof name) - 1, id);
  DeviceInfo device{.name = name};
  library.call("cuDeviceGetAttribute", &device.major, kCapabilityMajor, id);
  library.call("cuDeviceGetAttribute", &device.minor, kCapabilityMinor, id);
  library.call("cuDeviceTotalMem_v2", &device.memory_bytes, id);
  return device;
}

// Returns true if the build has code for the device: code runs on its own architecture and on later
// ones of the same major number.
bool runs_on(const Build& build, const DeviceInfo& device) {
  for (const int architecture : build.architectures) {
    if (architecture / 10 == device.major && architecture % 10 <= device.minor) return true;
  }
  return false;
}

std::string architecture_name(int architecture) { return "sm_" + std::to_string(architecture); }

std::string unknown_device(const Build& build, const DeviceInfo& device) {
  std::string known;
  for (const int architecture : build.architectures) {
    known += (known.empty() ? "" : ", ") + architecture_name(architecture);
  }
  return "GPU 0 is of no architecture that this build has code for (" + device.name + " is " +
         architecture_name(10 * device.major + device.minor) + "; it has " + known +
         "): name another GPU first in CUDA_VISIBLE_DEVICES, or use a newer pybatcher for a newer "
         "one";
}

// Returns the oldest driver version for the toolkit's code: the first of the same major number.
int oldest_version(const Build& build) {
  return build.toolkit.empty() ? 0 : 1000 * std::stoi(build.toolkit);
}

}  // namespace

const char* state_name(DriverState state) {
  switch (state) {
    case DriverState::kReady:
      return "ready";
    case DriverState::kAbsent:
      return "absent";
    case DriverState::kTooOld:
      return "too_old";
    case DriverState::kFailed:
      return "failed";
    case DriverState::kNoDevice:
      return "no_device";
    case DriverState::kUnknownDevice:
      return "unknown_device";
  }
  return "failed";
}

std::string version_name(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Driver probe(const Build& build, const char* library_name) {
  Driver driver;
  const auto lacking = [&driver](DriverState state, std::string problem) {
    driver.state = state;
    driver.problem = std::move(problem);
    return std::move(driver);
  };
  const auto no_device = [&lacking] {
    return lacking(DriverState::kNoDevice,
                   "the NVIDIA driver finds no GPU: see whether nvidia-smi lists one, and whether "
                   "CUDA_VISIBLE_DEVICES hides it");
  };

  const DriverLibrary opened(library_name);
  if (!opened.is_open()) {
    return lacking(DriverState::kAbsent, std::string("there is no NVIDIA driver (") +
                                             opened.problem() + "): install one");
  }
  const Functions library(opened);
  try {
    library.call("cuDriverGetVersion", &driver.version);
    const int oldest = oldest_version(build);
    if (driver.version < oldest) {
      return lacking(DriverState::kTooOld, "the NVIDIA driver is for CUDA up to " +
                                               version_name(driver.version) +
                                               ", and this build needs one for " +
                                               version_name(oldest) + ": update the driver");
    }
    library.call("cuInit", 0U);
    int count = 0;
    library.call("cuDeviceGetCount", &count);
    std::vector<DeviceInfo> devices;
    for (int i = 0; i < count; ++i) devices.push_back(describe_device(library, i));
    driver.devices = std::move(devices);
  } catch (const Failure& failure) {
    if (failure.code == kErrorNoDevice) return no_device();
    driver.error = failure.code;
    return lacking(DriverState::kFailed, "the NVIDIA driver failed, " + failure.what +
                                             ": see what nvidia-smi says of it");
  }
  if (driver.devices.empty()) return no_device();
  const DeviceInfo& first = driver.devices.front();
  if (build.toolkit.empty() || runs_on(build, first)) return driver;
  return lacking(DriverState::kUnknownDevice, unknown_device(build, first));
}

}  // namespace pb::cuda
