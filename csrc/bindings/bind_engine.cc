#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/convert.h"
#include "bindings/engine_calls.h"
#include "bindings/py_engine.h"
#include "core_docs.h"
#include "engine/memory_need.h"
#include "os/memory.h"

namespace py = pybind11;

namespace pb::bindings {
namespace {

// Accepts every dtype name; EngineOptions::validate() checks which of them the field allows.
DType to_dtype(const std::string& field, const std::string& name) {
  for (const DType t : kAllDTypes) {
    if (name == dtype_name(t)) return t;
  }
  throw Error(ErrorCode::kConfig, field + " is '" + name + "', which is no element type");
}

int to_option(py::handle value, const char* field, int low) {
  try {
    return static_cast<int>(to_integer(value, field, low, kMaxInt));
  } catch (const Error& error) {
    throw Error(ErrorCode::kConfig, error.what());
  }
}

int to_context(const py::object& n_ctx) {
  const bool is_auto = py::isinstance<py::str>(n_ctx) && n_ctx.equal(py::str("auto"));
  return is_auto ? kAutoContext : to_option(n_ctx, "n_ctx", 1);
}

EngineOptions to_options(const std::string& dtype, const std::string& kv_dtype,
                         const py::object& n_ctx, const py::object& n_parallel,
                         const py::object& n_ubatch, const py::object& block_size) {
  return {.dtype = to_dtype("dtype", dtype),
          .kv_dtype = to_dtype("kv_dtype", kv_dtype),
          .n_ctx = to_context(n_ctx),
          .n_parallel = to_option(n_parallel, "n_parallel", 1),
          .n_ubatch = to_option(n_ubatch, "n_ubatch", 1),
          .block_size = to_option(block_size, "block_size", 1)};
}

std::unique_ptr<Backend> make_backend(const std::string& device, int n_threads) {
  if (device != "cpu" && device != "cuda") {
    throw Error(ErrorCode::kConfig, "device is '" + device + "'; it must be 'cpu' or 'cuda'");
  }
  return device == "cpu" ? make_cpu_backend(n_threads) : make_cuda_backend(n_threads);
}

std::unique_ptr<PyEngine> make_engine(const py::dict& config, const py::dict& tensors,
                                      const std::string& dtype, const std::string& kv_dtype,
                                      const std::string& device, const py::object& n_ctx,
                                      const py::object& n_parallel, const py::object& n_ubatch,
                                      const py::object& n_threads, const py::object& block_size,
                                      const py::set& mapped, const py::set& native,
                                      const py::object& weights_cache, const py::object& progress,
                                      const py::object& vision) {
  const EngineOptions options =
      to_options(dtype, kv_dtype, n_ctx, n_parallel, n_ubatch, block_size);
  const int threads = to_option(n_threads, "n_threads", 0);
  std::vector<py::object> keep_alive;
  ModelConfig model_config = to_model_config(config);
  std::optional<VisionConfig> tower = to_vision_config(vision);
  const TensorMap views = to_tensors(tensors, mapped, native, keep_alive);
  const LoadOptions load = to_load_options(weights_cache, progress);
  const py::gil_scoped_release release;
  auto engine = std::make_unique<Engine>(std::move(model_config), views, options,
                                         make_backend(device, threads), load, std::move(tower));
  return std::make_unique<PyEngine>(std::move(engine));
}

// Adds the groups of layers that keep windows or states to a description.
void describe_groups(const std::vector<LayerGroup>& groups, py::dict& d) {
  py::list windows, states;
  for (const LayerGroup& group : groups) {
    if (group.is_state) {
      states.append(py::make_tuple(group.n_layers, group.n_blocks));
    } else if (group.window > 0) {
      windows.append(py::make_tuple(group.window, group.n_layers, group.n_blocks));
    }
  }
  d["kv_windows"] = windows;
  d["kv_states"] = states;
}

py::dict plan(const py::dict& config, const py::dict& tensors, const std::string& dtype,
              const std::string& kv_dtype, const std::string& device, const py::object& n_ctx,
              const py::object& n_parallel, const py::object& n_ubatch,
              const py::object& block_size, const py::set& native, const py::object& vision) {
  const EngineOptions options =
      to_options(dtype, kv_dtype, n_ctx, n_parallel, n_ubatch, block_size);
  std::vector<py::object> keep_alive;
  const TensorMap views = to_tensors(tensors, {}, native, keep_alive);
  const ModelConfig model_config = to_model_config(config);
  const std::optional<VisionConfig> tower = to_vision_config(vision);
  const auto backend = make_backend(device, 1);
  // A GPU gives half of its free memory to KV.
  const size_t available = device == "cpu" ? available_memory() : 2 * backend->memory_for_kv(0);
  const MemoryNeed need =
      memory_need(model_config, views, options, *backend, available, tower ? &*tower : nullptr);
  py::dict d;
  d["weight_bytes"] = need.weights;
  d["kv_bytes"] = need.kv;
  d["buffer_bytes"] = need.buffers;
  d["available_bytes"] = available;
  d["n_ctx"] = need.n_blocks * options.block_size;
  d["cpu_target"] = backend->target();
  describe_groups(model_layer_groups(model_config, options, *backend, need.n_blocks).groups, d);
  return d;
}

void set_sampling(PyEngine& self, const py::object& seq_id, double temperature,
                  const py::object& top_k, double top_p, double min_p, double repetition_penalty,
                  double presence_penalty, double frequency_penalty,
                  const std::map<int32_t, float>& logit_bias, const py::object& min_tokens,
                  const py::object& stop_token_ids, const py::object& logprobs,
                  const py::object& seed, const py::object& n_prompt) {
  Sampling s;
  s.temperature = temperature;
  s.top_k = static_cast<int>(to_integer(top_k, "top_k", 0, kMaxInt));
  s.top_p = top_p;
  s.min_p = min_p;
  s.repetition_penalty = repetition_penalty;
  s.presence_penalty = presence_penalty;
  s.frequency_penalty = frequency_penalty;
  s.logit_bias.assign(logit_bias.begin(), logit_bias.end());
  s.min_tokens = static_cast<int>(to_integer(min_tokens, "min_tokens", 0, kMaxInt));
  s.stop_token_ids = to_ids(stop_token_ids, "stop_token_ids", self.facts.vocab_size - 1);
  s.wants_logprobs = !logprobs.is_none();
  if (s.wants_logprobs) {
    s.top_logprobs = static_cast<int>(to_integer(logprobs, "logprobs", 0, kMaxLogprobs));
  }
  s.seed = to_seed(seed);
  s.n_prompt = static_cast<int>(to_integer(n_prompt, "n_prompt", 0, kMaxInt));
  const int id = to_seq_id(self, seq_id);
  call(self, [&](Engine& engine) { engine.seq_sampling(id, std::move(s)); });
}

// Returns the positions (n, kRopeAxes) of an integer array of that shape.
std::vector<int32_t> to_positions(const py::object& value) {
  if (!py::isinstance<py::array>(value)) {
    throw Error(ErrorCode::kInvalidRequest,
                "positions is " + shown(value) + "; it must be an integer array");
  }
  const auto array = py::reinterpret_borrow<py::array>(value);
  if (array.ndim() != 2 || array.shape(1) != kRopeAxes) {
    throw Error(ErrorCode::kInvalidRequest,
                "positions has " + std::to_string(array.ndim()) + " dimensions" +
                    (array.ndim() == 2 ? " and " + std::to_string(array.shape(1)) + " columns"
                                       : std::string()) +
                    "; it must have a row of " + std::to_string(kRopeAxes) +
                    " for each of the first tokens");
  }
  return to_ids(array.attr("ravel")(), "positions", kMaxInt);
}

std::map<std::string, int64_t> statistics(const PyEngine& self) {
  const EngineStatistics s = self.guarded.counters().statistics;
  return {{"forward_passes", s.forward_passes}, {"computed_tokens", s.computed_tokens},
          {"logits_rows", s.logits_rows},       {"sampled_tokens", s.sampled_tokens},
          {"proposed_tokens", s.draft_tokens},  {"accepted_tokens", s.accepted_tokens}};
}

// Returns the names, joined with commas.
std::string names_of(const std::vector<DType>& dtypes) {
  std::string names;
  for (const DType dtype : dtypes)
    names += (names.empty() ? "" : ", ") + std::string(dtype_name(dtype));
  return names;
}

py::dict description(const PyEngine& self) {
  const EngineFacts& facts = self.facts;
  py::dict d;
  d["dtype"] = dtype_name(facts.dtypes[0]);
  d["dtypes"] = names_of(facts.dtypes);
  d["kv_dtype"] = dtype_name(facts.options.kv_dtype);
  d["device"] = facts.device;
  d["cpu_target"] = facts.target;
  d["n_threads"] = facts.n_threads;
  d["weight_bytes"] = facts.weight_bytes;
  d["n_ctx"] = facts.options.n_ctx;
  d["kv_bytes"] = facts.kv_bytes;
  describe_groups(facts.layer_groups, d);
  d["weights_cache"] = facts.weights_cache.state;
  return d;
}

void bind_sequences(py::class_<PyEngine>& engine) {
  engine
      .def(
          "seq_new",
          [](PyEngine& self, const std::string& name_space, bool common) {
            check_common(name_space, common);
            return call(self, [&](Engine& e) {
              return common ? e.seq_new_common() : e.seq_new(name_space);
            });
          },
          py::arg("namespace") = "", py::kw_only(), py::arg("common") = false,
          doc("Engine.seq_new"))
      .def(
          "seq_copy",
          [](PyEngine& self, const py::object& src, const py::object& dst, const py::object& n) {
            const int from = to_seq_id(self, src, "src");
            const int to = to_seq_id(self, dst, "dst");
            const int n_tokens = static_cast<int>(to_integer(n, "n_tokens", 0, kMaxInt));
            call(self, [&](Engine& e) { e.seq_copy(from, to, n_tokens); });
          },
          py::arg("src"), py::arg("dst"), py::arg("n_tokens"), doc("Engine.seq_copy"))
      .def(
          "seq_remove",
          [](PyEngine& self, const py::object& seq_id, const py::object& start,
             const py::object& end) {
            const int id = to_seq_id(self, seq_id);
            const int first = static_cast<int>(to_integer(start, "start", 0, kMaxInt));
            const int last = static_cast<int>(to_integer(end, "end", -1, kMaxInt));
            call(self, [&](Engine& e) { e.seq_remove(id, first, last); });
          },
          py::arg("seq_id"), py::arg("start") = 0, py::arg("end") = -1, doc("Engine.seq_remove"))
      .def(
          "seq_length",
          [](PyEngine& self, const py::object& seq_id) {
            const int id = to_seq_id(self, seq_id);
            return call(self, [&](Engine& e) { return e.seq_length(id); });
          },
          py::arg("seq_id"), doc("Engine.seq_length"))
      .def(
          "seq_exclusive_blocks",
          [](PyEngine& self, const py::object& seq_id) {
            const int id = to_seq_id(self, seq_id);
            return call(self, [&](Engine& e) { return e.seq_exclusive_blocks(id); });
          },
          py::arg("seq_id"), doc("Engine.seq_exclusive_blocks"))
      .def(
          "seq_copyable",
          [](PyEngine& self, const py::object& src, const py::object& n_tokens) {
            const int id = to_seq_id(self, src, "src");
            const int n = static_cast<int>(to_integer(n_tokens, "n_tokens", 0, kMaxInt));
            return call(self, [&](Engine& e) { return e.seq_copyable(id, n); });
          },
          py::arg("src"), py::arg("n_tokens"), doc("Engine.seq_copyable"))
      .def(
          "seq_match",
          [](PyEngine& self, const py::object& seq_id, const py::object& tokens) {
            const int id = to_seq_id(self, seq_id);
            // Ids of image rows are beyond the vocabulary.
            const int high = self.facts.image_columns > 0 ? kMaxInt : self.facts.vocab_size - 1;
            const auto ids = to_ids(tokens, "tokens", high);
            return call(self, [&](Engine& e) { return e.seq_match(id, ids); });
          },
          py::arg("seq_id"), py::arg("tokens"), doc("Engine.seq_match"))
      .def(
          "seq_positions",
          [](PyEngine& self, const py::object& seq_id, const py::object& positions) {
            const int id = to_seq_id(self, seq_id);
            const auto found = to_positions(positions);
            call(self, [&](Engine& e) { e.seq_positions(id, found); });
          },
          py::arg("seq_id"), py::arg("positions"), doc("Engine.seq_positions"))
      .def("set_sampling", &set_sampling, py::arg("seq_id"), py::kw_only(),
           py::arg("temperature") = 0.0, py::arg("top_k") = 0, py::arg("top_p") = 1.0,
           py::arg("min_p") = 0.0, py::arg("repetition_penalty") = 1.0,
           py::arg("presence_penalty") = 0.0, py::arg("frequency_penalty") = 0.0,
           py::arg("logit_bias") = py::dict(), py::arg("min_tokens") = 0,
           py::arg("stop_token_ids") = py::tuple(), py::arg("logprobs") = py::none(),
           py::arg("seed") = 0, py::arg("n_prompt") = 0, doc("Engine.set_sampling"));
}

void bind_compute(py::class_<PyEngine>& engine) {
  engine
      .def("run_step", &run_step, py::arg("entries"), py::arg("masks") = py::none(),
           py::arg("mask_rows") = py::dict(), doc("Engine.run_step"))
      .def("prefill_chunk", &prefill_chunk, py::arg("seq_id"), py::arg("tokens"), py::kw_only(),
           py::arg("logits") = false, doc("Engine.prefill_chunk"))
      .def("decode_batch", &decode_batch, py::arg("seq_ids"), py::arg("tokens"), py::kw_only(),
           py::arg("logits") = false, doc("Engine.decode_batch"))
      .def("embed", &embed, py::arg("seq_id"), py::arg("tokens"), py::arg("pooling") = "mean",
           doc("Engine.embed"));
}

template <typename Get>
void fact(py::class_<PyEngine>& engine, const char* name, const char* doc, Get get) {
  engine.def_property_readonly(name, [get](const PyEngine& self) { return get(self); }, doc);
}

void bind_facts(py::class_<PyEngine>& engine) {
  fact(engine, "vocab_size", doc("Engine.vocab_size"),
       [](const PyEngine& e) { return e.facts.vocab_size; });
  fact(engine, "hidden_size", doc("Engine.hidden_size"),
       [](const PyEngine& e) { return e.facts.hidden_size; });
  fact(engine, "image_columns", doc("Engine.image_columns"),
       [](const PyEngine& e) { return e.facts.image_columns; });
  fact(engine, "block_size", doc("Engine.block_size"),
       [](const PyEngine& e) { return e.facts.options.block_size; });
  fact(engine, "n_parallel", doc("Engine.n_parallel"),
       [](const PyEngine& e) { return e.facts.options.n_parallel; });
  fact(engine, "n_ubatch", doc("Engine.n_ubatch"),
       [](const PyEngine& e) { return e.facts.options.n_ubatch; });
  fact(engine, "n_ctx", doc("Engine.n_ctx"),
       [](const PyEngine& e) { return e.facts.options.n_ctx; });
  fact(engine, "max_sequence_length", doc("Engine.max_sequence_length"),
       [](const PyEngine& e) { return e.facts.max_sequence_length; });
  fact(engine, "weights_cache_problem", doc("Engine.weights_cache_problem"),
       [](const PyEngine& e) { return e.facts.weights_cache.problem; });
  fact(engine, "kv_total_blocks", doc("Engine.kv_total_blocks"),
       [](const PyEngine& e) { return e.facts.kv_total_blocks; });
  fact(engine, "kv_free_blocks", doc("Engine.kv_free_blocks"),
       [](const PyEngine& e) { return e.guarded.counters().kv_free_blocks; });
  fact(engine, "kv_cached_blocks", doc("Engine.kv_cached_blocks"),
       [](const PyEngine& e) { return e.guarded.counters().kv_cached_blocks; });
  fact(engine, "kv_appendable_blocks", doc("Engine.kv_appendable_blocks"),
       [](const PyEngine& e) { return e.guarded.counters().kv_appendable_blocks; });
  fact(engine, "kv_most_appendable_blocks", doc("Engine.kv_most_appendable_blocks"),
       [](const PyEngine& e) { return e.facts.kv_most_appendable_blocks; });
  fact(engine, "takes_drafts", doc("Engine.takes_drafts"),
       [](const PyEngine& e) { return e.facts.takes_drafts; });
  fact(engine, "progress", doc("Engine.progress"),
       [](const PyEngine& e) { return e.guarded.progress(); });
  fact(engine, "used_sequences", doc("Engine.used_sequences"),
       [](const PyEngine& e) { return e.guarded.counters().used_sequences; });
  engine.def("statistics", &statistics, doc("Engine.statistics"))
      .def("description", &description, doc("Engine.description"))
      .def(
          "check_integrity",
          [](PyEngine& self) { call(self, [](Engine& e) { e.check_integrity(); }); },
          doc("Engine.check_integrity"))
      .def(
          "restart", [](PyEngine& self) { call(self, [](Engine& e) { e.restart(); }); },
          doc("Engine.restart"))
      .def(
          "close",
          [](PyEngine& self) {
            const py::gil_scoped_release release;
            self.guarded.close();
          },
          doc("Engine.close"));
}

}  // namespace
}  // namespace pb::bindings

