// The calls of Engine that compute.

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/finite.h"
#include "engine/reservation.h"

namespace pb {
namespace {

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

template <typename OnRow>
void Engine::for_wanted_logits(OnRow on_row) {
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  const TileRows& wanted = tiler_.wanted();
  const std::span<const int32_t> rows = wanted.rows;
  for (size_t begin = 0; begin < rows.size(); begin += Forward::kOutputRows) {
    const size_t n = std::min<size_t>(Forward::kOutputRows, rows.size() - begin);
    const float* logits = forward_.logits(rows.subspan(begin, n));
    for (size_t i = 0; i < n; ++i) {
      on_row(static_cast<size_t>(wanted.entries[begin + i]),
             static_cast<size_t>(wanted.offsets[begin + i]),
             std::span<const float>(logits + i * vocab, vocab));
    }
  }
}

// The tokens of the entry are reserved, not yet part of kv_->tokens().
Draw Engine::draw(const StepEntry& entry, size_t n_appended, std::span<const float> logits) {
  return sampler_.draw(logits, samplings_[static_cast<size_t>(entry.seq_id)],
                       kv_->tokens(entry.seq_id), entry.tokens.first(n_appended));
}

std::optional<Draw> Engine::outcome(std::span<const StepEntry> entries, size_t index, size_t offset,
                                    std::span<const float> logits) {
  const StepEntry& entry = entries[index];
  const size_t n_after = entry.tokens.size() - 1 - offset;
  if (!entry.targets.empty())
    return scored(logits, entry.targets[entry.targets.size() - 1 - n_after]);
  if (n_after < static_cast<size_t>(n_rejected_[index])) return std::nullopt;
  const Draw drawn = draw(entry, offset + 1, logits);
  if (n_after > 0 && (drawn.failure != nullptr || drawn.token != entry.tokens[offset + 1])) {
    n_rejected_[index] = static_cast<int32_t>(n_after);
  }
  return drawn;
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
  for (const StepEntry& entry : entries) n_draws += entry.asks() ? 1 : 0;
  std::vector<StepDraw> draws;
  draws.reserve(n_draws);
  std::ranges::fill(failures_, nullptr);
  run(entries, [&] {
    for_wanted_logits([&](size_t i, size_t offset, std::span<const float> logits) {
      const std::optional<Draw> drawn = outcome(entries, i, offset, logits);
      const StepEntry& entry = entries[i];
      if (!drawn) return;
      if (entry.wants_logits) {
        draws.push_back({.seq_id = entry.seq_id, .draw = *drawn});
      } else if (drawn->failure != nullptr) {
        failures_[i] = drawn->failure;
      } else {
        entry.logprobs[offset + entry.targets.size() - entry.tokens.size()] = drawn->logprob;
      }
    });
    pool(entries, [&](size_t i) {
      const std::span<const float> made(entries[i].embedding, pooled_.size());
      if (!all_finite(made)) failures_[i] = kStatesNotFinite;
    });
  });
  for (size_t i = 0; i < entries.size(); ++i) {
    statistics_.proposed_tokens += entries[i].n_draft;
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
    for_wanted_logits([&](size_t, size_t, std::span<const float> row) {
      check_finite(seq_id, "logits", row);
      std::copy(row.begin(), row.end(), logits);
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
    for_wanted_logits([&](size_t i, size_t, std::span<const float> row) {
      const Draw drawn = draw(entries[i], 1, row);
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
