#include <pybind11/critical_section.h>
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/convert.h"
#include "kv/kv_cache.h"

namespace py = pybind11;

namespace pb::bindings {
namespace {

constexpr const char* kClassDoc =
    R"(Track which sequence holds which KV block: reference counts and the prefix index.

The bookkeeping of the engine alone, without keys and values, for tests and for
simulations. Not thread-safe. Every call that takes a seq_id raises
InvalidRequestError where no sequence has it.

Args:
    n_blocks: blocks in the pool.
    block_size: tokens a block holds.
    n_parallel: most sequences at once.
    max_length: most tokens of one sequence.
    copy_block: called as copy_block(group, from, to) to copy a shared, partly filled block before
        it is written to. What it raises, the call that needed the copy raises. It may not change
        the cache.
    windows: of the groups of layers after the first: (window, blocks in its pool) each.
    hash_mask: and-ed to every hash of the prefix index, so that tests can make collisions.

Raises:
    ConfigError: a size is below 1.)";

constexpr const char* kReserveDoc =
    R"(Take blocks for `tokens` after the sequence's end; its length does not change.

A last partial block that is shared or in the index is copied first. If the call raises,
nothing has changed, except that cached blocks may have been evicted.

Raises:
    InvalidRequestError: no tokens, or no such sequence.
    RequestTooLongError: over max_length.
    KvCacheFullError: not enough blocks are free or cached.
    EngineError: the sequence has a reservation already.)";

// One call of any KvCache at a time, where no GIL sees to that. A copy_block that waits lets others
// in, as under the GIL.
class OneCall {
 private:
  py::scoped_critical_section section_{py::type::handle_of<KvCache>()};
};

std::vector<int32_t> to_tokens(py::handle value) {
  return to_ids(value, "tokens", std::numeric_limits<int32_t>::max());
}

int to_group(const KvCache& cache, int group) {
  if (group >= 0 && group < cache.n_groups()) return group;
  throw Error(ErrorCode::kInvalidRequest, "group is " + std::to_string(group) + "; there are " +
                                              std::to_string(cache.n_groups()));
}

// A property's function, which call_guard does not reach.
template <typename Get>
auto count(Get get) {
  return [get](const KvCache& self) {
    const OneCall alone;
    return get(self);
  };
}

template <typename T>
std::vector<T> to_vector(std::span<const T> values) {
  return {values.begin(), values.end()};
}

}  // namespace
}  // namespace pb::bindings

