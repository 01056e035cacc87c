#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "cuda/backend/cuda_backend.h"
#include "cuda/driver/build.h"
#include "cuda/driver/device.h"
#include "cuda/driver/driver.h"
#include "cuda/driver/emulation.h"
#include "cuda/image/kernel_image.h"
#include "os/cores.h"

namespace pb {
namespace {

// Throws kConfig, with everything that the build, the driver or the machine lacks, if CUDA cannot
// be used.
void check_machine() {
  const cuda::Build& build = cuda::this_build();
  const cuda::Driver driver = cuda::probe(build);
  if (cuda::kernel_image().empty()) {
    throw Error(ErrorCode::kConfig,
                "device is 'cuda', and this build of pybatcher has no CUDA kernels" +
                    (build.problem.empty() ? "" : " (" + build.problem + ")") +
                    ": build it with PYBATCHER_CUDA=ON, or use device='cpu'" +
                    (driver.problem.empty() ? "" : ". Besides, " + driver.problem));
  }
  if (!driver.problem.empty()) {
    throw Error(ErrorCode::kConfig,
                "device is 'cuda', and " + driver.problem + "; or use device='cpu'");
  }
}

bool is_off(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && std::string_view(value) == "off";
}

// For comparisons of bits, PYBATCHER_CUDA_GRAPHS=off launches every kernel separately, and
// PYBATCHER_CUDA_TMA=off copies tiles by cp.async.
cuda::CudaOptions options_of_environment() {
  return {.graphs = !is_off("PYBATCHER_CUDA_GRAPHS"), .tma = !is_off("PYBATCHER_CUDA_TMA")};
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int n_threads) {
  if (n_threads == 0) n_threads = available_cores();
  const cuda::CudaOptions options = options_of_environment();
  if (const cuda::Emulation* emulation = cuda::emulation()) {
    auto device = std::make_unique<cuda::Device>(*emulation->driver);
    device->load_module(emulation);
    return std::make_unique<cuda::CudaBackend>(std::move(device), "cuda (emulated)", n_threads,
                                               options);
  }
  check_machine();
  auto device = std::make_unique<cuda::Device>(cuda::driver_api());
  device->load_module(cuda::kernel_image().data());
  return std::make_unique<cuda::CudaBackend>(std::move(device), "cuda", n_threads, options);
}

}  // namespace pb
