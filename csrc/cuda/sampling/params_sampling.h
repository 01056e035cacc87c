// Parameters and results of sampling on the device. All pointers are to device memory.
#pragma once

#include <cstdint>

namespace pb::cuda {

inline constexpr int kMostSampledVocab = 1 << 19;  // ids fit 20 bits of a key, masses 63
inline constexpr int kMostTopTokens = 32;
inline constexpr unsigned kSampleThreads = 512;

// A mass of probability is a whole number of units of 2^-44: a weight exp((score - largest) /
// temperature) <= 1, truncated. So sums are exact, in any order, and below 2^63. A weight of 2^-20
// or more loses no bit of its f32. The whole vocabulary loses less than 2^19 * 2^-44 = 2^-25 of the
// likeliest token's weight: half a unit in the last place of that weight.
inline constexpr int kMassBits = 44;

// Probabilities and uniform numbers that masses are multiplied by are in units of 2^-53.
inline constexpr int kFractionBits = 53;

// The change of one token's score before sampling: score + bias, then the repetition penalty if
// `is_seen`, then - penalty; -inf if `is_forbidden`.
struct ScoreChange {
  int32_t token = 0;
  float bias = 0.0f;
  float penalty = 0.0f;  // presence and frequency
  uint8_t is_seen = 0;
  uint8_t is_forbidden = 0;
};

// The sampling parameters of one row.
struct RowSampling {
  int32_t first_change = 0;  // offset in `changes`
  int32_t n_changes = 0;     // each token at most once
  float repetition_penalty = 1.0f;
  float inverse_temperature = 0.0f;  // 0 = greedy
  float min_p = 0.0f;                // relative to the likeliest token's weight; 0 = all
  int32_t top_k = 0;                 // 0 = all
  uint64_t top_p = 0;                // units of 2^-53, 1 or more; 2^53 = all
  uint64_t uniform = 0;              // units of 2^-53, less than 2^53
  int32_t target = -1;               // token to score; -1 = sample one
  int32_t wants_logprobs = 0;        // 0 or 1
  int32_t n_top = 0;                 // 0..kMostTopTokens, if wants_logprobs
};

enum SampledStatus : int32_t {
  kSampled = 0,
  kLogitsNotFinite = 1,
  kAllForbidden = 2,
};

struct ScoreRange {
  float largest;
  float smallest;
};

// The result of one row. The host computes log-probabilities from it: logit - logits.largest -
// log(mass).
struct SampledRow {
  int32_t status;  // SampledStatus; the members below are set if it is kSampled
  int32_t token;
  float logit;        // of `token`, before changes
  ScoreRange logits;  // range before changes
  ScoreRange scores;  // range after changes, without -inf
  int32_t n_top;      // entries of top_tokens and top_logits
  uint64_t mass;      // sum of exp(logit - logits.largest), units of 2^-44; if wants_logprobs
  int32_t top_tokens[kMostTopTokens];  // likeliest first; among equals the lowest id first
  float top_logits[kMostTopTokens];    // before changes
};

// One block handles a row.
struct SampleParams {
  const float* logits = nullptr;      // (n_rows, vocab)
  int vocab = 0;                      // 1..kMostSampledVocab
  const RowSampling* rows = nullptr;  // (n_rows)
  const ScoreChange* changes = nullptr;
  float* scores = nullptr;        // (n_rows, vocab): scratch for rows with changes
  SampledRow* sampled = nullptr;  // (n_rows)
};

}  // namespace pb::cuda
