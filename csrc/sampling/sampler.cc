#include "sampling/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

#include "sampling/finite.h"
#include "sampling/rng.h"
#include "sampling/softmax.h"
#include "sampling/token_masks.h"

namespace pb {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();
constexpr const char* kNotFinite = "the model's logits for its next token are not all finite";

// Ranks tokens by descending score, then by ascending id. The order is computed lazily, only up to
// the requested rank. A 64-bit key sorts in this order: the upper half is the score in descending
// encoding, the lower half is the token id.
class RankedTokens {
 public:
  // `largest` is the maximum of the scores. `temperature` determines the width of the bands of
  // scores that are gathered at a time. `keys` is scratch of scores.size() elements.
  RankedTokens(std::span<const float> scores, float largest, double temperature,
               std::span<uint64_t> keys)
      : scores_(scores),
        largest_(largest),
        temperature_(static_cast<float>(temperature)),
        keys_(keys) {}

  size_t size() const { return keys_.size(); }
  int32_t token(size_t rank) { return static_cast<int32_t>(key(rank) & 0xffffffffu); }
  float score(size_t rank) { return ascending(static_cast<uint32_t>(key(rank) >> 32)); }

 private:
  static constexpr uint32_t kSign = 0x80000000u;

  // Encodes a score as bits that sort in descending order of scores. Both zeros have the same
  // encoding.
  static uint32_t descending(float score) {
    const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
    return (bits & kSign) != 0 ? bits : ~(bits | kSign);
  }
  static float ascending(uint32_t bits) {
    return std::bit_cast<float>((bits & kSign) != 0 ? bits : ~(bits | kSign));
  }

  uint64_t key(size_t rank) {
    while (rank >= n_ranked_) {
      if (n_ranked_ == n_gathered_) {
        gather_band();
      } else {
        rank_more();
      }
    }
    return keys_[rank];
  }

  // Appends the keys of the next band of scores, which is below the previous band.
  void gather_band() {
    constexpr std::array kDepths = {4.0f, 8.0f,
                                    16.0f};  // e^-16 of the largest probability is negligible
    const float above = floor_;
    floor_ = n_bands_ < kDepths.size() ? largest_ - kDepths[n_bands_] * temperature_ : kForbidden;
    const bool is_first = n_bands_++ == 0;
    for (size_t id = 0; id < scores_.size(); ++id) {
      if (scores_[id] >= floor_ && (is_first || scores_[id] < above)) {
        keys_[n_gathered_++] = uint64_t{descending(scores_[id])} << 32 | static_cast<uint32_t>(id);
      }
    }
  }

  void rank_more() {
    constexpr size_t kFirst = 64;
    constexpr size_t kGrowth = 8;
    const size_t until = std::min(n_gathered_, std::max(n_ranked_ + kFirst, n_ranked_ * kGrowth));
    const auto at = [this](size_t i) { return keys_.begin() + static_cast<std::ptrdiff_t>(i); };
    if (until < n_gathered_) std::nth_element(at(n_ranked_), at(until), at(n_gathered_));
    std::sort(at(n_ranked_), at(until));
    n_ranked_ = until;
  }

  std::span<const float> scores_;
  float largest_;
  float temperature_;
  std::span<uint64_t> keys_;
  float floor_ = 0.0f;     // lower bound of the scores gathered so far
  size_t n_bands_ = 0;     // bands gathered so far
  size_t n_gathered_ = 0;  // leading keys that are gathered
  size_t n_ranked_ = 0;    // leading keys that are sorted
};

int32_t sample_random(std::span<const float> scores, float largest, const Sampling& sampling,
                      double u, std::span<uint64_t> scratch) {
  const Weight weight(largest, sampling.temperature);
  RankedTokens ranked(scores, largest, sampling.temperature, scratch);
  const auto weight_of = [&](size_t rank) { return double{weight(ranked.score(rank))}; };
  // top-k keeps the first n_kept ranks, whose total weight is `mass`.
  size_t n_kept = ranked.size();
  double mass = 0.0;
  if (sampling.top_k > 0 && static_cast<size_t>(sampling.top_k) < n_kept) {
    n_kept = static_cast<size_t>(sampling.top_k);
    for (size_t rank = 0; rank < n_kept; ++rank) mass += weight_of(rank);
  } else {
    mass = total_weight(scores, weight);
  }
  // top-p and min-p keep a prefix of these ranks. The first rank always stays, because its weight
  // is 1.
  if (sampling.top_p < 1.0 || sampling.min_p > 0.0) {
    const double nucleus =
        sampling.top_p < 1.0 ? sampling.top_p * mass : std::numeric_limits<double>::infinity();
    double before = 0.0;
    size_t rank = 0;
    for (; rank < n_kept && before < nucleus; ++rank) {
      const double w = weight_of(rank);
      if (w == 0.0 || w < sampling.min_p) break;
      before += w;
    }
    n_kept = rank;
    mass = before;
  }
  const double target = u * mass;
  double until = 0.0;
  int32_t token = ranked.token(0);
  for (size_t rank = 0; rank < n_kept; ++rank) {
    const double w = weight_of(rank);
    if (w == 0.0) break;  // all later weights are 0 too; rounding left `until` <= `target`
    token = ranked.token(rank);
    until += w;
    if (until > target) break;
  }
  return token;
}

bool changes_scores(const Sampling& s, int64_t n_sampled) {
  return s.repetition_penalty != 1.0 || s.presence_penalty != 0.0 || s.frequency_penalty != 0.0 ||
         !s.logit_bias.empty() || (n_sampled < s.min_tokens && !s.stop_token_ids.empty());
}

// Forbids the tokens that the mask excludes.
void keep_allowed(const uint32_t* mask, std::span<float> scores) {
  for (size_t first = 0; first < scores.size(); first += 32) {
    const uint32_t word = mask[first / 32];
    if (word == ~0u) continue;
    const size_t n = std::min<size_t>(32, scores.size() - first);
    for (size_t i = 0; i < n; ++i) {
      if ((word >> i & 1u) == 0) scores[first + i] = kForbidden;
    }
  }
}

}  // namespace

