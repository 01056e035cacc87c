// The calls of Engine that compute.

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/reservation.h"
#include "sampling/finite.h"

namespace pb {
namespace {

constexpr size_t kPassesOfADraw = 2;  // over the logits, at the least

constexpr const char* kStatesNotFinite = "the model's states are not all finite";

void check_finite(int seq_id, const char* what, std::span<const float> values) {
  if (all_finite(values)) return;
  throw Error(ErrorCode::kEngine, "sequence " + std::to_string(seq_id) + ": the model's " + what +
                                      " are not all finite; check the checkpoint, or load it "
                                      "with dtype='f32'");
}

}  // namespace

template <typename OnTile>
void Engine::run(std::span<const StepEntry> entries, OnTile on_tile) {
  check_entries(entries);
  std::fill_n(n_rejected_.begin(), entries.size(), 0);
  Reservation reservation(*kv_, entries);
  EngineStatistics added{.forward_passes = 1};
  tiler_.start(entries, *kv_);
  while (tiler_.next()) {
    forward_.run(tiler_.batch(), kv_storage_);
    added.computed_tokens += tiler_.batch().n_rows;
    added.logits_rows += static_cast<int64_t>(tiler_.wanted().size());
    on_tile();
  }
  reservation.commit(n_rejected_);
  statistics_.forward_passes += added.forward_passes;
  statistics_.computed_tokens += added.computed_tokens;
  statistics_.logits_rows += added.logits_rows;
}

template <typename OnRows>
void Engine::for_wanted_logits(OnRows on_rows) {
  const std::span<const int32_t> rows = tiler_.wanted().rows;
  for (size_t begin = 0; begin < rows.size(); begin += Forward::kOutputRows) {
    const size_t n = std::min<size_t>(Forward::kOutputRows, rows.size() - begin);
    on_rows(begin, forward_.logits(rows.subspan(begin, n)), n);
  }
}

// The tokens of the entry are reserved, not yet part of kv_->tokens().
Draw Engine::draw(const StepEntry& entry, size_t n_appended, std::span<const float> logits,
                  Sampler& sampler) const {
  if (!entry.wants_logits) {
    return scored(logits,
                  entry.targets[n_appended - 1 + entry.targets.size() - entry.tokens.size()]);
  }
  return sampler.draw(logits, samplings_[static_cast<size_t>(entry.seq_id)],
                      kv_->tokens(entry.seq_id), entry.tokens.first(n_appended));
}

// A row of a draft has to know what was drawn before it, so rows of an entry that draws are one
// task. Tasks write nothing that another reads: draws by row, n_rejected_ by entry, a sampler by
// worker.
template <typename OnDraw>
void Engine::for_draws(std::span<const StepEntry> entries, OnDraw on_draw) {
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  for_wanted_logits([&](size_t first, const float* logits, size_t n_rows) {
    const auto index_of = [&](size_t row) {
      return static_cast<size_t>(tiler_.wanted().entries[first + row]);
    };
    const auto offset_of = [&](size_t row) {
      return static_cast<size_t>(tiler_.wanted().offsets[first + row]);
    };
    const auto logits_of = [&](size_t row) { return std::span(logits + row * vocab, vocab); };

    std::array<size_t, Forward::kOutputRows + 1> task_begin;
    size_t n_tasks = 0;
    for (size_t row = 0; row < n_rows; ++row) {
      const bool goes_on =
          row > 0 && index_of(row) == index_of(row - 1) && entries[index_of(row)].wants_logits;
      if (!goes_on) task_begin[n_tasks++] = row;
    }
    task_begin[n_tasks] = n_rows;

    std::array<std::optional<Draw>, Forward::kOutputRows> draws;
    const auto draw_row = [&](size_t row, Sampler& sampler) {
      const StepEntry& entry = entries[index_of(row)];
      int32_t& n_rejected = n_rejected_[index_of(row)];
      const size_t n_appended = offset_of(row) + 1;
      const size_t n_after = entry.tokens.size() - n_appended;
      if (n_after < static_cast<size_t>(n_rejected)) return;
      const Draw& drawn = draws[row].emplace(draw(entry, n_appended, logits_of(row), sampler));
      const bool is_draft = entry.wants_logits && n_after > 0;
      if (is_draft && (drawn.failure != nullptr || drawn.token != entry.tokens[n_appended])) {
        n_rejected = static_cast<int32_t>(n_after);
      }
    };
    const auto work = static_cast<int64_t>(kPassesOfADraw * n_rows * vocab);
    backend_->for_each(static_cast<int64_t>(n_tasks), work, [&](int64_t task, int worker) {
      const auto t = static_cast<size_t>(task);
      for (size_t row = task_begin[t]; row < task_begin[t + 1]; ++row) {
        draw_row(row, samplers_[static_cast<size_t>(worker)]);
      }
    });
    forward_.heartbeat()->beat();
    for (size_t row = 0; row < n_rows; ++row) {
      if (draws[row]) on_draw(index_of(row), offset_of(row), *draws[row], logits_of(row));
    }
  });
}

// Rows are added one by one in order of position, in double, however they are tiled. All rows of
// one entry come before those of the next, so there is one sum at a time.
template <typename OnPooled>
void Engine::pool(std::span<const StepEntry> entries, OnPooled on_pooled) {
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  const TileRows& pooled = tiler_.pooled();
  const std::span<const int32_t> rows = pooled.rows;
  for (size_t begin = 0; begin < rows.size(); begin += Forward::kOutputRows) {
    const size_t n = std::min<size_t>(Forward::kOutputRows, rows.size() - begin);
    const Activations& states = forward_.hidden(rows.subspan(begin, n));
    for (size_t r = 0; r < n; ++r) {
      const auto index = static_cast<size_t>(pooled.entries[begin + r]);
      const StepEntry& entry = entries[index];
      const size_t n_after =
          entry.tokens.size() - 1 - static_cast<size_t>(pooled.offsets[begin + r]);
      if (n_after + 1 == entry.n_pooled()) std::ranges::fill(pooled_, 0.0);
      const float* state = states.data.as<float>() + static_cast<int64_t>(r) * states.row_stride;
      for (size_t c = 0; c < hidden; ++c) pooled_[c] += double{state[c]};
      if (n_after > 0) continue;
      const auto divisor = static_cast<double>(entry.n_pooled());
      for (size_t c = 0; c < hidden; ++c)
        entry.embedding[c] = static_cast<float>(pooled_[c] / divisor);
      on_pooled(index);
    }
  }
}

std::vector<StepDraw> Engine::step(std::span<const StepEntry> entries) {
  size_t n_draws = 0;
  for (const StepEntry& entry : entries) n_draws += entry.wants_logits ? entry.n_wanted() : 0;
  for (const StepEntry& entry : entries) n_draws += entry.wants_scores_or_embedding() ? 1 : 0;
  std::vector<StepDraw> draws;
  draws.reserve(n_draws);
  std::ranges::fill(failures_, nullptr);
  run(entries, [&] {
    for_draws(entries, [&](size_t i, size_t offset, const Draw& drawn, std::span<const float>) {
      const StepEntry& entry = entries[i];
      if (entry.wants_logits) {
        draws.push_back({.seq_id = entry.seq_id, .draw = drawn});
      } else if (drawn.failure != nullptr) {
        failures_[i] = drawn.failure;
      } else {
        entry.logprobs[offset + entry.targets.size() - entry.tokens.size()] = drawn.logprob;
      }
    });
    pool(entries, [&](size_t i) {
      const std::span<const float> made(entries[i].embedding, pooled_.size());
      if (!all_finite(made)) failures_[i] = kStatesNotFinite;
    });
  });
  for (size_t i = 0; i < entries.size(); ++i) {
    statistics_.draft_tokens += entries[i].n_draft;
    statistics_.accepted_tokens += entries[i].n_draft - n_rejected_[i];
  }
  statistics_.sampled_tokens +=
      std::ranges::count_if(draws, [](const StepDraw& d) { return d.draw.failure == nullptr; });
  for (size_t i = 0; i < entries.size(); ++i) {
    if (failures_[i] == nullptr) continue;
    draws.push_back({.seq_id = entries[i].seq_id, .draw = {.failure = failures_[i]}});
  }
  return draws;
}

void Engine::prefill_chunk(int seq_id, std::span<const int32_t> tokens, float* logits) {
  const std::array entries = {
      StepEntry{.seq_id = seq_id, .tokens = tokens, .wants_logits = logits != nullptr}};
  run(entries, [&] {
    for_wanted_logits([&](size_t, const float* row, size_t) {
      const std::span<const float> last(row, static_cast<size_t>(config_.vocab_size));
      check_finite(seq_id, "logits", last);
      std::ranges::copy(last, logits);
    });
  });
}

void Engine::decode_batch(std::span<const int32_t> seq_ids, std::span<const int32_t> tokens,
                          int32_t* next_tokens, float* logits) {
  if (seq_ids.size() != tokens.size()) {
    throw Error(ErrorCode::kInvalidRequest, "tokens has " + std::to_string(tokens.size()) +
                                                " ids for " + std::to_string(seq_ids.size()) +
                                                " sequences; it must have one a sequence");
  }
  std::vector<StepEntry> entries;
  entries.reserve(seq_ids.size());
  for (size_t i = 0; i < seq_ids.size(); ++i) {
    entries.push_back({.seq_id = seq_ids[i], .tokens = tokens.subspan(i, 1), .wants_logits = true});
  }
  run(entries, [&] {
    for_draws(entries, [&](size_t i, size_t, const Draw& drawn, std::span<const float> row) {
      if (drawn.failure != nullptr) {
        throw Error(ErrorCode::kEngine, "sequence " + std::to_string(entries[i].seq_id) + ": " +
                                            drawn.failure + "; take it out of the batch");
      }
      next_tokens[i] = drawn.token;
      if (logits != nullptr) std::copy(row.begin(), row.end(), logits + i * row.size());
    });
  });
  statistics_.sampled_tokens += static_cast<int64_t>(seq_ids.size());
}

void Engine::embed(int seq_id, std::span<const int32_t> tokens, Pooling pooling, float* embedding) {
  const std::array entries = {
      StepEntry{.seq_id = seq_id, .tokens = tokens, .pooling = pooling, .embedding = embedding}};
  run(entries, [&] {
    pool(entries, [&](size_t) { check_finite(seq_id, "states", {embedding, pooled_.size()}); });
  });
}

}  // namespace pb
