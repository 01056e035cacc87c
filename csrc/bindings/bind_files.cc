#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "core_docs.h"
#include "os/truncation_guard.h"

namespace py = pybind11;

namespace pb::bindings {
namespace {

// A TruncationGuard of numpy arrays, which it keeps alive. It guards between enter() and exit().
class MappedFiles {
 public:
  explicit MappedFiles(std::vector<py::array> files) : files_(std::move(files)) {}

  void enter() {
    std::vector<std::span<const std::byte>> mapped;
    for (const py::array& file : files_) {
      mapped.emplace_back(static_cast<const std::byte*>(file.data()),
                          static_cast<size_t>(file.nbytes()));
    }
    guard_ = std::make_unique<TruncationGuard>(mapped);
  }
  void exit(const py::args&) { guard_.reset(); }

 private:
  std::vector<py::array> files_;
  std::unique_ptr<TruncationGuard> guard_;
};

}  // namespace
}  // namespace pb::bindings

void bind_files(py::module_& module) {
  using namespace pb::bindings;
  py::options options;
  options.disable_function_signatures();  // _core.pyi has the signatures
  py::class_<MappedFiles>(module, "MappedFiles", doc("MappedFiles"))
      .def(py::init<std::vector<py::array>>(), py::arg("files"), doc("MappedFiles.__init__"))
      .def("__enter__", &MappedFiles::enter, doc("MappedFiles.__enter__"))
      .def("__exit__", &MappedFiles::exit, doc("MappedFiles.__exit__"));
}
