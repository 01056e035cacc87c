// The sampler on logits made by hand. Its agreement with a plain numpy reference on a model's
// logits is tests/test_sampling.py's part.
#include <cmath>
#include <limits>
#include <vector>

#include "check.h"
#include "sampling/fast_exp.h"
#include "sampling/sampler.h"

namespace pb::test {
namespace {

constexpr int kVocab = 300;

// Distinct logits, the largest at `top`, the next at top + 1, and so on.
std::vector<float> descending_from(int top, float step = 0.01f) {
  std::vector<float> logits(kVocab);
  for (int i = 0; i < kVocab; ++i) {
    logits[static_cast<size_t>((top + i) % kVocab)] = -step * static_cast<float>(i);
  }
  return logits;
}

// How often each token is sampled at positions 1..n.
std::vector<int> counts_of(Sampler& sampler, const std::vector<float>& logits, const Sampling& s,
                           int n) {
  std::vector<int> counts(logits.size());
  std::vector<int32_t> history;
  for (int i = 0; i < n; ++i) {
    history.push_back(0);
    ++counts[static_cast<size_t>(sampler.sample(logits, s, history, {}).token)];
  }
  return counts;
}

Sampling at_temperature(double temperature) {
  Sampling s;
  s.temperature = temperature;
  s.seed = 7;
  return s;
}

}  // namespace

TEST(exp_is_accurate_and_monotonic_where_it_matters) {
  EXPECT_EQ(exp_not_positive(0.0f), 1.0f);
  float previous = 1.0f;
  for (int i = 0; i <= 87000; ++i) {
    const float x = -0.001f * static_cast<float>(i);
    const float y = exp_not_positive(x);
    if (x > -87.0f) EXPECT(std::abs(y / std::exp(double{x}) - 1.0) < 2e-7);
    EXPECT(y <= previous);
    previous = y;
  }
  EXPECT_EQ(exp_not_positive(-87.5f), 0.0f);
  EXPECT_EQ(exp_not_positive(-std::numeric_limits<float>::infinity()), 0.0f);
}

TEST(greedy_takes_the_first_of_the_largest) {
  Sampler sampler(kVocab);
  auto logits = descending_from(40);
  logits[90] = logits[17] = logits[40];
  EXPECT_EQ(sampler.sample(logits, {}, {}, {}).token, 17);
}

TEST(logits_that_are_not_finite_fail) {
  Sampler sampler(kVocab);
  for (float bad : {NAN, INFINITY, -INFINITY}) {
    auto logits = descending_from(40);
    logits[3] = bad;
    EXPECT(sampler.sample(logits, {}, {}, {}).failure != nullptr);
    EXPECT(sampler.sample(logits, at_temperature(1), {}, {}).failure != nullptr);
  }
  EXPECT(sampler.sample(descending_from(40), {}, {}, {}).failure == nullptr);
}

TEST(top_k_keeps_k_and_of_equals_the_lowest_ids) {
  Sampler sampler(kVocab);
  Sampling s = at_temperature(50);
  s.top_k = 3;
  const std::vector<float> equal(kVocab, 1.5f);
  const auto counts = counts_of(sampler, equal, s, 600);
  for (size_t i = 0; i < counts.size(); ++i) EXPECT_EQ(counts[i] > 100, i < 3);
}

TEST(zeros_are_equal_whatever_their_sign) {
  Sampler sampler(3);
  Sampling s = at_temperature(50);
  s.top_k = 1;
  const std::vector<float> logits = {-1.0f, -0.0f, 0.0f};
  EXPECT_EQ(sampler.sample(logits, s, {}, {}).token, 1);
  EXPECT_EQ(sampler.sample(logits, {}, {}, {}).token, 1);
}

TEST(every_token_has_its_rank_however_unlikely) {
  Sampler sampler(kVocab);
  for (float step : {0.0f, 0.001f, 0.05f, 1.0f, 1e30f}) {
    const auto logits = descending_from(40, step);
    Sampling s;
    s.wants_logprobs = true;
    s.top_logprobs = kMaxLogprobs;
    const Sample sample = sampler.sample(logits, s, {}, {});
    for (int i = 0; i < kMaxLogprobs; ++i) {
      EXPECT_EQ(sample.top[static_cast<size_t>(i)].token, step == 0.0f ? i : 40 + i);
    }
    s = at_temperature(1e-3);
    s.top_k = kVocab - 1;  // ranks them all
    const auto counts = counts_of(sampler, logits, s, 20);
    EXPECT_EQ(counts[39] + (step > 0.01f ? 20 - counts[40] : 0), 0);
  }
}

TEST(top_p_keeps_the_fewest_that_reach_it) {
  Sampler sampler(4);
  const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.3f),
                                     std::log(0.2f)};
  const auto kept = [&](double top_p, int top_k) {
    Sampling s = at_temperature(1);
    s.top_p = top_p;
    s.top_k = top_k;
    std::vector<int> ids;
    const auto counts = counts_of(sampler, logits, s, 400);
    for (int i = 0; i < 4; ++i) {
      if (counts[static_cast<size_t>(i)] > 0) ids.push_back(i);
    }
    return ids;
  };
  EXPECT((kept(0.35, 0) == std::vector<int>{1}));
  EXPECT((kept(0.45, 0) == std::vector<int>{1, 2}));
  EXPECT((kept(0.75, 0) == std::vector<int>{1, 2, 3}));
  EXPECT((kept(0.95, 0) == std::vector<int>{0, 1, 2, 3}));
  EXPECT((kept(1e-9, 0) == std::vector<int>{1}));  // one always stays
  EXPECT((kept(0.55, 2) == std::vector<int>{1}));  // of what top-k left: 0.4 / 0.7 > 0.55
}

