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
#include "core_docs.h"
#include "kv/kv_cache.h"

namespace py = pybind11;

namespace pb::bindings {
namespace {

// A lock that lets only one call of any KvCache run at a time on a Python without the GIL. A
// copy_block that waits lets other calls run, as it does under the GIL.
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

// Wraps the function of a property, because pybind11 ignores call_guard for properties.
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
  py::options options;
  options.disable_function_signatures();  // _core.pyi has the signatures
  const py::call_guard<OneCall> one_call;
  py::class_<KvCache>(module, "KvCache", doc("KvCache"))
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
           py::arg("windows") = std::vector<std::pair<int, int>>(), doc("KvCache.__init__"))
      .def(
          "seq_new",
          [](KvCache& self, const std::string& name_space, bool common) {
            check_common(name_space, common);
            return common ? self.seq_new_common() : self.seq_new(name_space);
          },
          one_call, py::arg("namespace") = "", py::kw_only(), py::arg("common") = false,
          doc("KvCache.seq_new"))
      .def("seq_copy", &KvCache::seq_copy, one_call, py::arg("src"), py::arg("dst"),
           py::arg("n_tokens"), doc("KvCache.seq_copy"))
      .def("seq_copyable", &KvCache::seq_copyable, one_call, py::arg("src"), py::arg("n_tokens"),
           doc("KvCache.seq_copyable"))
      .def("seq_remove", &KvCache::seq_remove, one_call, py::arg("seq_id"), py::arg("start") = 0,
           py::arg("end") = -1, doc("KvCache.seq_remove"))
      .def("seq_length", &KvCache::seq_length, one_call, py::arg("seq_id"),
           doc("KvCache.seq_length"))
      .def("seq_exclusive_blocks", &KvCache::seq_exclusive_blocks, one_call, py::arg("seq_id"),
           doc("KvCache.seq_exclusive_blocks"))
      .def(
          "seq_match",
          [](KvCache& self, int seq_id, py::handle tokens) {
            return self.seq_match(seq_id, to_tokens(tokens));
          },
          one_call, py::arg("seq_id"), py::arg("tokens"), doc("KvCache.seq_match"))
      .def(
          "reserve",
          [](KvCache& self, int seq_id, py::handle tokens) {
            self.reserve(seq_id, to_tokens(tokens));
          },
          one_call, py::arg("seq_id"), py::arg("tokens"), doc("KvCache.reserve"))
      .def(
          "commit",
          [](KvCache& self, int seq_id, std::optional<int> n_tokens) {
            n_tokens ? self.commit(seq_id, *n_tokens) : self.commit(seq_id);
          },
          one_call, py::arg("seq_id"), py::arg("n_tokens") = py::none(), doc("KvCache.commit"))
      .def("rollback", &KvCache::rollback, one_call, py::arg("seq_id"), doc("KvCache.rollback"))
      .def(
          "block_table",
          [](const KvCache& self, int seq_id, int group) {
            return to_vector(self.block_table(seq_id, to_group(self, group)));
          },
          one_call, py::arg("seq_id"), py::arg("group") = 0, doc("KvCache.block_table"))
      .def(
          "tokens", [](const KvCache& self, int seq_id) { return to_vector(self.tokens(seq_id)); },
          one_call, py::arg("seq_id"), doc("KvCache.tokens"))
      .def("seq_exists", &KvCache::seq_exists, one_call, py::arg("seq_id"),
           doc("KvCache.seq_exists"))
      .def("drop_cached", &KvCache::drop_cached, one_call, doc("KvCache.drop_cached"))
      .def("check_integrity", &KvCache::check_integrity, one_call, doc("KvCache.check_integrity"))
      .def_property_readonly("block_size", &KvCache::block_size, doc("KvCache.block_size"))
      .def_property_readonly("n_parallel", &KvCache::n_parallel, doc("KvCache.n_parallel"))
      .def_property_readonly("max_length", &KvCache::max_length, doc("KvCache.max_length"))
      .def_property_readonly("total_blocks",
                             count([](const KvCache& self) { return self.total_blocks(); }),
                             doc("KvCache.total_blocks"))
      .def_property_readonly("free_blocks",
                             count([](const KvCache& self) { return self.free_blocks(); }),
                             doc("KvCache.free_blocks"))
      .def_property_readonly("cached_blocks",
                             count([](const KvCache& self) { return self.cached_blocks(); }),
                             doc("KvCache.cached_blocks"))
      .def_property_readonly("appendable_blocks",
                             count([](const KvCache& self) { return self.appendable_blocks(); }),
                             doc("KvCache.appendable_blocks"))
      .def_property_readonly("used_sequences",
                             count([](const KvCache& self) { return self.used_sequences(); }),
                             doc("KvCache.used_sequences"));
}
