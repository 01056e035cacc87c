#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/convert.h"
#include "kv/kv_cache.h"

namespace py = pybind11;

namespace pb::bindings {
namespace {

constexpr const char* kClassDoc =
    R"(Who holds which KV page: sequences, reference counts and the prefix index.

The bookkeeping of the engine alone, without keys and values, for tests and for
those who keep their own. Not thread-safe.

Args:
    n_pages: pages in the pool.
    block_size: tokens a page holds.
    n_parallel: most sequences at once.
    max_length: most tokens of one sequence.
    copy_page: called as copy_page(from, to) where a partial page must become two. What it
        raises fails the call that needed the copy. It may not change the cache.
    hash_mask: and-ed to every hash of the prefix index; tests make collisions with it.

Raises:
    ConfigError: a size is below 1.)";

constexpr const char* kReserveDoc =
    R"(Makes pages exist for `tokens` after the sequence's end; its length does not change.

A last page that is shared or in the index is copied first.

Raises:
    InvalidRequestError: no tokens, or no such sequence.
    RequestTooLongError: over max_length.
    KvCacheFullError: not enough pages are free or cached.
    EngineError: the sequence has a reservation already.
    Nothing has changed then, but for cached pages evicted before copy_page raised.)";

std::vector<int32_t> to_tokens(py::handle value) {
  return to_ids(value, "tokens", std::numeric_limits<int32_t>::max());
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
  py::class_<KvCache>(module, "KvCache", kClassDoc)
      .def(py::init<int, int, int, int, KvCache::CopyPage, uint64_t>(), py::kw_only(),
           py::arg("n_pages"), py::arg("block_size"), py::arg("n_parallel"), py::arg("max_length"),
           py::arg("copy_page"), py::arg("hash_mask") = ~uint64_t{0})
      .def(
          "seq_new",
          [](KvCache& self, const std::string& name_space) { return self.seq_new(name_space); },
          py::arg("namespace") = "",
          "The lowest free id. Raises NoFreeSequenceError when n_parallel are in use.")
      .def("seq_copy", &KvCache::seq_copy, py::arg("src"), py::arg("dst"), py::arg("n_tokens"),
           "The empty sequence dst starts with src's first n_tokens: full pages shared, a partial "
           "last one copied.")
      .def("seq_remove", &KvCache::seq_remove, py::arg("seq_id"), py::arg("start") = 0,
           py::arg("end") = -1,
           "Drops the tail [start, end) of a sequence; all of it frees the id.")
      .def("seq_length", &KvCache::seq_length, py::arg("seq_id"),
           "Tokens of a sequence, the reserved ones not included.")
      .def("seq_exclusive_pages", &KvCache::seq_exclusive_pages, py::arg("seq_id"),
           "Pages that this sequence alone holds: so many more are free or cached once it is "
           "removed.")
      .def(
          "seq_match",
          [](KvCache& self, int seq_id, py::handle tokens) {
            return self.seq_match(seq_id, to_tokens(tokens));
          },
          py::arg("seq_id"), py::arg("tokens"),
          "Attaches the longest cached prefix of tokens to an empty sequence: whole pages, at most "
          "len(tokens) - 1 tokens. Returns how many.")
      .def(
          "reserve",
          [](KvCache& self, int seq_id, py::handle tokens) {
            self.reserve(seq_id, to_tokens(tokens));
          },
          py::arg("seq_id"), py::arg("tokens"), kReserveDoc)
      .def(
          "commit",
          [](KvCache& self, int seq_id, std::optional<int> n_tokens) {
            n_tokens ? self.commit(seq_id, *n_tokens) : self.commit(seq_id);
          },
          py::arg("seq_id"), py::arg("n_tokens") = py::none(),
          "Makes the reserved tokens part of the sequence, or the first n_tokens of them and gives "
          "the rest up; pages they fill enter the index.")
      .def("rollback", &KvCache::rollback, py::arg("seq_id"),
           "Gives the reserved tokens up. Does nothing where there are none.")
      .def(
          "pages", [](const KvCache& self, int seq_id) { return to_vector(self.pages(seq_id)); },
          py::arg("seq_id"),
          "The pages of a sequence, reserved ones included: position p is in pages[p // "
          "block_size].")
      .def(
          "tokens", [](const KvCache& self, int seq_id) { return to_vector(self.tokens(seq_id)); },
          py::arg("seq_id"), "The tokens of a sequence, the reserved ones not included.")
      .def("seq_exists", &KvCache::seq_exists, py::arg("seq_id"), "Whether the id is in use.")
      .def("drop_cached", &KvCache::drop_cached, "Forgets every cached (unreferenced) page.")
      .def("check_integrity", &KvCache::check_integrity,
           "Recounts everything. Raises EngineError naming the first thing that is off.")
      .def_property_readonly("block_size", &KvCache::block_size)
      .def_property_readonly("n_parallel", &KvCache::n_parallel)
      .def_property_readonly("max_length", &KvCache::max_length)
      .def_property_readonly("total_pages", &KvCache::total_pages)
      .def_property_readonly("free_pages", &KvCache::free_pages)
      .def_property_readonly("cached_pages", &KvCache::cached_pages)
      .def_property_readonly("used_sequences", &KvCache::used_sequences);
}