TEST(min_p_keeps_what_is_likely_enough) {
  Sampler sampler(4);
  const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.3f),
                                     std::log(0.2f)};
  Sampling s = at_temperature(1);
  s.min_p = 0.6;
  const auto counts = counts_of(sampler, logits, s, 400);
  EXPECT(counts[0] == 0 && counts[1] > 0 && counts[2] > 0 && counts[3] == 0);
}

TEST(extreme_temperatures_are_sane) {
  Sampler sampler(kVocab);
  const auto logits = descending_from(40);
  EXPECT_EQ(counts_of(sampler, logits, at_temperature(1e-300), 50)[40], 50);
  EXPECT_EQ(counts_of(sampler, logits, at_temperature(1e-5), 50)[40], 50);
  int sampled = 0;
  for (int n : counts_of(sampler, logits, at_temperature(100), 3000)) sampled += n > 0;
  EXPECT(sampled > 290);
}

TEST(a_draw_depends_on_seed_and_position_alone) {
  Sampler sampler(kVocab);
  const auto logits = descending_from(40);
  const std::vector<int32_t> history = {1, 2, 3, 4, 5};
  const std::span<const int32_t> all = history;
  Sampling s = at_temperature(30);
  const int32_t token = sampler.sample(logits, s, history, {}).token;
  counts_of(sampler, descending_from(3), at_temperature(2), 10);  // other samples in between
  EXPECT_EQ(sampler.sample(logits, s, all.first(2), all.subspan(2)).token, token);
  int same_position = 0;
  int same_seed = 0;
  for (uint64_t i = 0; i < 50; ++i) {
    same_seed += sampler.sample(logits, s, std::vector<int32_t>(i + 6), {}).token == token;
    s.seed = 100 + i;
    same_position += sampler.sample(logits, s, history, {}).token == token;
    s.seed = 7;
  }
  EXPECT(same_position < 5 && same_seed < 5);
}

TEST(penalties_count_what_they_should) {
  Sampler sampler(4);
  const std::vector<float> logits = {2.0f, 1.9f, -1.0f, 1.0f};
  const std::vector<int32_t> tokens = {0, 1, 1, 2};  // the first two are the prompt
  const std::span<const int32_t> all = tokens;
  const auto sample = [&](const Sampling& s) {
    const int32_t token = sampler.sample(logits, s, all.first(3), all.subspan(3)).token;
    EXPECT_EQ(sampler.sample(logits, s, all, {}).token, token);  // nothing stays behind
    return token;
  };
  Sampling s;
  s.n_prompt = 2;
  s.presence_penalty = 0.5;  // of the output alone: 1 -> 1.4, 2 -> -1.5
  EXPECT_EQ(sample(s), 0);
  s.n_prompt = 0;  // 0 -> 1.5, 1 -> 1.4, 3 stays 1
  EXPECT_EQ(sample(s), 0);
  s.presence_penalty = 0.0;
  s.frequency_penalty = 0.6;  // 0 -> 1.4, 1 (twice) -> 0.7
  EXPECT_EQ(sample(s), 0);
  s.frequency_penalty = 1.1;  // 0 -> 0.9, 1 -> -0.3, 3 stays 1
  EXPECT_EQ(sample(s), 3);
  s = {};
  s.n_prompt = 4;
  s.repetition_penalty = 2.5;  // of the prompt too: 0 -> 0.8, 1 -> 0.76
  EXPECT_EQ(sample(s), 3);
  s.repetition_penalty = 1.9;  // 0 -> 1.05, 1 -> 1
  EXPECT_EQ(sample(s), 0);
  const std::vector<float> negative = {-2.0f, -1.0f, -1.5f, -3.0f};
  EXPECT_EQ(sampler.sample(negative, s, all, {}).token, 1);  // -1.9 of -3.8, -1.9, -2.85, -3
}

