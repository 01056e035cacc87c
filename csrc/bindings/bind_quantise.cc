#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/convert.h"
#include "core_docs.h"
#include "formats/dtype.h"
#include "formats/tensors/quantise_super_block.h"
#include "formats/tensors/quantise_tensor.h"
#include "os/thread_pool.h"

namespace py = pybind11;

namespace pb::bindings {
namespace {

DType super_block_dtype(const std::string& name) {
  for (const DType dtype : kAllDTypes) {
    if (is_quantised_to(dtype) && name == dtype_name(dtype)) return dtype;
  }
  throw Error(ErrorCode::kConfig, "dtype is '" + name + "'; use 'q4_k', 'q5_k' or 'q6_k'");
}

py::array_t<uint8_t> quantise(const std::string& name, const py::tuple& tensor,
                              const std::string& dtype_name, const py::object& n_threads) {
  const DType dtype = super_block_dtype(dtype_name);
  const auto threads = static_cast<int>(to_integer(n_threads, "n_threads", 0, kMostThreads));
  std::vector<py::object> keep_alive;
  py::dict tensors;
  tensors[py::str(name)] = tensor;
  const TensorMap views = to_tensors(tensors, {}, {}, keep_alive);
  const TensorView& view = views.begin()->second;
  if (view.make || view.cols == 1) {
    throw Error(ErrorCode::kModelFormat, "tensor '" + name + "' is no matrix in memory");
  }
  const auto row_bytes =
      static_cast<py::ssize_t>(view.cols / kSuperBlock * static_cast<int64_t>(block_bytes(dtype)));
  py::array_t<uint8_t> out({static_cast<py::ssize_t>(view.rows), row_bytes});
  auto* to = reinterpret_cast<std::byte*>(out.mutable_data());
  const py::gil_scoped_release release;
  ThreadPool pool(threads == 0 ? available_cores() : threads);
  quantise_tensor(view, dtype, pool, to);
  return out;
}

py::dict weight_formats() {
  py::dict formats;
  for (const DType dtype : kAllDTypes) {
    if (!is_quantised(dtype)) continue;
    formats[dtype_name(dtype)] = with_format(dtype, [](auto format) {
      using Format = decltype(format);
      py::dict facts;
      facts["n_elements"] = Format::kElements;
      facts["n_bytes"] = sizeof(typename Format::Block);
      facts["gguf_name"] = Format::kGgufName;
      facts["gguf_type"] = py::none();
      if (Format::kGgufType >= 0) facts["gguf_type"] = Format::kGgufType;
      facts["native_only"] = Format::kNativeOnly;
      facts["in_int8"] = Format::kInt8Holds;
      facts["in_bf16"] = Format::kBf16Holds;
      return facts;
    });
  }
  return formats;
}

}  // namespace
}  // namespace pb::bindings

void bind_quantise(py::module_& module) {
  py::options options;
  options.disable_function_signatures();  // _core.pyi has the signatures
  module.def("quantise", &pb::bindings::quantise, py::arg("name"), py::arg("tensor"),
             py::arg("dtype"), py::arg("n_threads"), pb::bindings::doc("quantise"));
  module.def("weight_formats", &pb::bindings::weight_formats, pb::bindings::doc("weight_formats"));
}