Sampler::Sampler(int vocab_size)
    : scores_(static_cast<size_t>(vocab_size)),
      ranking_(static_cast<size_t>(vocab_size)),
      counts_(static_cast<size_t>(vocab_size)),
      seen_(static_cast<size_t>(vocab_size)) {}

Sample Sampler::sample(std::span<const float> logits, const Sampling& sampling,
                       std::span<const int32_t> history, std::span<const int32_t> appended,
                       const uint32_t* mask) {
  Sample sample;
  if (!all_finite(logits)) {
    sample.failure = kNotFinite;
    return sample;
  }
  const uint64_t position = history.size() + appended.size();
  const int64_t n_sampled = static_cast<int64_t>(position) - sampling.n_prompt;
  std::span<const float> scores = logits;
  if (mask != nullptr || changes_scores(sampling, n_sampled)) {
    std::copy(logits.begin(), logits.end(), scores_.begin());
    for (const auto& [token, bias] : sampling.logit_bias) score(token) += bias;
    penalise(sampling, history, appended);
    if (n_sampled < sampling.min_tokens) {
      for (int32_t token : sampling.stop_token_ids) score(token) = kForbidden;
    }
    if (mask != nullptr) keep_allowed(mask, scores_);
    scores = scores_;
  }
  const int32_t likeliest = argmax(scores);
  const float largest = scores[static_cast<size_t>(likeliest)];
  if (largest == kForbidden) {
    sample.failure = kAllForbidden;
    return sample;
  }
  sample.token =
      sampling.temperature == 0.0
          ? likeliest
          : sample_random(scores, largest, sampling, uniform(sampling.seed, position), ranking_);
  if (sampling.wants_logprobs) note_logprobs(logits, sampling.top_logprobs, sample);
  return sample;
}

Sample Sampler::scored(std::span<const float> logits, int32_t token, int n_top) {
  Sample sample;
  sample.token = token;
  if (!all_finite(logits)) {
    sample.failure = kNotFinite;
  } else {
    note_logprobs(logits, n_top, sample);
  }
  return sample;
}

void Sampler::penalise(const Sampling& sampling, std::span<const int32_t> history,
                       std::span<const int32_t> appended) {
  const size_t n_tokens = history.size() + appended.size();
  const auto token_at = [&](size_t i) {
    return i < history.size() ? history[i] : appended[i - history.size()];
  };
  const auto index = [](int32_t token) { return static_cast<size_t>(token); };
  // Ids of image rows are above the vocabulary.
  const auto is_token = [&](int32_t token) { return index(token) < seen_.size(); };
  const auto repetition = sampling.repetition_factor();
  if (repetition != 1.0f) {
    for (size_t i = 0; i < n_tokens; ++i) {
      const int32_t token = token_at(i);
      if (!is_token(token) || seen_[index(token)]) continue;
      seen_[index(token)] = 1;
      score(token) = score(token) > 0.0f ? score(token) / repetition : score(token) * repetition;
    }
    for (size_t i = 0; i < n_tokens; ++i) {
      if (is_token(token_at(i))) seen_[index(token_at(i))] = 0;
    }
  }
  if (sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0) {
    const size_t first = std::min(n_tokens, static_cast<size_t>(sampling.n_prompt));
    for (size_t i = first; i < n_tokens; ++i) {
      if (is_token(token_at(i))) ++counts_[index(token_at(i))];
    }
    for (size_t i = first; i < n_tokens; ++i) {
      const int32_t token = token_at(i);
      if (!is_token(token)) continue;
      int32_t& count = counts_[index(token)];
      if (count == 0) continue;
      score(token) -=
          static_cast<float>(sampling.presence_penalty + sampling.frequency_penalty * count);
      count = 0;
    }
  }
}

void Sampler::note_logprobs(std::span<const float> logits, int n_top, Sample& sample) {
  const LogSoftmax logprob(logits);
  RankedTokens ranked(logits, logprob.largest(), 1.0, ranking_);
  sample.has_logprobs = true;
  sample.logprob = logprob(sample.token);
  sample.n_top = static_cast<int>(std::min(static_cast<size_t>(n_top), ranked.size()));
  for (int i = 0; i < sample.n_top; ++i) {
    const int32_t token = ranked.token(static_cast<size_t>(i));
    sample.top[static_cast<size_t>(i)] = {token, logprob(token)};
  }
}

}  // namespace pb
