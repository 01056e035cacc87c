#include <pybind11/pybind11.h>

#include <cmath>
#include <string>
#include <type_traits>

#include "bindings/bindings.h"
#include "config/vision_config.h"
#include "core_docs.h"

namespace py = pybind11;

namespace pb::bindings {
namespace {

template <typename T>
const char* type_name() {
  if constexpr (std::is_same_v<T, bool>) return "bool";
  if constexpr (std::is_same_v<T, int>) return "int";
  if constexpr (std::is_same_v<T, float>) return "float";
  return "str";
}

template <typename T>
py::object to_value(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return py::str(kChoices<T>[static_cast<size_t>(value)]);
  } else {
    return py::cast(value);
  }
}

template <typename T>
py::object to_limit(double limit) {
  return std::isinf(limit) ? py::object(py::none()) : py::cast(static_cast<T>(limit));
}

template <typename T>
py::dict to_row(const char* owner, const ConfigField<T>& field) {
  py::dict row;
  row["owner"] = owner;
  row["name"] = field.name;
  row["type"] = type_name<T>();
  row["is_required"] = !field.fallback.has_value();
  row["default"] = field.fallback ? to_value(*field.fallback) : py::none();
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    row["low"] = to_limit<T>(field.range.low);
    row["high"] = to_limit<T>(field.range.high);
  } else {
    row["low"] = py::none();
    row["high"] = py::none();
  }
  row["excludes_low"] = field.range.excludes_low;
  py::tuple choices(kChoices<T>.size());
  for (size_t i = 0; i < choices.size(); ++i) choices[i] = py::str(kChoices<T>[i]);
  row["choices"] = choices;
  row["meaning"] = field.meaning;
  return row;
}

template <typename Part>
void add_rows(py::list& rows, const char* owner) {
  const Part part;
  Part::visit_fields(part,
                     [&](const auto& field, const auto&) { rows.append(to_row(owner, field)); });
}

py::list config_fields() {
  py::list rows;
  add_rows<ModelConfig>(rows, "");
  add_rows<RopeConfig>(rows, "ropes");
  add_rows<LayerShape>(rows, "layer_shapes");
  add_rows<MoeConfig>(rows, "moe");
  add_rows<GatedDeltaNetShape>(rows, "gated_delta_net");
  add_rows<ShortConvShape>(rows, "short_conv");
  add_rows<VisionConfig>(rows, "vision");
  add_rows<ProjectorConfig>(rows, "vision.projector");
  add_rows<ProjectorLinear>(rows, "vision.projector.linears");
  add_rows<DeepstackConfig>(rows, "vision.deepstack");
  return rows;
}

}  // namespace
}  // namespace pb::bindings

void bind_config(py::module_& module) {
  py::options options;
  options.disable_function_signatures();  // _core.pyi has the signatures
  module.def("config_fields", &pb::bindings::config_fields, pb::bindings::doc("config_fields"));
}
