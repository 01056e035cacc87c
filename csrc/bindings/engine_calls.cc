#include "bindings/engine_calls.h"

#include <algorithm>
#include <span>
#include <string>
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

py::tuple drawn_tuple(const StepDraw& entry) {
  const Draw& draw = entry.draw;
  const py::tuple top = top_tuple(std::span(draw.top).first(static_cast<size_t>(draw.n_top)));
  const py::object logprob = draw.has_logprobs ? py::object(py::float_(draw.logprob)) : py::none();
  return py::make_tuple(entry.seq_id, draw.token, logprob, top);
}

Pooling to_pooling(const std::string& field, py::handle name) {
  const auto is = [&](const char* text) {
    return PyUnicode_Check(name.ptr()) && PyUnicode_CompareWithASCIIString(name.ptr(), text) == 0;
  };
  if (is("mean")) return Pooling::kMean;
  if (is("last")) return Pooling::kLast;
  if (is("cls")) return Pooling::kFirst;
  throw Error(ErrorCode::kInvalidRequest,
              field + " is " + shown(name) + "; it must be 'mean', 'last' or 'cls'");
}

// The targets and poolings of a step's entries, and memory for the answers.
class ScoresAndEmbeddings {
 public:
  // Sets targets and poolings of `entries`: one item of each an entry, or none at all.
  ScoresAndEmbeddings(const PyEngine& self, const py::sequence& targets,
                      const py::sequence& poolings, const py::object& n_top,
                      std::vector<StepEntry>& entries)
      : entries_(entries), vocab_size_(static_cast<size_t>(self.facts.vocab_size)) {
    const auto counts = to_ids(n_top, "n_top", kMaxLogprobs);
    if (!counts.empty() && counts.size() != entries.size()) refuse_count("n_top", counts.size());
    top_.resize(counts.size());
    for_each_entry(targets, "targets", [&](StepEntry& entry, size_t i, py::handle tokens) {
      targets_.resize(entries.size());
      scores_.resize(entries.size());
      targets_[i] = to_ids(tokens, "targets", self.facts.vocab_size - 1);
      scores_[i].resize(targets_[i].size());
      entry.targets = targets_[i];
      entry.logprobs = scores_[i].data();
      if (counts.empty()) return;
      entry.n_top = counts[i];
      top_[i].resize(targets_[i].size() * static_cast<size_t>(counts[i]));
      entry.top = top_[i].data();
    });
    for_each_entry(poolings, "poolings", [&](StepEntry& entry, size_t i, py::handle name) {
      pooled_.resize(entries.size());
      if (name.is_none()) return;
      entry.pooling = to_pooling("poolings[" + std::to_string(i) + "]", name);
      pooled_[i] = py::array_t<float>(self.facts.hidden_size);
      entry.embedding = pooled_[i].mutable_data();
    });
  }

  // seq_id -> (logprob, ...)
  py::dict logprobs(const py::dict& failed) const {
    py::dict answers;
    for (size_t i = 0; i < scores_.size(); ++i) {
      const py::int_ seq_id(entries_[i].seq_id);
      if (scores_[i].empty() || failed.contains(seq_id)) continue;
      py::tuple numbers(scores_[i].size());
      for (size_t j = 0; j < scores_[i].size(); ++j) numbers[j] = py::float_(scores_[i][j]);
      answers[seq_id] = numbers;
    }
    return answers;
  }

  // seq_id -> (((token, logprob), ...), ...), where some were asked for
  py::dict top_logprobs(const py::dict& failed) const {
    py::dict answers;
    for (size_t i = 0; i < top_.size(); ++i) {
      const py::int_ seq_id(entries_[i].seq_id);
      if (top_[i].empty() || failed.contains(seq_id)) continue;
      const auto n_top = static_cast<size_t>(entries_[i].n_top);
      py::tuple rows(scores_[i].size());
      for (size_t j = 0; j < rows.size(); ++j) {
        rows[j] = top_tuple(std::span(top_[i]).subspan(j * n_top, std::min(n_top, vocab_size_)));
      }
      answers[seq_id] = rows;
    }
    return answers;
  }

  // seq_id -> float32 (hidden_size)
  py::dict embeddings(const py::dict& failed) const {
    py::dict answers;
    for (size_t i = 0; i < pooled_.size(); ++i) {
      const py::int_ seq_id(entries_[i].seq_id);
      if (entries_[i].pooling == Pooling::kNone || failed.contains(seq_id)) continue;
      answers[seq_id] = pooled_[i];
    }
    return answers;
  }

 private:
  // A copy of `items`, since converting one may run Python code that changes them.
  template <typename Set>
  void for_each_entry(const py::sequence& items, const char* field, Set set_one) {
    const auto copied = py::tuple(items);
    if (copied.empty()) return;
    if (copied.size() != entries_.size()) refuse_count(field, copied.size());
    for (size_t i = 0; i < copied.size(); ++i) set_one(entries_[i], i, copied[i]);
  }

