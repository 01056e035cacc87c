// From Python values to native ones. Everything is checked and copied while the GIL is held, so
// that nothing another thread does later can reach the engine.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/weights.h"
#include "sampling/sampling.h"

namespace pb::bindings {

// repr(value), cut short: a hostile value may be of any size. Never throws a Python error.
std::string shown(pybind11::handle value);

// A whole number (int or anything with __index__, but no bool) from low to high, else
// kInvalidRequest that names `field`.
int64_t to_integer(pybind11::handle value, const std::string& field, int64_t low, int64_t high);

// A seed: a whole number of 64 bits without sign.
uint64_t to_seed(pybind11::handle value);

// Ids from 0 to high: a one-dimensional array of any integer type, or a sequence of whole numbers.
std::vector<int32_t> to_ids(pybind11::handle value, const std::string& field, int32_t high);

// Appends them to `ids`.
void append_ids(pybind11::handle value, const std::string& field, int32_t high,
                std::vector<int32_t>& ids);

// The fields of pybatcher.loading.ModelConfig by name. Throws kModelFormat for one that is missing
// or of the wrong type; their values are ModelConfig::validate()'s business.
ModelConfig to_model_config(const pybind11::dict& fields);

// Views of numpy arrays, each with the name of its element type: {name: (array, "f32")}. Or of
// matrices yet to be made: {name: (function, "f32", rows, columns)}, where the function, called
// without arguments and with the GIL, returns the array; with an order, int32 (columns), behind
// that if the columns lie in it (TensorView::order). A view is valid as long as `keep_alive`.
// mapped: names of those that lie in a mapped file, which may be dropped from memory and read
// again. kept: names of matrices that keep their element type (TensorView::keeps_dtype).
TensorMap to_tensors(const pybind11::dict& tensors, const pybind11::set& mapped,
                     const pybind11::set& kept, std::vector<pybind11::object>& keep_alive);

// How to load. cache: (directory, name, key), or None for none. progress: None, or what to call,
// which is done with the GIL; it must outlive the result.
LoadOptions to_load_options(const pybind11::object& cache, const pybind11::object& progress);

}  // namespace pb::bindings
