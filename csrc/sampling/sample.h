// The request to sample or score a row of logits, and its result.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "sampling/sampling.h"

namespace pb {

inline constexpr int32_t kNoToken = -1;

// The failure if no token may be chosen.
inline constexpr const char* kAllForbidden =
    "min_tokens and stop_token_ids, and the form where the output has one, forbid every token of "
    "the vocabulary";

// Asks for a token, or for the log-probability of one.
struct SampleRequest {
  const Sampling* sampling = nullptr;      // how a token is sampled; null: `target` is scored
  std::span<const int32_t> history = {};   // the sequence's tokens before the step
  std::span<const int32_t> appended = {};  // its tokens in the step, up to the row
  // The draft token after the row, if there is one; then the next request is the row of that token.
  int32_t draft = kNoToken;
  int32_t target = kNoToken;       // the token to score
  int n_top = 0;                   // 0..kMaxLogprobs: likeliest tokens to report beside the target
  const uint32_t* mask = nullptr;  // (mask_words(vocab)): tokens that may be sampled; null: all
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.0f;
};

// The result of a request. If there is no token, `failure` is the reason in words.
struct Sample {
  const char* failure = nullptr;
  int32_t token = 0;
  bool has_logprobs = false;
  float logprob = 0.0f;                          // of `token`; where has_logprobs
  int n_top = 0;                                 // entries of `top`
  std::array<TokenLogprob, kMaxLogprobs> top{};  // likeliest first, of equals the lowest id first
};

// Returns true if the sample accepts the draft token of its request.
inline bool confirms_draft(const Sample& sample, const SampleRequest& request) {
  return sample.failure == nullptr && sample.token == request.draft;
}

}  // namespace pb
