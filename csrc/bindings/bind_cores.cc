#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "core_docs.h"
#include "os/cores.h"

namespace py = pybind11;

namespace pb::bindings {
namespace {

// Returns the fields of Cores in pybatcher/machine/cores.py.
py::dict cores() {
  const Cores found = read_cores();
  py::dict d;
  d["n_threads"] = found.n_threads();
  d["n_cores"] = found.cpus.n_cores;
  d["n_slow"] = found.cpus.n_slow;
  d["n_cpus"] = found.cpus.n_cpus;
  d["n_online"] = found.cpus.n_online;
  d["quota"] = found.quota;
  return d;
}

}  // namespace
}  // namespace pb::bindings

void bind_cores(py::module_& module) {
  py::options options;
  options.disable_function_signatures();  // _core.pyi has the signatures
  module.def("cores", &pb::bindings::cores, pb::bindings::doc("cores"));
}
