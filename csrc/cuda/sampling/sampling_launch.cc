#include "cuda/sampling/sampling_launch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sampling/rng.h"
#include "sampling/token_masks.h"

namespace pb::cuda {
namespace {

static_assert(kMostTopTokens == kMaxLogprobs);

constexpr double kFractionOne = static_cast<double>(uint64_t{1} << kFractionBits);

bool changes_scores(const Sampling& s, int64_t n_sampled) {
  return s.repetition_penalty != 1.0 || s.presence_penalty != 0.0 || s.frequency_penalty != 0.0 ||
         !s.logit_bias.empty() || (n_sampled < s.min_tokens && !s.stop_token_ids.empty());
}

size_t n_tokens(const SamplingRequest& request) {
  return request.history.size() + request.appended.size();
}

int64_t n_sampled(const SamplingRequest& request) {
  return static_cast<int64_t>(n_tokens(request)) - request.sampling->n_prompt;
}

// Returns the smallest float that is not below `value`.
float rounded_up(double value) {
  const auto nearest = static_cast<float>(value);
  const bool is_below = double{nearest} < value;
  return is_below ? std::nextafter(nearest, std::numeric_limits<float>::infinity()) : nearest;
}

RowSampling scored_row(const SamplingRequest& request) {
  RowSampling row;
  row.target = request.target;
  row.n_top = request.n_top;
  row.wants_logprobs = 1;
  return row;
}

// Returns the row's parameters without its score changes.
RowSampling sampled_row(const SamplingRequest& request) {
  const Sampling& s = *request.sampling;
  RowSampling row;
  row.repetition_penalty = s.repetition_factor();
  row.wants_logprobs = s.wants_logprobs ? 1 : 0;
  row.n_top = s.wants_logprobs ? s.top_logprobs : 0;
  if (s.temperature == 0.0) return row;
  row.inverse_temperature = static_cast<float>(std::min(1.0 / s.temperature, 1e30));
  row.top_k = s.top_k;
  row.top_p = static_cast<uint64_t>(std::max(1.0, std::ceil(s.top_p * kFractionOne)));
  row.min_p = rounded_up(s.min_p);
  row.uniform = static_cast<uint64_t>(uniform(s.seed, n_tokens(request)) * kFractionOne);
  return row;
}

}  // namespace

SamplingBytes sampling_bytes(int vocab_size, int most_rows, size_t most_changes) {
  const auto rows = static_cast<size_t>(most_rows);
  return {.rows = rows * sizeof(RowSampling),
          .changes = most_changes * sizeof(ScoreChange),
          .scores = rows * static_cast<size_t>(vocab_size) * sizeof(float),
          .sampled = rows * sizeof(SampledRow)};
}

SamplingPlanner::SamplingPlanner(int vocab_size)
    : slots_(static_cast<size_t>(vocab_size)), counts_(static_cast<size_t>(vocab_size)) {}

PlannedRows SamplingPlanner::plan(std::span<const SamplingRequest> requests,
                                  std::span<RowSampling> rows, std::span<ScoreChange> changes) {
  PlannedRows planned;
  const size_t most = std::min(requests.size(), rows.size());
  for (size_t i = 0; i < most; ++i) {
    const SamplingRequest& request = requests[i];
    RowSampling row;
    if (request.target >= 0) {
      row = scored_row(request);
    } else {
      row = sampled_row(request);
      free_changes_ = changes.subspan(planned.n_changes);
      list_changes(request);
      if (is_full_) break;
      row.first_change = static_cast<int32_t>(planned.n_changes);
      row.n_changes = static_cast<int32_t>(n_changes_);
      planned.n_changes += n_changes_;
    }
    rows[i] = row;
    ++planned.n_rows;
    planned.is_random = planned.is_random || row.inverse_temperature > 0.0f;
    planned.wants_logprobs = planned.wants_logprobs || row.wants_logprobs != 0;
  }
  return planned;
}

ScoreChange& SamplingPlanner::change(int32_t token) {
  int32_t& slot = slots_[static_cast<size_t>(token)];
  if (slot == 0) {
    if (n_changes_ == free_changes_.size()) {
      is_full_ = true;
      return ignored_;
    }
    free_changes_[n_changes_] = {};
    free_changes_[n_changes_].token = token;
    slot = static_cast<int32_t>(++n_changes_);
  }
  return free_changes_[static_cast<size_t>(slot) - 1];
}

// If logit_bias contains a token more than once, its biases are added up first.
void SamplingPlanner::list_changes(const SamplingRequest& request) {
  const Sampling& s = *request.sampling;
  n_changes_ = 0;
  is_full_ = false;
  if (request.mask == nullptr && !changes_scores(s, n_sampled(request))) return;
  for (const auto& [token, bias] : s.logit_bias) change(token).bias += bias;
  penalise(request);
  if (n_sampled(request) < s.min_tokens) {
    for (const int32_t token : s.stop_token_ids) change(token).is_forbidden = 1;
  }
  if (request.mask != nullptr) {
    for (size_t token = 0; token < slots_.size(); ++token) {
      if (!is_allowed(request.mask, token)) change(static_cast<int32_t>(token)).is_forbidden = 1;
    }
  }
  for (const ScoreChange& listed : free_changes_.first(n_changes_)) {
    slots_[static_cast<size_t>(listed.token)] = 0;
  }
}

void SamplingPlanner::penalise(const SamplingRequest& request) {
  const Sampling& s = *request.sampling;
  const size_t n = n_tokens(request);
  const auto token_at = [&](size_t i) {
    return i < request.history.size() ? request.history[i]
                                      : request.appended[i - request.history.size()];
  };
  // Ids of image rows are above the vocabulary.
  const auto is_token = [&](int32_t token) { return static_cast<size_t>(token) < slots_.size(); };
  if (s.repetition_factor() != 1.0f) {
    for (size_t i = 0; i < n; ++i) {
      if (is_token(token_at(i))) change(token_at(i)).is_seen = 1;
    }
  }
  if (s.presence_penalty != 0.0 || s.frequency_penalty != 0.0) {
    const size_t first = std::min(n, static_cast<size_t>(s.n_prompt));
    for (size_t i = first; i < n; ++i) {
      if (is_token(token_at(i))) ++counts_[static_cast<size_t>(token_at(i))];
    }
    for (size_t i = first; i < n; ++i) {
      if (!is_token(token_at(i))) continue;
      int32_t& count = counts_[static_cast<size_t>(token_at(i))];
      if (count == 0) continue;
      change(token_at(i)).penalty =
          static_cast<float>(s.presence_penalty + s.frequency_penalty * count);
      count = 0;
    }
  }
}

SamplingLaunches sampling_launches(const PlannedRows& planned, const SampleParams& params) {
  SamplingLaunches all;
  // A block of a small vocabulary has no more threads than it has groups of four scores.
  constexpr unsigned kScoresPerWarp = 32 * 4;
  const unsigned n_warps =
      (static_cast<unsigned>(params.vocab) + kScoresPerWarp - 1) / kScoresPerWarp;
  const unsigned threads = std::min(kSampleThreads, 32 * n_warps);
  const auto add = [&](const char* kernel) {
    all.launches[all.n++] = {
        kernel, {.x = static_cast<unsigned>(planned.n_rows)}, threads, 0, params};
  };
  add("find_likeliest");
  if (planned.n_changes > 0) add("change_scores");
  if (planned.is_random) add("draw_tokens");
  if (planned.wants_logprobs) add("note_logprobs");
  return all;
}

Sample sample_of(const SampledRow& sampled, const RowSampling& row) {
  Sample sample;
  sample.token = std::max(row.target, 0);
  if (sampled.status == kLogitsNotFinite) {
    sample.failure = "the model's logits for its next token are not all finite";
    return sample;
  }
  if (sampled.status == kAllForbidden) {
    sample.failure = pb::kAllForbidden;
    return sample;
  }
  sample.token = sampled.token;
  if (!row.wants_logprobs) return sample;
  const double log_mass = std::log(std::ldexp(static_cast<double>(sampled.mass), -kMassBits));
  const auto logprob = [&](float logit) {
    return static_cast<float>(double{logit} - double{sampled.logits.largest} - log_mass);
  };
  sample.has_logprobs = true;
  sample.logprob = logprob(sampled.logit);
  sample.n_top = sampled.n_top;
  for (size_t i = 0; i < static_cast<size_t>(sampled.n_top); ++i) {
    sample.top[i] = {sampled.top_tokens[i], logprob(sampled.top_logits[i])};
  }
  return sample;
}

}  // namespace pb::cuda