  [[noreturn]] void refuse_count(const char* field, size_t n_items) const {
    throw Error(ErrorCode::kInvalidRequest, std::string(field) + " has " + std::to_string(n_items) +
                                                " items for " + std::to_string(entries_.size()) +
                                                " sequences; it must have one a sequence, or none");
  }

  std::vector<StepEntry>& entries_;
  size_t vocab_size_;
  // An item an entry, or none at all.
  std::vector<std::vector<int32_t>> targets_;
  std::vector<std::vector<float>> scores_;
  std::vector<std::vector<TokenLogprob>> top_;  // (targets, n_top) an entry
  std::vector<py::array_t<float>> pooled_;
};

// rows: for each entry the first of its rows in `masks`, -1: it has none.
void set_masks(const PyEngine& self, const TokenMasks& masks, const py::object& rows,
               std::vector<StepEntry>& entries) {
  const auto firsts = py::tuple(rows);
  if (masks.row_bytes() != mask_words(self.facts.vocab_size) * sizeof(uint32_t)) {
    throw Error(ErrorCode::kInvalidRequest, "masks are of another vocab_size than the engine's");
  }
  if (firsts.size() != entries.size()) {
    throw Error(ErrorCode::kInvalidRequest, "mask_rows has " + std::to_string(firsts.size()) +
                                                " items for " + std::to_string(entries.size()) +
                                                " sequences; it must have one a sequence");
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t first = to_integer(firsts[i], "mask_rows", -1, kMaxInt);
    if (first < 0) continue;
    if (static_cast<size_t>(first) + entries[i].n_wanted() > masks.n_rows()) {
      throw Error(ErrorCode::kInvalidRequest, "mask_rows[" + std::to_string(i) + "] is " +
                                                  std::to_string(first) + "; masks has " +
                                                  std::to_string(masks.n_rows()) + " rows");
    }
    entries[i].masks = masks.row(static_cast<size_t>(first));
  }
}

}  // namespace

py::tuple run_step(PyEngine& self, const py::object& seq_ids, const py::object& counts,
                   const py::object& tokens, const std::vector<bool>& samples,
                   const py::object& drafts, const py::sequence& targets,
                   const py::sequence& poolings, const TokenMasks* masks,
                   const py::object& mask_rows, const py::object& n_top) {
  const auto ids = to_ids(seq_ids, "seq_ids", self.facts.options.n_parallel - 1);
  const auto n_tokens = to_ids(counts, "counts", static_cast<int32_t>(kMaxInt));
  const auto all_tokens = to_tokens(self, tokens);
  const auto n_drafts = to_ids(drafts, "drafts", static_cast<int32_t>(kMaxInt));
  size_t total = 0;
  for (int32_t n : n_tokens) total += static_cast<size_t>(n);
  if (n_tokens.size() != ids.size() || samples.size() != ids.size() ||
      (!n_drafts.empty() && n_drafts.size() != ids.size()) || total != all_tokens.size()) {
    throw Error(ErrorCode::kInvalidRequest,
                "seq_ids, counts, samples and drafts have " + std::to_string(ids.size()) + ", " +
                    std::to_string(n_tokens.size()) + ", " + std::to_string(samples.size()) +
                    " and " + std::to_string(n_drafts.size()) + " items, tokens " +
                    std::to_string(all_tokens.size()) +
                    "; the first four must be equal (drafts may be empty), and the counts sum "
                    "to the last");
  }
  std::vector<StepEntry> entries;
  entries.reserve(ids.size());
  std::span<const int32_t> rest = all_tokens;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto n = static_cast<size_t>(n_tokens[i]);
    entries.push_back({.seq_id = ids[i],
                       .tokens = rest.first(n),
                       .wants_logits = samples[i],
                       .n_draft = n_drafts.empty() ? 0 : n_drafts[i]});
    rest = rest.subspan(n);
  }
  ScoresAndEmbeddings answers(self, targets, poolings, n_top, entries);
  if (masks != nullptr) set_masks(self, *masks, mask_rows, entries);
  const auto draws = call(self, [&](Engine& engine) { return engine.step(entries, masks); });
  py::list drawn;
  py::dict failed;
  for (const StepDraw& entry : draws) {
    if (entry.draw.failure == nullptr) {
      drawn.append(drawn_tuple(entry));
    } else {
      failed[py::int_(entry.seq_id)] = entry.draw.failure;
    }
  }
  return py::make_tuple(drawn, failed, answers.logprobs(failed), answers.embeddings(failed),
                        answers.top_logprobs(failed));
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
