#include "sampling/sampling.h"

#include <string>

#include "base/error.h"

namespace pb {
namespace {

[[noreturn]] void refuse(const std::string& field, const std::string& value,
                         const std::string& wanted) {
  throw Error(ErrorCode::kInvalidRequest, field + " is " + value + "; it must be " + wanted);
}

// Throws if the value is outside the range or NaN.
void check_range(const char* field, double value, double low, double high) {
  if (!(value >= low && value <= high)) {
    refuse(field, std::to_string(value),
           "a number from " + std::to_string(low) + " to " + std::to_string(high));
  }
}

void check_positive(const char* field, double value, double high) {
  if (!(value > 0.0 && value <= high)) {
    refuse(field, std::to_string(value), "a number above 0 and at most " + std::to_string(high));
  }
}

void check_not_negative(const char* field, int value) {
  if (value < 0) refuse(field, std::to_string(value), "0 or more");
}

void check_token(const char* field, int32_t token, int vocab_size) {
  if (token < 0 || token >= vocab_size) {
    refuse(field, "a list that holds " + std::to_string(token),
           "token ids from 0 to " + std::to_string(vocab_size - 1));
  }
}

}  // namespace

void Sampling::validate(int vocab_size) const {
  check_range("temperature", temperature, 0.0, 100.0);
  check_not_negative("top_k", top_k);
  check_positive("top_p", top_p, 1.0);
  check_range("min_p", min_p, 0.0, 1.0);
  check_positive("repetition_penalty", repetition_penalty, 100.0);
  check_range("presence_penalty", presence_penalty, -100.0, 100.0);
  check_range("frequency_penalty", frequency_penalty, -100.0, 100.0);
  check_not_negative("min_tokens", min_tokens);
  check_not_negative("n_prompt", n_prompt);
  check_range("logprobs", top_logprobs, 0, kMaxLogprobs);
  for (const auto& [token, bias] : logit_bias) {
    check_token("logit_bias", token, vocab_size);
    check_range("logit_bias", bias, -1000.0, 1000.0);
  }
  for (int32_t token : stop_token_ids) check_token("stop_token_ids", token, vocab_size);
}

}  // namespace pb
