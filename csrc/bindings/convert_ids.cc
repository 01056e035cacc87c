#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <limits>
#include <string>

#include "base/error.h"
#include "bindings/convert.h"

namespace py = pybind11;

namespace pb::bindings {
namespace {

[[noreturn]] void refuse(const std::string& field, const std::string& found,
                         const std::string& wanted) {
  throw Error(ErrorCode::kInvalidRequest, field + " is " + found + "; it must be " + wanted);
}

std::string range(int64_t low, int64_t high) {
  return "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
}

// Returns the value as an int object, or null if it is not an integer.
py::object as_int(py::handle value) {
  if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr())) return {};
  PyObject* index = PyNumber_Index(value.ptr());
  if (index == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(index);
}

// Converts one list item without allocation. Sets `failed` if it is not a 64-bit integer.
int64_t item_value(PyObject* item, bool* failed) {
  int overflow = 0;
  if (PyLong_CheckExact(item)) {
    const long long value = PyLong_AsLongLongAndOverflow(item, &overflow);
    *failed = overflow != 0;
    return value;
  }
  const py::object index = as_int(item);
  if (!index) {
    *failed = true;
    return 0;
  }
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  *failed = overflow != 0;
  return value;
}

std::string item_name(const std::string& field, size_t i) {
  return field + "[" + std::to_string(i) + "]";
}

std::vector<int32_t> from_array(const py::array& array, const std::string& field, int32_t high) {
  const char kind = array.dtype().kind();
  if (array.ndim() != 1 || (kind != 'i' && kind != 'u')) {
    refuse(field,
           "an array of " + std::to_string(array.ndim()) + " dimensions and type " +
               py::str(array.dtype()).cast<std::string>(),
           "one-dimensional, of an integer type");
  }
  const bool wide = kind == 'u' && array.itemsize() == 8;
  std::vector<int32_t> ids(static_cast<size_t>(array.size()));
  const auto check = [&](size_t i, bool fits, const std::string& found) {
    if (!fits) refuse(item_name(field, i), found, range(0, high));
  };
  if (wide) {
    const auto values = py::array_t<uint64_t, py::array::c_style | py::array::forcecast>(array);
    for (size_t i = 0; i < ids.size(); ++i) {
      const uint64_t value = values.data()[i];
      check(i, value <= static_cast<uint64_t>(high), std::to_string(value));
      ids[i] = static_cast<int32_t>(value);
    }
    return ids;
  }
  const auto values = py::array_t<int64_t, py::array::c_style | py::array::forcecast>(array);
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t value = values.data()[i];
    check(i, value >= 0 && value <= high, std::to_string(value));
    ids[i] = static_cast<int32_t>(value);
  }
  return ids;
}

}  // namespace

void check_common(const std::string& name_space, bool common) {
  if (common && !name_space.empty()) {
    refuse("namespace", "'" + name_space + "' with common=True", "''");
  }
}

std::string shown(py::handle value) {
  constexpr size_t kMost = 80;
  if (PyLong_Check(value.ptr()) && !PyBool_Check(value.ptr())) {
    int overflow = 0;
    const long long small = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow == 0) return std::to_string(small);
    return overflow > 0 ? "a number above 2**63" : "a number below -2**63";
  }
  std::string type = Py_TYPE(value.ptr())->tp_name;
  if (!PyFloat_CheckExact(value.ptr()) && !PyBool_Check(value.ptr()) &&
      !PyUnicode_CheckExact(value.ptr())) {
    return "a " + type;
  }
  std::string text = py::repr(value).cast<std::string>();
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

int64_t to_integer(py::handle value, const std::string& field, int64_t low, int64_t high) {
  bool failed = false;
  const int64_t number = item_value(value.ptr(), &failed);
  if (failed || number < low || number > high) refuse(field, shown(value), range(low, high));
  return number;
}

uint64_t to_seed(py::handle value) {
  const py::object index = as_int(value);
  if (index) {
    const unsigned long long seed = PyLong_AsUnsignedLongLong(index.ptr());
    if (PyErr_Occurred() == nullptr) return seed;
    PyErr_Clear();
  }
  refuse("seed", shown(value), "a whole number from 0 to 2**64 - 1");
}

std::vector<int32_t> to_ids(py::handle value, const std::string& field, int32_t high) {
  std::vector<int32_t> ids;
  append_ids(value, field, high, ids);
  return ids;
}

void append_ids(py::handle value, const std::string& field, int32_t high,
                std::vector<int32_t>& ids) {
  if (py::isinstance<py::array>(value)) {
    const auto more = from_array(py::reinterpret_borrow<py::array>(value), field, high);
    ids.insert(ids.end(), more.begin(), more.end());
    return;
  }
  if (PySequence_Check(value.ptr()) == 0 || PyUnicode_Check(value.ptr()) ||
      PyBytes_Check(value.ptr())) {
    refuse(field, shown(value), "a one-dimensional integer array or a sequence of whole numbers");
  }
  // The sequence is copied unless it is a tuple, because converting an item may run Python code
  // (__index__) that changes the sequence.
  const auto items = py::reinterpret_steal<py::tuple>(PySequence_Tuple(value.ptr()));
  if (!items) throw py::error_already_set();
  const size_t n = items.size();
  for (size_t i = 0; i < n; ++i) {
    PyObject* item = PyTuple_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i));
    bool failed = false;
    const int64_t number = item_value(item, &failed);
    if (failed || number < 0 || number > high) {
      refuse(item_name(field, i), shown(item), range(0, high));
    }
    ids.push_back(static_cast<int32_t>(number));
  }
}

}  // namespace pb::bindings
