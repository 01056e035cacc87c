#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "bindings/convert.h"
#include "formats/dtype.h"

namespace py = pybind11;

namespace pb::bindings {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::kModelFormat, what); }

DType tensor_dtype(const std::string& name, const std::string& dtype) {
  std::string names;
  for (const DType t : kAllDTypes) {
    if (dtype == dtype_name(t)) return t;
    names += (names.empty() ? "'" : ", '") + std::string(dtype_name(t)) + "'";
  }
  refuse("tensor '" + name + "' has element type '" + dtype + "'; expected one of " + names);
}

// Returns true if the numpy type of `array` is that of `dtype`. numpy has no bf16, so the bits of
// bf16 are uint16.
bool array_fits(const py::array& array, DType dtype) {
  const char kind = array.dtype().kind();
  const auto size = static_cast<size_t>(array.itemsize());
  const bool native = array.dtype().attr("isnative").cast<bool>();
  if (!native || size != dtype_size(dtype)) return false;
  return kind == (dtype == DType::kBF16 ? 'u' : 'f');
}

// Returns the memory between an array's first and last element; empty if a stride is negative.
std::span<const std::byte> extent(const py::array& array) {
  py::ssize_t bytes = array.itemsize();
  for (py::ssize_t d = 0; d < array.ndim(); ++d) {
    if (array.strides(d) < 0 || array.shape(d) == 0) return {};
    bytes += (array.shape(d) - 1) * array.strides(d);
  }
  return {static_cast<const std::byte*>(array.data()), static_cast<size_t>(bytes)};
}

std::string described(const py::array& array) {
  return "an array of " + std::to_string(array.ndim()) + " dimensions and type " +
         py::str(array.dtype()).cast<std::string>();
}

// Fills the view of a quantised tensor. The array has contiguous rows of bytes, each of which
// consists of whole blocks.
void view_blocks(const py::array& array, TensorView& view) {
  const auto block = static_cast<py::ssize_t>(block_bytes(view.dtype));
  if (array.dtype().kind() != 'u' || array.itemsize() != 1 || array.ndim() != 2 ||
      array.strides(1) != 1 || array.shape(1) % block != 0 || array.strides(0) % block != 0) {
    refuse("tensor '" + view.name + "' is " + described(array) + "; expected rows of uint8, " +
           std::to_string(block) + " a block");
  }
  view.rows = array.shape(0);
  view.cols = array.shape(1) / block * block_elements(view.dtype);
  view.row_stride = array.strides(0) / block * block_elements(view.dtype);
}

TensorView view_of(const std::string& name, py::array array, const std::string& dtype,
                   bool is_mapped, std::vector<py::object>& keep_alive) {
  TensorView view;
  view.name = name;
  view.dtype = tensor_dtype(name, dtype);
  if (is_quantised(view.dtype)) {
    view_blocks(array, view);
    if (is_mapped) view.pages = extent(array);
    keep_alive.push_back(array);
    view.data = array.data();
    view.bytes = array.nbytes();
    return view;
  }
  if (!array_fits(array, view.dtype) || array.ndim() < 1 || array.ndim() > 2) {
    refuse("tensor '" + name + "' is " + described(array) +
           "; expected 1 or 2 dimensions and the numpy type of " + dtype_name(view.dtype));
  }
  // A mapped file may have a tensor at an odd address, where reading in place is undefined.
  const auto item = static_cast<py::ssize_t>(dtype_size(view.dtype));
  bool aligned = reinterpret_cast<uintptr_t>(array.data()) % dtype_size(view.dtype) == 0;
  for (py::ssize_t d = 0; d < array.ndim(); ++d) aligned &= array.strides(d) % item == 0;
  if (!aligned) array = array.attr("copy")().cast<py::array>();
  if (is_mapped && aligned) view.pages = extent(array);
  keep_alive.push_back(array);
  view.data = array.data();
  view.bytes = array.nbytes();
  view.rows = array.shape(0);
  view.row_stride = array.strides(0) / item;
  if (array.ndim() == 2) {
    view.cols = array.shape(1);
    view.col_stride = array.strides(1) / item;
  }
  return view;
}

// A tensor that a Python function returned, with the objects that keep it alive.
struct MadeTensor {
  TensorView view;
  std::vector<py::object> keep_alive;

  MadeTensor() = default;
  MadeTensor(const MadeTensor&) = delete;
  MadeTensor& operator=(const MadeTensor&) = delete;
  ~MadeTensor() {
    const py::gil_scoped_acquire acquire;
    keep_alive.clear();
  }
};

std::shared_ptr<const TensorView> made_by(py::handle function, const TensorView& promised,
                                          const std::string& dtype) {
  const py::gil_scoped_acquire acquire;
  auto made = std::make_shared<MadeTensor>();
  const py::object array = function();
  if (!py::isinstance<py::array>(array)) {
    refuse("tensor '" + promised.name + "' was not made as a numpy array");
  }
  made->view = view_of(promised.name, py::reinterpret_borrow<py::array>(array), dtype, false,
                       made->keep_alive);
  if (made->view.rows != promised.rows || made->view.cols != promised.cols) {
    refuse("tensor '" + promised.name + "' was not made in the shape that was promised");
  }
  return {made, &made->view};
}

