#include "bindings/engine_calls.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace py = pybind11;

namespace pb::bindings {
namespace {

// ((token, logprob), ...)
py::tuple top_tuple(std::span<const TokenLogprob> top) {
  py::tuple pairs(top.size());
  for (size_t i = 0; i < top.size(); ++i) pairs[i] = py::make_tuple(top[i].token, top[i].logprob);
  return pairs;
}

// (token, logprob or None, top)
py::tuple sampled_tuple(const Sample& sample) {
  const py::tuple top = top_tuple(std::span(sample.top).first(static_cast<size_t>(sample.n_top)));
  const py::object logprob =
      sample.has_logprobs ? py::object(py::float_(sample.logprob)) : py::none();
  return py::make_tuple(sample.token, logprob, top);
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidRequest, message);
}

Pooling to_pooling(py::handle name) {
  const auto is = [&](const char* text) {
    return PyUnicode_Check(name.ptr()) && PyUnicode_CompareWithASCIIString(name.ptr(), text) == 0;
  };
  if (name.is_none()) return Pooling::kNone;
  if (is("mean")) return Pooling::kMean;
  if (is("last")) return Pooling::kLast;
  if (is("cls")) return Pooling::kFirst;
  refuse("pooling is " + shown(name) + "; it must be 'mean', 'last' or 'cls', or None");
}

bool to_bool(py::handle value, const char* field) {
  if (!PyBool_Check(value.ptr())) {
    refuse(std::string(field) + " is " + shown(value) + "; it must be True or False");
  }
  return value.ptr() == Py_True;
}

using FloatRows = py::array_t<float, py::array::c_style>;

// The entries of a step, converted from Python, and the memory for their results.
class StepCall {
 public:
  StepCall(const PyEngine& self, const py::sequence& entries) : self_(self) {
    // A copy: converting an entry may run Python code that changes the sequence.
    const auto copied = py::tuple(entries);
    const size_t n = copied.size();
    entries_.resize(n);
    token_ends_.resize(n);
    for (size_t i = 0; i < n; ++i) {
      try {
        read_entry(i, copied[i]);
      } catch (const Error& error) {
        throw Error(error.code(), "entries[" + std::to_string(i) + "]: " + error.what());
      }
    }
    // Spans into vectors that do not grow any more.
    for (size_t i = 0, begin = 0; i < n; begin = token_ends_[i++]) {
      entries_[i].tokens = std::span(tokens_).subspan(begin, token_ends_[i] - begin);
    }
  }

  // rows: {seq_id: the first of its rows in `masks`}.
  void set_masks(const TokenMasks& masks, const py::dict& rows) {
    if (masks.row_bytes() != mask_words(self_.facts.vocab_size) * sizeof(uint32_t)) {
      refuse("masks are of another vocab_size than the engine's");
    }
    // A copy: without the GIL, another thread may change the dict at any time.
    const auto copied = py::reinterpret_steal<py::dict>(PyDict_Copy(rows.ptr()));
    if (!copied) throw py::error_already_set();
    size_t n_found = 0;
    for (StepEntry& entry : entries_) {
      PyObject* row = PyDict_GetItemWithError(copied.ptr(), py::int_(entry.seq_id).ptr());
      if (row == nullptr) {
        if (PyErr_Occurred() != nullptr) throw py::error_already_set();
        continue;
      }
      ++n_found;
      const auto first = static_cast<size_t>(to_integer(row, "mask_rows", 0, kMaxInt));
      if (first + entry.n_wanted() > masks.n_rows()) {
        refuse("mask_rows[" + std::to_string(entry.seq_id) + "] is " + std::to_string(first) +
               "; masks has " + std::to_string(masks.n_rows()) + " rows");
      }
      entry.masks = masks.row(first);
    }
    if (n_found != copied.size()) refuse("mask_rows names a sequence that has no entry");
  }

  std::span<const StepEntry> entries() const { return entries_; }

