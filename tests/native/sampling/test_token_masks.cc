// Masks: what the sampler may sample, and the gate that a step waits for.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "sampling/sampler.h"
#include "sampling/token_masks.h"

namespace pb::test {
namespace {

constexpr int kVocab = 300;  // not whole words

std::vector<float> some_logits(uint32_t seed) {
  std::vector<float> logits(kVocab);
  uint32_t state = seed * 2654435761u + 1;
  for (float& logit : logits) {
    state = state * 1664525u + 1013904223u;
    logit = static_cast<float>(state >> 8) * 0x1p-24f * 8.0f - 4.0f;
  }
  return logits;
}

// Allows about a third of all tokens.
std::vector<uint32_t> some_mask(uint32_t seed) {
  std::vector<uint32_t> mask(mask_words(kVocab));
  for (uint32_t token = 0; token < kVocab; ++token) {
    if ((token * 7 + seed * 13) % 3 == 0) mask[token / 32] |= 1u << token % 32;
  }
  return mask;
}

// What a sample under the mask has to be: the others' logits are so low that they weigh nothing.
Sampling with_bias_against_the_others(Sampling s, const std::vector<uint32_t>& mask) {
  for (int32_t token = 0; token < kVocab; ++token) {
    if (!is_allowed(mask.data(), static_cast<size_t>(token))) {
      s.logit_bias.emplace_back(token, -1000.0f);
    }
  }
  return s;
}

TEST(only_tokens_of_the_mask_are_drawn_and_those_that_a_bias_would_give) {
  Sampler sampler(kVocab);
  const std::vector<int32_t> history = {5, 9, 5, 30};
  for (uint32_t seed = 0; seed < 40; ++seed) {
    Sampling s;
    s.seed = seed;
    s.temperature = seed % 4 == 0 ? 0.0 : 0.3 * seed;
    s.top_k = seed % 5 == 1 ? 20 : 0;
    s.top_p = seed % 5 == 2 ? 0.7 : 1.0;
    s.min_p = seed % 5 == 3 ? 0.1 : 0.0;
    s.repetition_penalty = seed % 2 == 0 ? 1.0 : 1.4;
    s.wants_logprobs = seed % 3 == 0;
    const auto logits = some_logits(seed);
    const auto mask = some_mask(seed);
    const Sample sample = sampler.sample(logits, s, history, {}, mask.data());
    const Sample expected =
        sampler.sample(logits, with_bias_against_the_others(s, mask), history, {});
    EXPECT(sample.failure == nullptr);
    EXPECT_EQ(sample.token, expected.token);
    EXPECT(is_allowed(mask.data(), static_cast<size_t>(sample.token)));
    EXPECT_EQ(sample.logprob, expected.logprob);  // the model's own
  }
}

TEST(a_mask_of_all_tokens_changes_nothing) {
  Sampler sampler(kVocab);
  const std::vector<uint32_t> all(mask_words(kVocab), ~0u);
  Sampling s;
  s.temperature = 1.0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    s.seed = seed;
    const auto logits = some_logits(seed);
    EXPECT_EQ(sampler.sample(logits, s, {}, {}, all.data()).token,
              sampler.sample(logits, s, {}, {}).token);
  }
}

TEST(where_nothing_is_left_the_draw_fails) {
  Sampler sampler(kVocab);
  std::vector<uint32_t> mask(mask_words(kVocab));
  const auto logits = some_logits(1);
  EXPECT_EQ(std::string(sampler.sample(logits, {}, {}, {}, mask.data()).failure),
            std::string(kAllForbidden));
  mask[9] = 1u << 11;  // token 299, the last one
  EXPECT_EQ(sampler.sample(logits, {}, {}, {}, mask.data()).token, 299);
  Sampling s;
  s.min_tokens = 5;
  s.stop_token_ids = {299};
  EXPECT_EQ(std::string(sampler.sample(logits, s, {}, {}, mask.data()).failure),
            std::string(kAllForbidden));
}

TEST(a_step_waits_until_the_gate_is_open_and_sees_what_was_written) {
  TokenMasks masks(3, kVocab);
  EXPECT_EQ(masks.n_rows(), size_t{3});
  EXPECT_EQ(masks.row_bytes(), size_t{40});
  masks.wait();  // it is open at first
  for (uint32_t round = 1; round < 200; ++round) {
    masks.close();
    std::thread writer([&] {
      masks.data()[10] = round;
      masks.open();
    });
    masks.wait();
    EXPECT_EQ(masks.row(1)[0], round);
    writer.join();
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
