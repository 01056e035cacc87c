#include "engine/engine.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/finite.h"
#include "engine/reservation.h"

namespace pb {
namespace {

const ModelConfig& checked(const ModelConfig& config, const EngineOptions& options) {
  config.validate();
  options.validate();
  return config;
}

int blocks_of(const EngineOptions& options) {
  return (options.n_ctx + options.block_size - 1) / options.block_size;
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidRequest, message);
}

void check_draft(const StepEntry& entry) {
  const auto n_tokens = static_cast<int64_t>(entry.tokens.size());
  const int64_t most = entry.wants_logits ? n_tokens - 1 : 0;
  if (entry.n_draft < 0 || entry.n_draft > most) {
    refuse("n_draft of sequence " + std::to_string(entry.seq_id) + " is " +
           std::to_string(entry.n_draft) + "; of its " + std::to_string(n_tokens) +
           " tokens it must be 0 to " + std::to_string(most) +
           (entry.wants_logits ? " (the first is no guess)" : " (it samples nothing)"));
  }
}

void check_finite(int seq_id, const char* what, std::span<const float> values) {
  if (all_finite(values)) return;
  throw Error(ErrorCode::kEngine, "sequence " + std::to_string(seq_id) + ": the model's " + what +
                                      " are not all finite; check the checkpoint, or load it "
                                      "with dtype='f32'");
}

}  // namespace

Engine::Engine(ModelConfig config, const TensorMap& tensors, const EngineOptions& options,
               std::unique_ptr<Backend> backend, const LoadOptions& load)
    : config_(checked(config, options)),
      options_(options),
      backend_(std::move(backend)),
      weights_(load_weights(config_, tensors, options.dtype, *backend_, load)),
      kv_storage_(backend_->make_kv(blocks_of(options), options.block_size, config_.n_layers,
                                    config_.n_kv_heads, config_.head_dim, options.kv_dtype)),
      kv_(empty_kv()),
      forward_(config_, weights_, *backend_, options.n_ubatch, kv_->max_length()),
      sampler_(config_.vocab_size),
      tiler_(options.n_ubatch),
      samplings_(static_cast<size_t>(options.n_parallel)),
      in_step_(static_cast<size_t>(options.n_parallel)),
      n_rejected_(static_cast<size_t>(options.n_parallel)) {
  options_.n_ctx = blocks_of(options) * options.block_size;
}

std::unique_ptr<KvCache> Engine::empty_kv() {
  const int n_blocks = blocks_of(options_);
  return std::make_unique<KvCache>(
      n_blocks, options_.block_size, options_.n_parallel,
      std::min(config_.max_position_embeddings, n_blocks * options_.block_size),
      [this](int from, int to) { backend_->copy_page(kv_storage_, from, to); });
}

// What may be wrong is made anew, not mended. Keys and values need no wiping: nothing reads a page
// that was not written since it was taken.
void Engine::restart() {
  auto kv = empty_kv();
  Sampler sampler(config_.vocab_size);
  kv_ = std::move(kv);
  sampler_ = std::move(sampler);
  std::ranges::fill(in_step_, uint8_t{0});
}

int Engine::seq_new(std::string_view name_space) {
  const int seq_id = kv_->seq_new(name_space);
  samplings_[static_cast<size_t>(seq_id)] = Sampling{};
  return seq_id;
}

void Engine::seq_copy(int src, int dst, int n_tokens) { kv_->seq_copy(src, dst, n_tokens); }

void Engine::seq_remove(int seq_id, int start, int end) { kv_->seq_remove(seq_id, start, end); }

int Engine::seq_length(int seq_id) const { return kv_->seq_length(seq_id); }

int Engine::seq_exclusive_blocks(int seq_id) const { return kv_->seq_exclusive_pages(seq_id); }

int Engine::seq_match(int seq_id, std::span<const int32_t> tokens) {
  check_tokens(tokens);
  return kv_->seq_match(seq_id, tokens);
}

void Engine::seq_sampling(int seq_id, std::optional<Sampling> sampling) {
  check_sequence(seq_id);
  Sampling chosen = sampling ? std::move(*sampling) : Sampling{};
  chosen.validate(config_.vocab_size);
  samplings_[static_cast<size_t>(seq_id)] = std::move(chosen);
}

void Engine::check_sequence(int seq_id) const {
  if (!kv_->seq_exists(seq_id)) {
    refuse("seq_id is " + std::to_string(seq_id) +
           "; it must be a sequence that seq_new gave and seq_remove has not freed");
  }
}

void Engine::check_tokens(std::span<const int32_t> tokens) const {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= config_.vocab_size) {
      refuse("tokens[" + std::to_string(i) + "] is " + std::to_string(tokens[i]) +
             "; it must be a token id from 0 to " + std::to_string(config_.vocab_size - 1));
    }
  }
}