  // The tuples that run_step() returns. `samples` has the samples of the entries that sample, then
  // a failure for each other entry that could not be scored or pooled; both in order of the
  // entries.
  py::list results(std::span<const StepSample> samples) const {
    py::list all(entries_.size());
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (!entries_[i].wants_logits) continue;
      size_t n = 0;
      while (n < samples.size() && samples[n].seq_id == entries_[i].seq_id) ++n;
      const char* failure = n == 0 ? nullptr : samples[n - 1].sample.failure;
      py::tuple sampled(failure == nullptr ? n : n - 1);
      for (size_t j = 0; j < sampled.size(); ++j) sampled[j] = sampled_tuple(samples[j].sample);
      all[i] = result(i, sampled, failure);
      samples = samples.subspan(n);
    }
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].wants_logits) continue;
      const bool failed = !samples.empty() && samples[0].seq_id == entries_[i].seq_id;
      all[i] = result(i, py::tuple(), failed ? samples[0].sample.failure : nullptr);
      if (failed) samples = samples.subspan(1);
    }
    return all;
  }

 private:
  // The results of an entry that is scored or pooled.
  struct Answer {
    std::vector<int32_t> targets;
    std::vector<float> logprobs;    // (targets)
    std::vector<TokenLogprob> top;  // (targets, n_top)
    py::object embedding;           // float32 (hidden_size)
  };

  void read_entry(size_t i, py::handle value) {
    if (!PyTuple_Check(value.ptr()) || PyTuple_GET_SIZE(value.ptr()) < 3) {
      refuse("is " + shown(value) +
             "; it must be a tuple: (seq_id, tokens, sample, n_draft, "
             "targets, pooling, n_top, images), of which the last five may be missing");
    }
    const auto n_fields = PyTuple_GET_SIZE(value.ptr());
    const auto field = [&](Py_ssize_t at) { return py::handle(PyTuple_GET_ITEM(value.ptr(), at)); };
    StepEntry& entry = entries_[i];
    entry.seq_id = to_seq_id(self_, field(0));
    // Engine::step() checks ids beyond the vocabulary against the images.
    const bool has_images = n_fields > 7 && !is_empty_tuple(field(7));
    append_ids(field(1), "tokens", has_images ? kMaxInt : self_.facts.vocab_size - 1, tokens_);
    token_ends_[i] = tokens_.size();
    entry.wants_logits = to_bool(field(2), "sample");
    if (n_fields > 3) entry.n_draft = static_cast<int>(to_integer(field(3), "n_draft", 0, kMaxInt));
    if (n_fields > 6)
      entry.n_top = static_cast<int>(to_integer(field(6), "n_top", 0, kMaxLogprobs));
    if (n_fields > 4) read_targets(i, field(4));
    if (n_fields > 5) read_pooling(i, field(5));
    if (has_images) read_images(i, field(7));
  }

  static bool is_empty_tuple(py::handle value) {
    return PyTuple_CheckExact(value.ptr()) && PyTuple_GET_SIZE(value.ptr()) == 0;
  }

  // value: ((offset, rows (n, image_columns) f32), ...)
  void read_images(size_t i, py::handle value) {
    if (!PyTuple_Check(value.ptr())) {
      refuse("images is " + shown(value) + "; it must be a tuple of (offset, rows)");
    }
    const int64_t columns = self_.facts.image_columns;
    images_.resize(entries_.size());
    for (const py::handle item : py::reinterpret_borrow<py::tuple>(value)) {
      if (!PyTuple_Check(item.ptr()) || PyTuple_GET_SIZE(item.ptr()) != 2) {
        refuse("images has " + shown(item) + "; it must be (offset, rows)");
      }
      const py::handle offset = PyTuple_GET_ITEM(item.ptr(), 0);
      const py::handle rows = PyTuple_GET_ITEM(item.ptr(), 1);
      if (!py::isinstance<FloatRows>(rows)) {
        refuse("images has rows that are " + shown(rows) +
               "; they must be an array of float32, contiguous");
      }
      auto array = py::reinterpret_borrow<FloatRows>(rows);
      if (array.ndim() != 2 || array.shape(1) != columns || array.shape(0) > kMaxInt) {
        refuse("images has an array of " + std::to_string(array.ndim()) + " dimensions" +
               (array.ndim() == 2 ? " and " + std::to_string(array.shape(1)) + " columns" : "") +
               "; it must have 2 dimensions and " + std::to_string(columns) + " columns");
      }
      images_[i].push_back({.offset = static_cast<int>(to_integer(offset, "images", 0, kMaxInt)),
                            .n_rows = static_cast<int>(array.shape(0)),
                            .values = array.data()});
      arrays_.push_back(std::move(array));
    }
    entries_[i].images = images_[i];
  }

  void read_targets(size_t i, py::handle value) {
    if (is_empty_tuple(value)) return;
    StepEntry& entry = entries_[i];
    Answer& answer = answer_of(i);
    answer.targets = to_ids(value, "targets", self_.facts.vocab_size - 1);
    answer.logprobs.resize(answer.targets.size());
    answer.top.resize(answer.targets.size() * static_cast<size_t>(entry.n_top));
    entry.targets = answer.targets;
    entry.logprobs = answer.logprobs.data();
    entry.top = answer.top.data();
  }

  void read_pooling(size_t i, py::handle value) {
    StepEntry& entry = entries_[i];
    entry.pooling = to_pooling(value);
    if (entry.pooling == Pooling::kNone) return;
    Answer& answer = answer_of(i);
    py::array_t<float> embedding(self_.facts.hidden_size);
    entry.embedding = embedding.mutable_data();
    answer.embedding = std::move(embedding);
  }

  Answer& answer_of(size_t i) {
    answers_.resize(entries_.size());
    return answers_[i];
  }

  bool has_answer(size_t i, const char* failure) const {
    return failure == nullptr && !answers_.empty() && entries_[i].wants_scores_or_embedding();
  }

  py::tuple result(size_t i, const py::tuple& sampled, const char* failure) const {
    return py::make_tuple(entries_[i].seq_id, sampled, failure, logprobs(i, failure),
                          top_logprobs(i, failure), embedding(i, failure));
  }

  // (logprob, ...)
  py::tuple logprobs(size_t i, const char* failure) const {
    if (!has_answer(i, failure)) return py::tuple();
    const std::vector<float>& values = answers_[i].logprobs;
    py::tuple numbers(values.size());
    for (size_t j = 0; j < values.size(); ++j) numbers[j] = py::float_(values[j]);
    return numbers;
  }

  // (((token, logprob), ...), ...)
  py::tuple top_logprobs(size_t i, const char* failure) const {
    const auto n_top = static_cast<size_t>(entries_[i].n_top);
    if (n_top == 0 || !has_answer(i, failure)) return py::tuple();
    const auto n_set = std::min(n_top, static_cast<size_t>(self_.facts.vocab_size));
    py::tuple rows(answers_[i].logprobs.size());
    for (size_t j = 0; j < rows.size(); ++j) {
      rows[j] = top_tuple(std::span(answers_[i].top).subspan(j * n_top, n_set));
    }
    return rows;
  }

  py::object embedding(size_t i, const char* failure) const {
    if (!has_answer(i, failure) || entries_[i].pooling == Pooling::kNone) return py::none();
    return answers_[i].embedding;
  }

  const PyEngine& self_;
  std::vector<StepEntry> entries_;
  std::vector<int32_t> tokens_;                  // of all entries
  std::vector<size_t> token_ends_;               // in `tokens_`, by entry
  std::vector<Answer> answers_;                  // by entry; empty if no entry is scored or pooled
  std::vector<std::vector<EntryImage>> images_;  // by entry; empty if no entry has images
  std::vector<FloatRows> arrays_;                // those of images_
};

}  // namespace