void bind_kv(py::module_& module) {
  using pb::KvCache;
  using namespace pb::bindings;
  const py::call_guard<OneCall> one_call;
  py::class_<KvCache>(module, "KvCache", kClassDoc)
      .def(py::init([](int n_blocks, int block_size, int n_parallel, int max_length,
                       KvCache::CopyBlock copy_block, uint64_t hash_mask,
                       const std::vector<std::pair<int, int>>& windows) {
             std::vector<pb::LayerGroup> groups = {{.window = 0, .n_blocks = n_blocks}};
             for (const auto& [window, n] : windows) {
               groups.push_back({.window = window, .n_blocks = n});
             }
             return std::make_unique<KvCache>(groups, block_size, n_parallel, max_length,
                                              std::move(copy_block), hash_mask);
           }),
           py::kw_only(), py::arg("n_blocks"), py::arg("block_size"), py::arg("n_parallel"),
           py::arg("max_length"), py::arg("copy_block"), py::arg("hash_mask") = ~uint64_t{0},
           py::arg("windows") = std::vector<std::pair<int, int>>())
      .def(
          "seq_new",
          [](KvCache& self, const std::string& name_space) { return self.seq_new(name_space); },
          one_call, py::arg("namespace") = "",
          "Take and return the lowest free id. Raises NoFreeSequenceError when n_parallel are in "
          "use.")
      .def("seq_copy", &KvCache::seq_copy, one_call, py::arg("src"), py::arg("dst"),
           py::arg("n_tokens"),
           "Make the empty sequence dst start with src's first n_tokens: full blocks are shared, a "
           "partial last one is copied. Raises KvCacheFullError without a block for the copy.")
      .def("seq_copyable", &KvCache::seq_copyable, one_call, py::arg("src"), py::arg("n_tokens"),
           "Return how many of src's first n_tokens another sequence can be made to start with: "
           "all, "
           "or whole blocks.")
      .def("seq_remove", &KvCache::seq_remove, one_call, py::arg("seq_id"), py::arg("start") = 0,
           py::arg("end") = -1,
           "Drop positions [start, end) of a sequence; end is its length, or -1 for that. With "
           "start "
           "= 0 the id is free.")
      .def("seq_length", &KvCache::seq_length, one_call, py::arg("seq_id"),
           "Return the number of tokens of a sequence, the reserved ones not included.")
      .def(
          "seq_exclusive_blocks", &KvCache::seq_exclusive_blocks, one_call, py::arg("seq_id"),
          "Return the number of blocks that this sequence alone holds: removing it makes them free "
          "or cached.")
      .def(
          "seq_match",
          [](KvCache& self, int seq_id, py::handle tokens) {
            return self.seq_match(seq_id, to_tokens(tokens));
          },
          one_call, py::arg("seq_id"), py::arg("tokens"),
          "Attach the longest cached prefix of tokens to an empty sequence: whole blocks, at most "
          "len(tokens) - 1 tokens. Return the number of tokens attached.")
      .def(
          "reserve",
          [](KvCache& self, int seq_id, py::handle tokens) {
            self.reserve(seq_id, to_tokens(tokens));
          },
          one_call, py::arg("seq_id"), py::arg("tokens"), kReserveDoc)
      .def(
          "commit",
          [](KvCache& self, int seq_id, std::optional<int> n_tokens) {
            n_tokens ? self.commit(seq_id, *n_tokens) : self.commit(seq_id);
          },
          one_call, py::arg("seq_id"), py::arg("n_tokens") = py::none(),
          "Make the reserved tokens part of the sequence, or the first n_tokens of them, and give "
          "up "
          "the rest; blocks they fill enter the index. Raises EngineError where fewer are "
          "reserved.")
      .def("rollback", &KvCache::rollback, one_call, py::arg("seq_id"),
           "Give up the reserved tokens. Does nothing where there are none.")
      .def(
          "block_table",
          [](const KvCache& self, int seq_id, int group) {
            return to_vector(self.block_table(seq_id, to_group(self, group)));
          },
          one_call, py::arg("seq_id"), py::arg("group") = 0,
          "Return the numbers of a sequence's blocks of a group, reserved ones included: position "
          "p "
          "is in block block_table(seq_id)[p // block_size]; 0 for blocks that were given back.")
      .def(
          "tokens", [](const KvCache& self, int seq_id) { return to_vector(self.tokens(seq_id)); },
          one_call, py::arg("seq_id"),
          "Return the tokens of a sequence, the reserved ones not included.")
      .def("seq_exists", &KvCache::seq_exists, one_call, py::arg("seq_id"),
           "Return whether the id is in use.")
      .def("drop_cached", &KvCache::drop_cached, one_call, "Make every cached block free.")
      .def("check_integrity", &KvCache::check_integrity, one_call,
           "Recount everything. Raises EngineError naming the first inconsistency.")
      .def_property_readonly("block_size", &KvCache::block_size)
      .def_property_readonly("n_parallel", &KvCache::n_parallel)
      .def_property_readonly("max_length", &KvCache::max_length)
      .def_property_readonly("total_blocks",
                             count([](const KvCache& self) { return self.total_blocks(); }))
      .def_property_readonly("free_blocks",
                             count([](const KvCache& self) { return self.free_blocks(); }))
      .def_property_readonly("cached_blocks",
                             count([](const KvCache& self) { return self.cached_blocks(); }))
      .def_property_readonly("appendable_blocks",
                             count([](const KvCache& self) { return self.appendable_blocks(); }))
      .def_property_readonly("used_sequences",
                             count([](const KvCache& self) { return self.used_sequences(); }));
}
