#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/convert.h"
#include "bindings/engine_calls.h"
#include "bindings/py_engine.h"
#include "core_docs.h"

namespace py = pybind11;

namespace pb::bindings {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidRequest, message);
}

// The tiles of a call, converted from Python, and the arrays that they view.
class TilesCall {
 public:
  explicit TilesCall(const py::object& tiles) {
    if (!PyList_Check(tiles.ptr()) && !PyTuple_Check(tiles.ptr())) {
      refuse("tiles is " + shown(tiles) + "; it must be a list or a tuple");
    }
    // A copy: converting a tile may run Python code that changes the list. It does not call methods
    // of a subclass, whose iterators may not end.
    const auto copied = PyList_Check(tiles.ptr())
                            ? py::reinterpret_steal<py::tuple>(PyList_AsTuple(tiles.ptr()))
                            : py::reinterpret_borrow<py::tuple>(tiles);
    if (!copied) throw py::error_already_set();
    for (size_t i = 0; i < copied.size(); ++i) {
      try {
        add(py::reinterpret_borrow<py::object>(
            PyTuple_GET_ITEM(copied.ptr(), static_cast<Py_ssize_t>(i))));
      } catch (const Error& error) {
        throw Error(error.code(), "tiles[" + std::to_string(i) + "]: " + error.what());
      }
    }
  }

  std::span<const TowerTile> tiles() const { return tiles_; }

 private:
  void add(const py::object& value) {
    if (!PyTuple_Check(value.ptr()) || PyTuple_GET_SIZE(value.ptr()) != 5) {
      refuse("is " + shown(value) +
             "; it must be a tuple: (patches, coordinates, table_index, table_weight, windows)");
    }
    const auto part = [&](Py_ssize_t i) {
      return py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(value.ptr(), i));
    };
    TowerTile tile;
    py::ssize_t n_rows = -1, n_columns = 0, n_weights = 0;
    tile.patches = numbers<float>(part(0), "patches", n_rows, n_columns);
    tile.n_rows = static_cast<int>(std::min<py::ssize_t>(n_rows, kMaxInt));
    tile.coordinates = numbers<int32_t>(part(1), "coordinates", n_rows, n_columns);
    if (n_columns != 2) refuse_columns("coordinates", n_columns, 2);
    tile.table_index = numbers<int32_t>(part(2), "table_index", n_rows, n_columns);
    tile.table_weight = numbers<float>(part(3), "table_weight", n_rows, n_weights);
    if (n_weights != n_columns) refuse_columns("table_weight", n_weights, n_columns);
    tile.n_taps = static_cast<int>(std::min<py::ssize_t>(n_columns, kMaxInt));
    tile.windows = lengths(part(4));
    tiles_.push_back(tile);
  }

  [[noreturn]] static void refuse_columns(const char* field, py::ssize_t n, py::ssize_t wanted) {
    refuse(std::string(field) + " has " + std::to_string(n) + " columns; it must have " +
           std::to_string(wanted));
  }

  template <typename T>
  py::array_t<T, py::array::c_style> array_of(const py::object& value, const char* field,
                                              int n_dimensions) {
    const char* const type = std::is_same_v<T, float> ? "float32" : "int32";
    const std::string wanted = "; it must be a numpy array of " + std::string(type) + " and " +
                               std::to_string(n_dimensions) + " dimensions";
    if (!py::isinstance<py::array>(value)) refuse(field + (" is " + shown(value)) + wanted);
    const auto array = py::reinterpret_borrow<py::array>(value);
    if (!py::dtype::of<T>().equal(array.dtype()) || array.ndim() != n_dimensions) {
      refuse(field + (" is an array of " + py::str(array.dtype()).cast<std::string>()) + " and " +
             std::to_string(array.ndim()) + " dimensions" + wanted);
    }
    auto made = py::array_t<T, py::array::c_style>::ensure(array);
    if (!made) throw py::error_already_set();
    arrays_.push_back(made);
    return made;
  }

  // Sets n_rows if it is negative, and checks it otherwise.
  template <typename T>
  std::span<const T> numbers(const py::object& value, const char* field, py::ssize_t& n_rows,
                             py::ssize_t& n_columns) {
    const auto array = array_of<T>(value, field, 2);
    if (n_rows < 0) n_rows = array.shape(0);
    if (array.shape(0) != n_rows) {
      refuse(std::string(field) + " has " + std::to_string(array.shape(0)) +
             " rows; it must have one for each of the " + std::to_string(n_rows) + " patches");
    }
    n_columns = array.shape(1);
    return {array.data(), static_cast<size_t>(array.size())};
  }

  std::span<const int32_t> lengths(const py::object& value) {
    const auto array = array_of<int32_t>(value, "windows", 1);
    return {array.data(), static_cast<size_t>(array.size())};
  }

  std::vector<TowerTile> tiles_;
  std::vector<py::array> arrays_;
};

void begin(PyEngine& self, const py::object& tiles) {
  const TilesCall converted(tiles);
  call(self, [&](Engine& e) { e.tower().begin(converted.tiles()); });
}

bool run(PyEngine& self, const py::object& n_row_layers) {
  const int64_t n = to_integer(n_row_layers, "n_row_layers", 1, int64_t{1} << 53);
  return call(self, [&](Engine& e) { return e.tower().run(n); });
}

py::list take(PyEngine& self) {
  // Copied under the engine's lock: the next begin() overwrites the rows.
  struct Taken {
    std::vector<float> values;
    const char* failure;
  };
  const std::vector<Taken> taken = call(self, [](Engine& e) {
    std::vector<Taken> all;
    for (const TowerRows& rows : e.tower().take()) {
      all.push_back({{rows.values.begin(), rows.values.end()}, rows.failure});
    }
    return all;
  });
  const py::ssize_t width = self.facts.image_columns;
  py::list results;
  for (const Taken& rows : taken) {
    if (rows.failure != nullptr) {
      results.append(py::str(rows.failure));
      continue;
    }
    py::array_t<float> array({static_cast<py::ssize_t>(rows.values.size()) / width, width});
    std::ranges::copy(rows.values, array.mutable_data());
    results.append(array);
  }
  return results;
}

void drop(PyEngine& self) {
  call(self, [](Engine& e) { e.tower().drop(); });
}

}  // namespace

void bind_tower(py::class_<PyEngine>& engine) {
  engine
      .def_property_readonly(
          "takes_images", [](const PyEngine& e) { return e.facts.tower_rows > 0; },
          doc("Engine.takes_images"))
      .def_property_readonly(
          "tower_rows", [](const PyEngine& e) { return e.facts.tower_rows; },
          doc("Engine.tower_rows"))
      .def_property_readonly(
          "tower_layers", [](const PyEngine& e) { return e.facts.tower_layers; },
          doc("Engine.tower_layers"))
      .def_property_readonly(
          "tower_row_cost", [](const PyEngine& e) { return e.facts.tower_row_cost; },
          doc("Engine.tower_row_cost"))
      .def("tower_begin", &begin, py::arg("tiles"), doc("Engine.tower_begin"))
      .def("tower_run", &run, py::arg("n_row_layers"), doc("Engine.tower_run"))
      .def("tower_take", &take, doc("Engine.tower_take"))
      .def("tower_drop", &drop, doc("Engine.tower_drop"));
}

}  // namespace pb::bindings
