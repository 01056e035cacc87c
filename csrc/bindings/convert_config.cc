#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "bindings/convert.h"
#include "config/config.h"

namespace py = pybind11;

namespace pb::bindings {
namespace {

[[noreturn]] void refuse(const std::string& field, const std::string& problem) {
  throw Error(ErrorCode::kModelFormat, "config." + field + " is " + problem);
}

template <typename T>
T field(const py::dict& fields, const char* name) {
  if (!fields.contains(name)) refuse(name, "missing");
  const py::object value = fields[name];
  try {
    return value.cast<T>();
  } catch (const py::cast_error&) {
    refuse(name, std::string("of type ") + Py_TYPE(value.ptr())->tp_name +
                     ", or out of the range of its type");
  }
}

template <typename T>
  requires std::is_enum_v<T>
T choice(const py::dict& fields, const char* name) {
  const auto found = field<std::string>(fields, name);
  std::string names;
  for (size_t i = 0; i < kChoices<T>.size(); ++i) {
    const std::string text = kChoices<T>[i];
    if (found == text) return static_cast<T>(i);
    names += (names.empty() ? "'" : " or '") + text + "'";
  }
  refuse(name, "'" + found + "'; it must be " + names);
}

// Sets the scalar fields of `part`.
template <typename Part>
void read_fields(const py::dict& fields, Part& part) {
  Part::visit_fields(part, [&]<typename T>(const ConfigField<T>& row, T& member) {
    if constexpr (std::is_enum_v<T>) {
      member = choice<T>(fields, row.name);
    } else {
      member = field<T>(fields, row.name);
    }
  });
}

// Converts a list of dicts to a vector of parts.
template <typename Part, typename ReadMore>
std::vector<Part> to_parts(const py::dict& fields, const char* name, ReadMore read_more) {
  std::vector<Part> parts;
  for (const auto& item : field<std::vector<py::dict>>(fields, name)) {
    read_fields(item, parts.emplace_back());
    read_more(item, parts.back());
  }
  return parts;
}

// Sets `part` from a dict, or does nothing for None. Returns the flags of the layers that have it.
template <typename Part>
std::vector<bool> read_optional(const py::dict& fields, const char* name, Part& part) {
  const auto value = field<py::object>(fields, name);
  if (value.is_none()) return {};
  if (!py::isinstance<py::dict>(value)) {
    refuse(name,
           std::string("of type ") + Py_TYPE(value.ptr())->tp_name + "; it must be a dict or None");
  }
  const auto items = py::reinterpret_borrow<py::dict>(value);
  read_fields(items, part);
  return field<std::vector<bool>>(items, "in_layer");
}

}  // namespace

ModelConfig to_model_config(const py::dict& fields) {
  ModelConfig c;
  read_fields(fields, c);
  c.ropes = to_parts<RopeConfig>(fields, "ropes", [](const py::dict& item, RopeConfig& rope) {
    rope.inv_freq = field<std::vector<float>>(item, "inv_freq");
    rope.long_inv_freq = field<std::vector<float>>(item, "long_inv_freq");
    rope.axes = field<std::vector<int>>(item, "axes");
  });
  c.layer_ropes = field<std::vector<int>>(fields, "layer_ropes");
  c.sliding_windows = field<std::vector<int>>(fields, "sliding_windows");
  c.layer_shapes = to_parts<LayerShape>(fields, "layer_shapes", [](const auto&, auto&) {});
  c.moe.in_layer = read_optional(fields, "moe", c.moe);
  // A model has at most one kind of recurrent layer.
  c.recurrent_layers = read_optional(fields, "gated_delta_net", c.gated_delta_net);
  const bool has_short_conv = !field<py::object>(fields, "short_conv").is_none();
  if (has_short_conv) {
    c.short_conv.width = c.hidden_size;
    c.recurrent_layers = read_optional(fields, "short_conv", c.short_conv);
  }
  return c;
}

namespace {

ProjectorConfig to_projector(const py::dict& fields) {
  ProjectorConfig p;
  read_fields(fields, p);
  p.linears = to_parts<ProjectorLinear>(fields, "linears", [](const auto&, auto&) {});
  return p;
}

VisionConfig to_vision(const py::dict& fields) {
  VisionConfig v;
  read_fields(fields, v);
  v.layers = to_model_config(field<py::dict>(fields, "layers"));
  v.projector = to_projector(field<py::dict>(fields, "projector"));
  v.deepstack = to_parts<DeepstackConfig>(
      fields, "deepstack", [](const py::dict& item, DeepstackConfig& deepstack) {
        deepstack.projector = to_projector(field<py::dict>(item, "projector"));
      });
  v.windowed_layers = field<std::vector<bool>>(fields, "windowed_layers");
  return v;
}

}  // namespace

std::optional<VisionConfig> to_vision_config(const py::object& fields) {
  if (fields.is_none()) return std::nullopt;
  if (!py::isinstance<py::dict>(fields)) {
    refuse("vision", std::string("of type ") + Py_TYPE(fields.ptr())->tp_name +
                         "; it must be a dict or None");
  }
  try {
    return to_vision(py::reinterpret_borrow<py::dict>(fields));
  } catch (const Error& error) {
    const std::string message = error.what();
    throw Error(error.code(), "config.vision" + message.substr(message.find('.')));
  }
}

}  // namespace pb::bindings
