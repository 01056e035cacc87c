#include <pybind11/pybind11.h>

#include <cstdint>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/convert.h"
#include "sampling/draw.h"
#include "sampling/token_masks.h"

namespace py = pybind11;

namespace pb::bindings {
namespace {

constexpr int64_t kMostRows = 1 << 20;
constexpr int64_t kMostVocab = 1 << 24;

constexpr const char* kClassDoc =
    R"(Memory for masks that say which tokens a step may draw, and a gate that the step waits for.

A mask has a bit for each token id: bit t % 32 of word t / 32, uint32. Between `close` and `open`
other threads may write to it; while it is open, nobody may.

Args:
    n_rows: masks, at least 1.
    vocab_size: token ids of the model.

Raises:
    InvalidRequestError: a size is out of range.)";

}  // namespace
}  // namespace pb::bindings

void bind_masks(py::module_& module) {
  using pb::TokenMasks;
  using namespace pb::bindings;
  py::options options;
  options.disable_function_signatures();  // they are in _core.pyi
  module.attr("ALL_FORBIDDEN") = pb::kAllForbidden;
  py::class_<TokenMasks>(module, "TokenMasks", kClassDoc)
      .def(py::init([](const py::object& n_rows, const py::object& vocab_size) {
             return new TokenMasks(
                 static_cast<int>(to_integer(n_rows, "n_rows", 1, kMostRows)),
                 static_cast<int>(to_integer(vocab_size, "vocab_size", 1, kMostVocab)));
           }),
           py::arg("n_rows"), py::arg("vocab_size"))
      .def_property_readonly("n_rows", &TokenMasks::n_rows, "Number of masks.")
      .def_property_readonly("row_bytes", &TokenMasks::row_bytes, "Bytes of a mask.")
      .def_property_readonly(
          "address", [](TokenMasks& self) { return reinterpret_cast<uintptr_t>(self.data()); },
          "The address of the first mask. Valid as long as the object is.")
      .def("close", &TokenMasks::close, "Let others write to it; a step waits from now on.")
      .def("open", &TokenMasks::open, "Let the step that waits go on, on any thread.");
}
