// Implements the calls of Engine that compute.

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/reservation.h"
#include "sampling/finite.h"

namespace pb {
namespace {

constexpr const char* kStatesNotFinite = "the model's states are not all finite";

void check_finite(int seq_id, const char* what, std::span<const float> values, DType dtype) {
  if (all_finite(values)) return;
  const char* const way_out = dtype == DType::kF32 ? "" : ", or load it with dtype='f32'";
  throw Error(ErrorCode::kEngine, "sequence " + std::to_string(seq_id) + ": the model's " + what +
                                      " are not all finite; check the checkpoint" + way_out);
}

}  // namespace

template <typename OnTile>
void Engine::run(std::span<const StepEntry> entries, LogitsUse use, OnTile on_tile) {
  check_entries(entries);
  std::fill_n(n_rejected_.begin(), entries.size(), 0);
  Reservation reservation(*kv_, entries);
  EngineStatistics added{.forward_passes = 1};
  splitter_.start(entries, *kv_);
  while (splitter_.next()) {
    RowBatch batch = splitter_.batch();
    if (use.samples) batch.requests = requests_of(entries);
    backend_->plan(batch, model_kv_.storages.front());
    const size_t n_wanted = splitter_.wanted().size();
    const PassRows rows{batch.n_rows, static_cast<int>(n_wanted)};
    const auto operations = [&](PassRows given) {
      forward_.run(given.n_rows, model_kv_, !batch.given.empty());
      if (use.masks != nullptr) use.masks->wait();
      compute_logits(static_cast<size_t>(given.n_logits_rows), use);
    };
    // The backend may replay a pass (run_pass) without calling `operations`, so a pass that
    // downloads logits, waits for masks or has given rows calls them directly.
    if (use.out == nullptr && use.masks == nullptr && batch.given.empty()) {
      backend_->run_pass(rows, std::span(samples_).first(n_wanted), operations);
    } else {
      operations(rows);
    }
    backend_->finish(*forward_.heartbeat());
    if (use.out != nullptr) use.out += n_wanted * static_cast<size_t>(config_.vocab_size);
    added.computed_tokens += batch.n_rows;
    added.logits_rows += static_cast<int64_t>(n_wanted);
    on_tile();
  }
  reservation.commit(n_rejected_);
  statistics_.forward_passes += added.forward_passes;
  statistics_.computed_tokens += added.computed_tokens;
  statistics_.logits_rows += added.logits_rows;
}

// The tokens of an entry are reserved and therefore not yet in kv_->tokens().
std::span<const SampleRequest> Engine::requests_of(std::span<const StepEntry> entries) {
  requests_.clear();
  const UbatchRows& wanted = splitter_.wanted();
  for (size_t row = 0; row < wanted.size(); ++row) {
    const StepEntry& entry = entries[static_cast<size_t>(wanted.entries[row])];
    const size_t n_appended = static_cast<size_t>(wanted.offsets[row]) + 1;
    const size_t n_after = entry.tokens.size() - n_appended;
    SampleRequest& request = requests_.emplace_back();
    if (!entry.wants_logits) {
      request.target = entry.targets[entry.targets.size() - n_after - 1];
      request.n_top = entry.n_top;
    } else {
      request.sampling = &samplings_[static_cast<size_t>(entry.seq_id)];
      request.history = kv_->tokens(entry.seq_id);
      request.appended = entry.tokens.first(n_appended);
      if (n_after > 0) request.draft = entry.tokens[n_appended];
      if (entry.masks != nullptr) {
        const size_t wanted = entry.n_wanted() - n_after - 1;
        request.mask = entry.masks + wanted * mask_words(config_.vocab_size);
      }
    }
  }
  return requests_;
}

void Engine::compute_logits(size_t n_rows, LogitsUse use) {
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  const auto at_once = static_cast<size_t>(forward_.output_rows());
  for (size_t first = 0; first < n_rows; first += at_once) {
    const size_t n = std::min(at_once, n_rows - first);
    const Rows rows{Rows::Of::kLogitsRows, static_cast<int>(first), static_cast<int>(n)};
    const Buffer& logits = forward_.logits(rows.first, rows.n);
    if (use.out != nullptr) {
      backend_->download(logits,
                         std::as_writable_bytes(std::span(use.out + first * vocab, n * vocab)));
    }
    if (!use.samples) continue;
    backend_->sample(logits, rows, std::span(samples_).first(n_rows));
    forward_.heartbeat()->beat();
  }
}

template <typename OnSample>
void Engine::for_samples(std::span<const StepEntry> entries, OnSample on_sample) {
  const UbatchRows& wanted = splitter_.wanted();
  for (size_t row = 0; row < wanted.size(); ++row) {
    const auto index = static_cast<size_t>(wanted.entries[row]);
    const auto offset = static_cast<size_t>(wanted.offsets[row]);
    const size_t n_after = entries[index].tokens.size() - offset - 1;
    if (n_after < static_cast<size_t>(n_rejected_[index])) continue;
    const SampleRequest& request = requests_[row];
    const bool is_wrong = request.draft != kNoToken && !confirms_draft(samples_[row], request);
    if (is_wrong) n_rejected_[index] = static_cast<int32_t>(n_after);
    on_sample(index, offset, samples_[row]);
  }
}

// Adds rows one by one, in order of position and in double, so that the result does not depend on
// the ubatches. All rows of one entry come before those of the next, so one sum is enough.
template <typename OnPooled>
void Engine::pool(std::span<const StepEntry> entries, OnPooled on_pooled) {
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  const UbatchRows& pooled = splitter_.pooled();
  const auto at_once = static_cast<size_t>(forward_.output_rows());
  for (size_t begin = 0; begin < pooled.size(); begin += at_once) {
    const size_t n = std::min(at_once, pooled.size() - begin);
    const Activations& states = forward_.hidden(static_cast<int>(begin), static_cast<int>(n));
    const auto stride = static_cast<size_t>(states.row_stride);
    backend_->download(states.data, std::as_writable_bytes(std::span(states_).first(n * stride)));
    backend_->finish(*forward_.heartbeat());
    for (size_t r = 0; r < n; ++r) {
      const auto index = static_cast<size_t>(pooled.entries[begin + r]);
      const StepEntry& entry = entries[index];
      const auto offset = static_cast<size_t>(pooled.offsets[begin + r]);
      if (offset == entry.first_pooled()) std::ranges::fill(pooled_, 0.0);
      const float* state = states_.data() + r * stride;
      for (size_t c = 0; c < hidden; ++c) pooled_[c] += double{state[c]};
      if (offset + 1 < entry.end_pooled()) continue;
      const auto divisor = static_cast<double>(entry.end_pooled() - entry.first_pooled());
      for (size_t c = 0; c < hidden; ++c)
        entry.embedding[c] = static_cast<float>(pooled_[c] / divisor);
      on_pooled(index);
    }
  }
}

std::vector<StepSample> Engine::step(std::span<const StepEntry> entries, const TokenMasks* masks) {
  size_t n_samples = 0;
  for (const StepEntry& entry : entries) n_samples += entry.wants_logits ? entry.n_wanted() : 0;
  for (const StepEntry& entry : entries) n_samples += entry.wants_scores_or_embedding() ? 1 : 0;
  std::vector<StepSample> samples;
  samples.reserve(n_samples);
  std::ranges::fill(failures_, nullptr);
  run(entries, {.samples = true, .masks = masks}, [&] {
    for_samples(entries, [&](size_t i, size_t offset, const Sample& sampled) {
      const StepEntry& entry = entries[i];
      if (entry.wants_logits) {
        samples.push_back({.seq_id = entry.seq_id, .sample = sampled});
      } else if (sampled.failure != nullptr) {
        failures_[i] = sampled.failure;
      } else {
        const size_t at = offset + entry.targets.size() - entry.tokens.size();
        entry.logprobs[at] = sampled.logprob;
        const auto n_top = static_cast<size_t>(entry.n_top);
        std::copy_n(sampled.top.begin(), sampled.n_top, entry.top + at * n_top);
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
  statistics_.sampled_tokens += std::ranges::count_if(
      samples, [](const StepSample& d) { return d.sample.failure == nullptr; });
  for (size_t i = 0; i < entries.size(); ++i) {
    if (failures_[i] == nullptr) continue;
    samples.push_back({.seq_id = entries[i].seq_id, .sample = {.failure = failures_[i]}});
  }
  return samples;
}

void Engine::prefill_chunk(int seq_id, std::span<const int32_t> tokens, float* logits) {
  const std::array entries = {
      StepEntry{.seq_id = seq_id, .tokens = tokens, .wants_logits = logits != nullptr}};
  run(entries, {.out = logits}, [&] {
    if (splitter_.wanted().size() == 0) return;
    check_finite(seq_id, "logits", {logits, static_cast<size_t>(config_.vocab_size)},
                 options_.dtype);
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
  run(entries, {.samples = true, .out = logits}, [&] {
    for_samples(entries, [&](size_t i, size_t, const Sample& sampled) {
      if (sampled.failure != nullptr) {
        throw Error(ErrorCode::kEngine, "sequence " + std::to_string(entries[i].seq_id) + ": " +
                                            sampled.failure + "; take it out of the batch");
      }
      next_tokens[i] = sampled.token;
    });
  });
  statistics_.sampled_tokens += static_cast<int64_t>(seq_ids.size());
}

void Engine::embed(int seq_id, std::span<const int32_t> tokens, Pooling pooling, float* embedding) {
  const std::array entries = {
      StepEntry{.seq_id = seq_id, .tokens = tokens, .pooling = pooling, .embedding = embedding}};
  run(entries, {}, [&] {
    pool(entries, [&](size_t) {
      check_finite(seq_id, "states", {embedding, pooled_.size()}, options_.dtype);
    });
  });
}

}  // namespace pb
