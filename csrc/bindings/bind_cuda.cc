#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/text.h"
#include "core_docs.h"
#include "cuda/driver/build.h"
#include "cuda/driver/driver.h"
#include "cuda/image/kernel_image.h"

namespace py = pybind11;

namespace pb::bindings {
namespace {

// Returns the fields of CudaInfo in pybatcher/machine/cuda.py.
py::dict cuda_info() {
  const cuda::Build& build = cuda::this_build();
  const cuda::Driver driver = [&build] {
    const py::gil_scoped_release release;  // starting a driver may take seconds
    return cuda::probe(build);
  }();
  py::list devices;
  for (const cuda::DeviceInfo& device : driver.devices) {
    devices.append(py::make_tuple(to_text(device.name), py::make_tuple(device.major, device.minor),
                                  device.memory_bytes));
  }
  py::dict d;
  d["toolkit"] = build.toolkit;
  d["architectures"] = py::tuple(py::cast(build.architectures));
  d["has_kernels"] = !cuda::kernel_image().empty();
  d["build_problem"] = to_text(build.problem);
  d["driver_state"] = cuda::state_name(driver.state);
  d["driver_version"] = driver.version == 0 ? "" : cuda::version_name(driver.version);
  d["driver_error"] = driver.error;
  d["driver_problem"] = to_text(driver.problem);
  d["devices"] = devices;
  return d;
}

}  // namespace
}  // namespace pb::bindings

void bind_cuda(py::module_& module) {
  py::options options;
  options.disable_function_signatures();  // _core.pyi has the signatures
  module.def("cuda_info", &pb::bindings::cuda_info, pb::bindings::doc("cuda_info"));
}
