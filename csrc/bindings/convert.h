// Conversion from Python values to native ones. Values are checked and copied while the GIL is
// held, so that no later change by another thread reaches the engine.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/vision_config.h"
#include "model/weights.h"
#include "sampling/sampling.h"

namespace pb::bindings {

// Returns repr(value), truncated to 80 characters because a hostile value may be of any size. Never
// throws a Python error.
std::string shown(pybind11::handle value);

// Converts an integer, which is an int or any object with __index__ except bool. Throws
// kInvalidRequest with the name `field` if it is not from low to high.
int64_t to_integer(pybind11::handle value, const std::string& field, int64_t low, int64_t high);

// Converts a seed: an unsigned 64-bit number.
uint64_t to_seed(pybind11::handle value);

// Converts ids from 0 to high from a one-dimensional array of any integer type, or from a sequence
// of integers.
std::vector<int32_t> to_ids(pybind11::handle value, const std::string& field, int32_t high);

// Converts ids as to_ids() does, and appends them to `ids`.
void append_ids(pybind11::handle value, const std::string& field, int32_t high,
                std::vector<int32_t>& ids);

// Throws kInvalidRequest for the name space of a sequence that is common to all name spaces.
void check_common(const std::string& name_space, bool common);

// Converts the fields of pybatcher.loading.ModelConfig by name. Throws kModelFormat if a field is
// missing or of the wrong type. ModelConfig::validate() checks the values.
ModelConfig to_model_config(const pybind11::dict& fields);

// Converts the fields of pybatcher.loading.VisionConfig by name, or None. Throws like
// to_model_config(); VisionConfig::validate() checks the values.
std::optional<VisionConfig> to_vision_config(const pybind11::object& fields);

// Makes views of numpy arrays from a dict {name: (array, "f32")}, where "f32" is the element type.
// An entry may also be {name: (function, "f32", rows, columns[, order])}: the function is called
// later, without arguments and with the GIL, and returns the matrix. `order`, int32 (columns), is
// TensorView::order. The views are valid as long as `keep_alive`. `mapped` contains the names of
// tensors in a mapped file, whose pages may be dropped and read again. `native` contains the names
// of matrices with their own element type (TensorView::keeps_dtype).
TensorMap to_tensors(const pybind11::dict& tensors, const pybind11::set& mapped,
                     const pybind11::set& native, std::vector<pybind11::object>& keep_alive);

// Converts the options of loading. `cache` is (directory, name, key) or None. `progress` is None,
// or a function that is called with the GIL and must outlive the result.
LoadOptions to_load_options(const pybind11::object& cache, const pybind11::object& progress);

}  // namespace pb::bindings