int64_t promised_size(py::handle value, int64_t low, const std::string& name) {
  try {
    return to_integer(value, name, low, std::numeric_limits<int>::max());
  } catch (const Error&) {
    refuse("tensor '" + name + "' is promised with a size that is no number of rows or columns");
  }
}

// Returns the input that each column multiplies. The values are checked when the weights are
// loaded.
std::shared_ptr<const std::vector<int32_t>> order_of(const std::string& name, py::handle value) {
  if (!py::isinstance<py::array>(value)) {
    refuse("tensor '" + name + "' has an order of its inputs that is no numpy array");
  }
  const auto array = py::reinterpret_borrow<py::array>(value);
  if (!py::dtype::of<int32_t>().equal(array.dtype()) || array.ndim() != 1) {
    refuse("tensor '" + name + "' has an order of its inputs that is " + described(array) +
           "; expected 1 dimension of int32");
  }
  const auto numbers = py::array_t<int32_t, py::array::c_style>::ensure(array);
  return std::make_shared<const std::vector<int32_t>>(numbers.data(),
                                                      numbers.data() + numbers.size());
}

// Converts (function, element type, rows, columns), where the function will return the array. An
// optional fifth item is the order of the columns (TensorView::order). The tensor must not be a
// vector, because the loader reads vectors immediately.
TensorView to_view_of_promise(const std::string& name, const py::tuple& entry,
                              std::vector<py::object>& keep_alive) {
  if (PyCallable_Check(py::object(entry[0]).ptr()) == 0 || !py::isinstance<py::str>(entry[1])) {
    refuse("tensor '" + name + "' must be (function, element type, rows, columns[, order])");
  }
  TensorView view;
  view.name = name;
  view.rows = promised_size(py::object(entry[2]), 1, name);
  view.cols = promised_size(py::object(entry[3]), 2, name);
  const auto dtype = entry[1].cast<std::string>();
  view.dtype = tensor_dtype(name, dtype);
  if (entry.size() == 5) view.order = order_of(name, py::object(entry[4]));
  view.bytes = view.rows * view.cols * (is_quantised(view.dtype) ? 1 : dtype_size(view.dtype));
  keep_alive.push_back(entry);
  // A view is copied without the GIL, so the copy must not change reference counts.
  view.make = [function = py::object(entry[0]).ptr(), promised = view, dtype] {
    return made_by(function, promised, dtype);
  };
  return view;
}

TensorView to_view(const std::string& name, const py::object& entry, bool is_mapped,
                   std::vector<py::object>& keep_alive) {
  const bool is_tuple = py::isinstance<py::tuple>(entry);
  const auto parts = is_tuple ? py::reinterpret_borrow<py::tuple>(entry) : py::tuple();
  if (parts.size() == 4 || parts.size() == 5) return to_view_of_promise(name, parts, keep_alive);
  if (parts.size() != 2) {
    refuse("tensor '" + name + "' must be a pair (array, element type)");
  }
  if (!py::isinstance<py::array>(parts[0]) || !py::isinstance<py::str>(parts[1])) {
    refuse("tensor '" + name + "' must be a pair (numpy array, element type)");
  }
  return view_of(name, py::reinterpret_borrow<py::array>(parts[0]), parts[1].cast<std::string>(),
                 is_mapped, keep_alive);
}

}  // namespace

TensorMap to_tensors(const py::dict& tensors, const py::set& mapped, const py::set& native,
                     std::vector<py::object>& keep_alive) {
  TensorMap map;
  // The dict is copied, because without the GIL another thread may change it at any time.
  const auto copied = py::reinterpret_steal<py::dict>(PyDict_Copy(tensors.ptr()));
  if (!copied) throw py::error_already_set();
  for (const auto& [key, entry] : copied) {
    if (!py::isinstance<py::str>(key)) refuse("a tensor's name is not a text");
    const auto name = key.cast<std::string>();
    TensorView& view = map[name];
    view =
        to_view(name, py::reinterpret_borrow<py::object>(entry), mapped.contains(key), keep_alive);
    view.keeps_dtype = view.cols != 1 && native.contains(key);
  }
  return map;
}

LoadOptions to_load_options(const py::object& cache, const py::object& progress) {
  LoadOptions options;
  if (!cache.is_none()) {
    const auto parts = cache.cast<std::array<std::string, 3>>();
    options.cache = {.directory = parts[0], .name = parts[1], .key = parts[2]};
  }
  if (!progress.is_none()) {
    options.progress = [call = progress.ptr()](int64_t done, int64_t total) {
      const py::gil_scoped_acquire acquire;
      py::reinterpret_borrow<py::object>(call)(done, total);
    };
  }
  return options;
}

}  // namespace pb::bindings
