// The calls of _core.Engine that compute, and helpers for all calls.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/py_engine.h"

namespace pb::bindings {

// The largest whole number that the engine takes for a count or a position.
inline constexpr int64_t kMaxInt = 2147483647;

// Calls f(Engine&) without the GIL, while no other call runs. Releases the GIL before it takes the
// engine's lock, so that a thread that waits for the engine never holds the GIL.
template <typename F>
auto call(PyEngine& self, F&& f) {
  const pybind11::gil_scoped_release release;
  return self.guarded.call(std::forward<F>(f));
}

inline int to_seq_id(const PyEngine& self, pybind11::handle value, const char* field = "seq_id") {
  return static_cast<int>(to_integer(value, field, 0, self.facts.options.n_parallel - 1));
}

inline std::vector<int32_t> to_tokens(const PyEngine& self, pybind11::handle value) {
  return to_ids(value, "tokens", self.facts.vocab_size - 1);
}

// The arguments and results are documented in pybatcher/_core.pyi.
pybind11::list run_step(PyEngine& self, const pybind11::sequence& entries, const TokenMasks* masks,
                        const pybind11::dict& mask_rows);
pybind11::object prefill_chunk(PyEngine& self, const pybind11::object& seq_id,
                               const pybind11::object& tokens, bool logits);
pybind11::object decode_batch(PyEngine& self, const pybind11::object& seq_ids,
                              const pybind11::object& tokens, bool logits);
// Adds the calls of the vision tower.
void bind_tower(pybind11::class_<PyEngine>& engine);

pybind11::array_t<float> embed(PyEngine& self, const pybind11::object& seq_id,
                               const pybind11::object& tokens, const std::string& pooling);

}  // namespace pb::bindings