void Engine::check_entries(std::span<const StepEntry> entries) {
  if (entries.empty()) refuse("the step has no entries; it must have one or more");
  for (const StepEntry& entry : entries) {
    check_sequence(entry.seq_id);
    if (entry.tokens.empty()) {
      refuse("the tokens of sequence " + std::to_string(entry.seq_id) +
             " are empty; there must be one or more");
    }
    check_tokens(entry.tokens);
    check_draft(entry);
    const size_t length = static_cast<size_t>(kv_->seq_length(entry.seq_id)) + entry.tokens.size();
    if (length > static_cast<size_t>(max_sequence_length())) {
      throw Error(ErrorCode::kRequestTooLong,
                  "sequence " + std::to_string(entry.seq_id) + " would have " +
                      std::to_string(length) + " tokens; at most " +
                      std::to_string(max_sequence_length()) +
                      " fit (the smaller of the model's positions and n_ctx)");
    }
  }
  // Second, so that `in_step_` is only written with ids that exist, and always wiped.
  int duplicate = -1;
  for (const StepEntry& entry : entries) {
    if (in_step_[static_cast<size_t>(entry.seq_id)]++ == 1) duplicate = entry.seq_id;
  }
  for (const StepEntry& entry : entries) in_step_[static_cast<size_t>(entry.seq_id)] = 0;
  if (duplicate >= 0) {
    refuse("sequence " + std::to_string(duplicate) +
           " is named twice in one step; it must be named once, with all of its tokens");
  }
}

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
    added.logits_rows += static_cast<int64_t>(tiler_.wanted_rows().size());
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
  const std::span<const int32_t> rows = tiler_.wanted_rows();
  for (size_t begin = 0; begin < rows.size(); begin += Forward::kOutputRows) {
    const size_t n = std::min<size_t>(Forward::kOutputRows, rows.size() - begin);
    const float* logits = forward_.logits(rows.subspan(begin, n));
    for (size_t i = 0; i < n; ++i) {
      on_row(static_cast<size_t>(tiler_.wanted_entries()[begin + i]),
             static_cast<size_t>(tiler_.wanted_offsets()[begin + i]),
             std::span<const float>(logits + i * vocab, vocab));
    }
  }
}

// The tokens of the entry are reserved, not yet part of kv_->tokens().
Draw Engine::draw(const StepEntry& entry, size_t n_appended, std::span<const float> logits) {
  return sampler_.draw(logits, samplings_[static_cast<size_t>(entry.seq_id)],
                       kv_->tokens(entry.seq_id), entry.tokens.first(n_appended));
}

std::vector<StepDraw> Engine::step(std::span<const StepEntry> entries) {
  size_t n_wanted = 0;
  for (const StepEntry& entry : entries) n_wanted += entry.n_wanted();
  std::vector<StepDraw> draws;
  draws.reserve(n_wanted);
  run(entries, [&] {
    for_wanted_logits([&](size_t i, size_t offset, std::span<const float> logits) {
      const StepEntry& entry = entries[i];
      const size_t n_after = entry.tokens.size() - 1 - offset;
      const bool is_void = n_after < static_cast<size_t>(n_rejected_[i]);
      if (is_void) return;
      const Draw drawn = draw(entry, offset + 1, logits);
      if (n_after > 0 && (drawn.failure != nullptr || drawn.token != entry.tokens[offset + 1])) {
        n_rejected_[i] = static_cast<int32_t>(n_after);
      }
      draws.push_back({.seq_id = entry.seq_id, .draw = drawn});
    });
  });
  for (size_t i = 0; i < entries.size(); ++i) {
    statistics_.proposed_tokens += entries[i].n_draft;
    statistics_.accepted_tokens += entries[i].n_draft - n_rejected_[i];
  }
  statistics_.sampled_tokens +=
      std::ranges::count_if(draws, [](const StepDraw& d) { return d.draw.failure == nullptr; });
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
    refuse("tokens has " + std::to_string(tokens.size()) + " ids for " +
           std::to_string(seq_ids.size()) + " sequences; it must have one a sequence");
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
  const std::array entries = {StepEntry{.seq_id = seq_id, .tokens = tokens}};
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  std::vector<double> sum(hidden);  // row by row in order of position, however they are tiled
  std::vector<int32_t> rows;
  rows.reserve(Forward::kOutputRows);
  run(entries, [&] {
    const int n_rows = tiler_.batch().n_rows;
    for (int begin = 0; begin < n_rows; begin += Forward::kOutputRows) {
      rows.clear();
      for (int r = begin; r < std::min(n_rows, begin + Forward::kOutputRows); ++r)
        rows.push_back(r);
      const Activations& states = forward_.hidden(rows);
      for (size_t r = 0; r < rows.size(); ++r) {
        const auto offset = static_cast<int64_t>(r) * states.row_stride;
        const std::span<const float> state(states.data.as<float>() + offset, hidden);
        check_finite(seq_id, "states", state);
        for (size_t c = 0; c < hidden; ++c) {
          sum[c] = pooling == Pooling::kMean ? sum[c] + state[c] : state[c];
        }
      }
    }
  });
  const double divisor = pooling == Pooling::kMean ? static_cast<double>(tokens.size()) : 1.0;
  for (size_t c = 0; c < hidden; ++c) embedding[c] = static_cast<float>(sum[c] / divisor);
}

}  // namespace pb