py::list run_step(PyEngine& self, const py::sequence& entries, const TokenMasks* masks,
                  const py::dict& mask_rows) {
  StepCall step(self, entries);
  if (masks != nullptr) step.set_masks(*masks, mask_rows);
  const auto samples =
      call(self, [&](Engine& engine) { return engine.step(step.entries(), masks); });
  return step.results(samples);
}

py::object prefill_chunk(PyEngine& self, const py::object& seq_id, const py::object& tokens,
                         bool logits) {
  const int id = to_seq_id(self, seq_id);
  const auto ids = to_tokens(self, tokens);
  if (!logits) {
    call(self, [&](Engine& engine) { engine.prefill_chunk(id, ids, nullptr); });
    return py::none();
  }
  py::array_t<float> row(self.facts.vocab_size);
  float* out = row.mutable_data();
  call(self, [&](Engine& engine) { engine.prefill_chunk(id, ids, out); });
  return row;
}

py::object decode_batch(PyEngine& self, const py::object& seq_ids, const py::object& tokens,
                        bool logits) {
  const auto ids = to_ids(seq_ids, "seq_ids", self.facts.options.n_parallel - 1);
  const auto appended = to_tokens(self, tokens);
  const auto n = static_cast<py::ssize_t>(ids.size());
  py::array_t<int32_t> next(n);
  int32_t* next_out = next.mutable_data();
  if (!logits) {
    call(self, [&](Engine& engine) { engine.decode_batch(ids, appended, next_out, nullptr); });
    return next;
  }
  py::array_t<float> rows({n, static_cast<py::ssize_t>(self.facts.vocab_size)});
  float* rows_out = rows.mutable_data();
  call(self, [&](Engine& engine) { engine.decode_batch(ids, appended, next_out, rows_out); });
  return py::make_tuple(next, rows);
}

py::array_t<float> embed(PyEngine& self, const py::object& seq_id, const py::object& tokens,
                         const std::string& pooling) {
  if (pooling != "mean" && pooling != "last" && pooling != "cls") {
    throw Error(ErrorCode::kInvalidRequest,
                "pooling is '" + pooling + "'; it must be 'mean', 'last' or 'cls'");
  }
  const Pooling kind = pooling == "mean"   ? Pooling::kMean
                       : pooling == "last" ? Pooling::kLast
                                           : Pooling::kFirst;
  const int id = to_seq_id(self, seq_id);
  const auto ids = to_tokens(self, tokens);
  py::array_t<float> embedding(self.facts.hidden_size);
  float* out = embedding.mutable_data();
  call(self, [&](Engine& engine) { engine.embed(id, ids, kind, out); });
  return embedding;
}

}  // namespace pb::bindings
