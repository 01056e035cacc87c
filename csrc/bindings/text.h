// Conversion of native text to Python.
#pragma once

#include <pybind11/pybind11.h>

#include <string_view>

namespace pb::bindings {

// Converts bytes that are not UTF-8 (a quoted `bytes` object, a foreign name) to escapes.
inline pybind11::object to_text(std::string_view bytes) {
  auto text = pybind11::reinterpret_steal<pybind11::object>(PyUnicode_DecodeUTF8(
      bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace"));
  if (!text) throw pybind11::error_already_set();
  return text;
}

}  // namespace pb::bindings
