// The request to sample or score a row of logits, and its result.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "sampling/sampling.h"

namespace pb {

inline constexpr int32_t kNoToken = -1;

// The failure text if every token is forbidden.
inline constexpr const char* kAllForbidden =
    "min_tokens and stop_token_ids, and the form where the output has one, forbid every token of "
    "the vocabulary";

// A request to sample a token from a row of logits, or to score a given token.
struct SampleRequest {
  const Sampling* sampling = nullptr;      // sampling parameters; null: `target` is scored
  std::span<const int32_t> history = {};   // the sequence's tokens before the step
  std::span<const int32_t> appended = {};  // the sequence's tokens in the step, up to the row
  // The draft token after the row, or kNoToken. If there is one, the next request is for the row of
  // the draft token.
  int32_t draft = kNoToken;
  int32_t target = kNoToken;       // the token to score
  int n_top = 0;                   // 0..kMaxLogprobs: most likely tokens to report
  const uint32_t* mask = nullptr;  // (mask_words(vocab)): allowed tokens; null: all
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.0f;
};

// The result of a request. If no token could be sampled or scored, `failure` explains why.
struct Sample {
  const char* failure = nullptr;
  int32_t token = 0;
  bool has_logprobs = false;
  float logprob = 0.0f;                          // log-probability of `token`, if has_logprobs
  int n_top = 0;                                 // used entries of `top`
  std::array<TokenLogprob, kMaxLogprobs> top{};  // most likely first; ties: lower id first
};

// Returns true if the sample accepts the draft token of its request.
inline bool confirms_draft(const Sample& sample, const SampleRequest& request) {
  return sample.failure == nullptr && sample.token == request.draft;
}

}  // namespace pb