void bind_engine(py::module_& module) {
  using namespace pb::bindings;
  py::options options;
  options.disable_function_signatures();  // _core.pyi has the signatures
  py::class_<PyEngine> engine(module, "Engine", doc("Engine"));
  engine.def(py::init(&make_engine), py::arg("config"), py::arg("tensors"), py::kw_only(),
             py::arg("dtype"), py::arg("kv_dtype"), py::arg("device"), py::arg("n_ctx"),
             py::arg("n_parallel"), py::arg("n_ubatch"), py::arg("n_threads"),
             py::arg("block_size"), py::arg("mapped") = py::set(), py::arg("native") = py::set(),
             py::arg("weights_cache") = py::none(), py::arg("progress") = py::none(),
             py::arg("vision") = py::none(), doc("Engine.__init__"));
  engine.def_static("plan", &plan, py::arg("config"), py::arg("tensors"), py::kw_only(),
                    py::arg("dtype"), py::arg("kv_dtype"), py::arg("device"), py::arg("n_ctx"),
                    py::arg("n_parallel"), py::arg("n_ubatch"), py::arg("block_size"),
                    py::arg("native") = py::set(), py::arg("vision") = py::none(),
                    doc("Engine.plan"));
  bind_sequences(engine);
  bind_compute(engine);
  bind_tower(engine);
  bind_facts(engine);
}