TEST(the_smallest_penalties_leave_scores_finite_and_in_order) {
  Sampler sampler(4);
  const std::vector<float> logits = {20.0f, 2.0f, 30.0f, 40.0f};
  const std::vector<int32_t> tokens = {0, 1, 2};
  for (const double penalty : {1e-30, 1e-39, 1e-45, 1e-300, 5e-324}) {
    for (const double temperature : {0.0, 0.5}) {
      Sampling s;
      s.repetition_penalty = penalty;
      s.temperature = temperature;
      const Sample sample = sampler.sample(logits, s, tokens, {});
      EXPECT_EQ(sample.token, 2);  // the first one among infinite scores would be 0
    }
  }
}

TEST(bias_and_bans) {
  Sampler sampler(4);
  const std::vector<float> logits = {2.0f, 1.9f, -1.0f, 1.0f};
  const std::vector<int32_t> tokens = {3, 3, 3};
  Sampling s;
  s.logit_bias = {{2, 3.5f}};
  EXPECT_EQ(sampler.sample(logits, s, tokens, {}).token, 2);
  s.stop_token_ids = {2, 0};
  s.n_prompt = 2;
  s.min_tokens = 1;  // one is sampled already
  EXPECT_EQ(sampler.sample(logits, s, tokens, {}).token, 2);
  s.min_tokens = 2;
  EXPECT_EQ(sampler.sample(logits, s, tokens, {}).token, 1);
  s.temperature = 1.0;
  const auto counts = counts_of(sampler, logits, s, 1);
  EXPECT_EQ(counts[0] + counts[2], 0);
  s.stop_token_ids = {0, 1, 2, 3};
  EXPECT(sampler.sample(logits, s, tokens, {}).failure != nullptr);
}

TEST(logprobs_are_of_the_models_own_distribution) {
  Sampler sampler(4);
  const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.4f),
                                     std::log(0.1f)};
  Sampling s;
  s.wants_logprobs = true;
  s.top_logprobs = 3;
  s.logit_bias = {{3, 100.0f}};
  const Sample sample = sampler.sample(logits, s, {}, {});
  EXPECT_EQ(sample.token, 3);
  EXPECT(std::abs(sample.logprob - std::log(0.1)) < 1e-6);
  EXPECT_EQ(sample.n_top, 3);
  EXPECT(sample.top[0].token == 1 && sample.top[1].token == 2 && sample.top[2].token == 0);
  EXPECT(std::abs(sample.top[0].logprob - std::log(0.4)) < 1e-6);
  s.top_logprobs = 32;
  EXPECT_EQ(sampler.sample(logits, s, {}, {}).n_top, 4);  // there are no more
}

TEST(sampling_refuses_what_is_out_of_range) {
  const auto refused = [](auto damage) {
    Sampling s;
    s.validate(kVocab);
    damage(s);
    EXPECT_THROWS(ErrorCode::kInvalidRequest, s.validate(kVocab));
  };
  refused([](Sampling& s) { s.temperature = NAN; });
  refused([](Sampling& s) { s.temperature = -1; });
  refused([](Sampling& s) { s.top_k = -1; });
  refused([](Sampling& s) { s.top_p = 0; });
  refused([](Sampling& s) { s.top_p = NAN; });
  refused([](Sampling& s) { s.min_p = 1.5; });
  refused([](Sampling& s) { s.repetition_penalty = 0; });
  refused([](Sampling& s) { s.presence_penalty = INFINITY; });
  refused([](Sampling& s) { s.frequency_penalty = -101; });
  refused([](Sampling& s) { s.min_tokens = -1; });
  refused([](Sampling& s) { s.n_prompt = -1; });
  refused([](Sampling& s) { s.top_logprobs = 33; });
  refused([](Sampling& s) { s.logit_bias = {{kVocab, 1.0f}}; });
  refused([](Sampling& s) { s.logit_bias = {{1, NAN}}; });
  refused([](Sampling& s) { s.stop_token_ids = {-1}; });
}

}  // namespace pb::test

PB_TEST_MAIN()
