#include <pybind11/pybind11.h>

#include <cstdint>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/convert.h"
#include "core_docs.h"
#include "sampling/sample.h"
#include "sampling/token_masks.h"

namespace py = pybind11;

namespace pb::bindings {
namespace {

constexpr int64_t kMostRows = 1 << 20;
constexpr int64_t kMostVocab = 1 << 24;

}  // namespace
}  // namespace pb::bindings

void bind_masks(py::module_& module) {
  using pb::TokenMasks;
  using namespace pb::bindings;
  py::options options;
  options.disable_function_signatures();  // _core.pyi has the signatures
  module.attr("ALL_FORBIDDEN") = pb::kAllForbidden;
  py::class_<TokenMasks>(module, "TokenMasks", doc("TokenMasks"))
      .def(py::init([](const py::object& n_rows, const py::object& vocab_size) {
             return new TokenMasks(
                 static_cast<int>(to_integer(n_rows, "n_rows", 1, kMostRows)),
                 static_cast<int>(to_integer(vocab_size, "vocab_size", 1, kMostVocab)));
           }),
           py::arg("n_rows"), py::arg("vocab_size"), doc("TokenMasks.__init__"))
      .def_property_readonly("n_rows", &TokenMasks::n_rows, doc("TokenMasks.n_rows"))
      .def_property_readonly("row_bytes", &TokenMasks::row_bytes, doc("TokenMasks.row_bytes"))
      .def_property_readonly(
          "address", [](TokenMasks& self) { return reinterpret_cast<uintptr_t>(self.data()); },
          doc("TokenMasks.address"))
      .def("close", &TokenMasks::close, doc("TokenMasks.close"))
      .def("open", &TokenMasks::open, doc("TokenMasks.open"));
}
