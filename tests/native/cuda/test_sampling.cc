// Sampling tokens on the emulator, against the sampler of the host.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "device_sampler.h"
#include "sampling/sampler.h"

namespace pb::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::array kVocabs = {1, 2, 31, 257, 5000};

Sampling at_temperature(double temperature) {
  Sampling s;
  s.temperature = temperature;
  s.seed = 7;
  return s;
}

std::vector<float> random_logits(int n, uint32_t seed, float scale = 3.0f) {
  return Numbers(seed).floats(static_cast<size_t>(n), scale);
}

// Tokens that come more than once, of any vocabulary.
std::vector<int32_t> some_tokens(int n, int vocab, int step) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(i * i % 23 * step % vocab);
  return tokens;
}

// Options that change scores, in all combinations; of a sequence of 40 tokens, 20 of them prompt.
Sampling with_changes(int which, int vocab) {
  Sampling s = at_temperature(0.0);
  s.n_prompt = 20;
  if (which & 1) s.repetition_penalty = 1.3;
  if (which & 2) s.presence_penalty = 0.7;
  if (which & 4) s.frequency_penalty = which & 1 ? 0.25 : -0.4;
  if (which & 8) s.logit_bias = {{0, 2.5f}, {vocab / 2, 4.0f}, {vocab - 1, -3.0f}};
  if (which & 16) {
    s.min_tokens = 30;
    s.stop_token_ids = {vocab / 2, vocab / 3};
  }
  if (s.logit_bias.size() > static_cast<size_t>(vocab)) s.logit_bias.clear();
  return s;
}

void expect_same_sample(const Sample& device, const Sample& host) {
  EXPECT_EQ(device.failure == nullptr, host.failure == nullptr);
  if (host.failure != nullptr && device.failure != nullptr) {
    EXPECT_EQ(std::string(device.failure), std::string(host.failure));
  }
  EXPECT_EQ(device.token, host.token);
  EXPECT_EQ(device.has_logprobs, host.has_logprobs);
  EXPECT(std::abs(device.logprob - host.logprob) <= 1e-6f * (1.0f + std::abs(host.logprob)));
  EXPECT_EQ(device.n_top, host.n_top);
  for (size_t i = 0; i < static_cast<size_t>(host.n_top); ++i) {
    EXPECT_EQ(device.top[i].token, host.top[i].token);
    EXPECT(std::abs(device.top[i].logprob - host.top[i].logprob) <=
           1e-6f * (1.0f + std::abs(host.top[i].logprob)));
  }
}

TEST(greedy_draws_are_those_of_the_host) {
  for (const int vocab : kVocabs) {
    Sampler host(vocab);
    DeviceSampler device(vocab);
    for (int which = 0; which < 32; ++which) {
      set_order(static_cast<uint64_t>(which));
      const Sampling s = with_changes(which, vocab);
      const auto tokens = some_tokens(40, vocab, 7);
      const std::span<const int32_t> all = tokens;
      const auto logits = random_logits(vocab, static_cast<uint32_t>(which));
      expect_same_sample(device.sample(logits, s, all.first(35), all.subspan(35)),
                         host.sample(logits, s, all.first(35), all.subspan(35)));
    }
  }
}

TEST(log_probabilities_are_those_of_the_host) {
  for (const int vocab : kVocabs) {
    Sampler host(vocab);
    DeviceSampler device(vocab);
    for (const int n_top : {0, 1, 5, kMaxLogprobs}) {
      for (const float scale : {0.0f, 0.01f, 3.0f, 40.0f, 1e30f}) {
        set_order(static_cast<uint64_t>(n_top));
        Sampling s = with_changes(n_top == 5 ? 9 : 0, vocab);
        s.wants_logprobs = true;
        s.top_logprobs = n_top;
        const auto logits = random_logits(vocab, 5, scale);
        expect_same_sample(device.sample(logits, s), host.sample(logits, s, {}, {}));
      }
    }
  }
}

// By one sum and by histograms, which carry between words.
TEST(a_mass_is_the_exact_sum_of_weights) {
  for (const int vocab : {31, 5000}) {
    DeviceSampler device(vocab);
    const auto logits = random_logits(vocab, 3);
    const float largest = *std::ranges::max_element(logits);
    uint64_t expected = 0;
    for (const float logit : logits) {
      expected += static_cast<uint64_t>(std::ldexp(double{cuda::exp_of(logit - largest)}, 44));
    }
    for (const int n_top : {0, 3}) {
      Sampling s;
      s.wants_logprobs = true;
      s.top_logprobs = n_top;
      const cuda::SamplingRequest request = {.sampling = &s};
      EXPECT_EQ(device.sample(logits, {&request, 1})[0].mass, expected);
    }
  }
}

TEST(a_given_token_is_scored) {
  constexpr int kVocab = 257;
  DeviceSampler device(kVocab);
  const auto logits = random_logits(3 * kVocab, 8);
  const std::array<cuda::SamplingRequest, 3> requests = {
      {{.target = 0}, {.target = 256, .n_top = 5}, {.target = 31, .n_top = 32}}};
  const auto samples = device.samples(logits, requests);
  Sampler host(kVocab);
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto row = std::span(logits).subspan(i * kVocab, kVocab);
    EXPECT_EQ(samples[i].n_top, requests[i].n_top);
    expect_same_sample(samples[i], host.scored(row, requests[i].target, requests[i].n_top));
  }
}

// How many of n samples are not the host's.
int differing_samples(const std::vector<float>& logits, const Sampling& s, int n) {
  const auto vocab = static_cast<int>(logits.size());
  Sampler host(vocab);
  DeviceSampler device(vocab);
  constexpr size_t kRows = 32;
  const std::vector<int32_t> history(static_cast<size_t>(n));
  std::vector<float> rows;
  for (size_t r = 0; r < kRows; ++r) rows.insert(rows.end(), logits.begin(), logits.end());
  int n_differing = 0;
  for (size_t first = 0; first < history.size(); first += kRows) {
    std::vector<cuda::SamplingRequest> requests;
    for (size_t r = 0; r < kRows; ++r) {
      requests.push_back({.sampling = &s, .history = std::span(history).first(first + r)});
    }
    const auto samples = device.samples(rows, requests);
    for (size_t r = 0; r < kRows; ++r) {
      const Sample expected = host.sample(logits, s, requests[r].history, {});
      n_differing += samples[r].token == expected.token ? 0 : 1;
    }
  }
  return n_differing;
}

// In each, up to 120 tokens can be sampled: weights that are off by their rounding move a sample
// with a probability of some 1e-6.
TEST(random_draws_are_those_of_the_host_but_for_rounding) {
  const auto logits = random_logits(120, 11);
  int n_differing = 0;
  for (const double temperature : {0.3, 1.0, 2.5, 100.0}) {
    for (const int options : {0, 1, 2, 3, 4, 5, 6, 7}) {
      set_order(static_cast<uint64_t>(options));
      Sampling s = at_temperature(temperature);
      s.seed = static_cast<uint64_t>(options);
      if (options & 1) s.top_k = 40;
      if (options & 2) s.top_p = 0.83;
      if (options & 4) s.min_p = 0.07;
      n_differing += differing_samples(logits, s, 64);
    }
  }
  EXPECT(n_differing <= 1);  // of 2,048
}

TEST(penalised_random_draws_are_those_of_the_host) {
  for (const int vocab : kVocabs) {
    Sampler host(vocab);
    DeviceSampler device(vocab);
    int n_differing = 0;
    for (int which = 0; which < 32; ++which) {
      Sampling s = with_changes(which, vocab);
      s.temperature = 1.5;
      s.top_p = which % 3 == 0 ? 0.9 : 1.0;
      const auto tokens = some_tokens(40 + which, vocab, 5);
      const auto logits = random_logits(vocab, static_cast<uint32_t>(which));
      const Sample sampled = device.sample(logits, s, tokens);
      const Sample expected = host.sample(logits, s, tokens, {});
      EXPECT_EQ(sampled.failure == nullptr, expected.failure == nullptr);
      n_differing += sampled.token == expected.token ? 0 : 1;
    }
    EXPECT(n_differing <= 1);
  }
}

// How often each token is sampled at positions 0..n-1.
std::vector<int> counts_of(const std::vector<float>& logits, const Sampling& s, int n) {
  const auto vocab = static_cast<int>(logits.size());
  DeviceSampler device(vocab);
  std::vector<int> counts(logits.size());
  const std::vector<int32_t> history(static_cast<size_t>(n));
  for (size_t i = 0; i < history.size(); ++i) {
    ++counts[static_cast<size_t>(device.sample(logits, s, std::span(history).first(i)).token)];
  }
  return counts;
}

// The four tokens that can be sampled, and no others, at the rates of their probabilities.
TEST(draws_follow_the_distribution) {
  std::vector<float> logits(31, -200.0f);
  const std::array<float, 4> probabilities = {0.1f, 0.4f, 0.3f, 0.2f};
  for (size_t i = 0; i < 4; ++i) logits[7 * i] = std::log(probabilities[i]);
  constexpr int kSamples = 1000;
  const auto counts = counts_of(logits, at_temperature(1.0), kSamples);
  for (size_t i = 0; i < 4; ++i) {
    const float sigma = std::sqrt(kSamples * probabilities[i] * (1 - probabilities[i]));
    EXPECT(std::abs(static_cast<float>(counts[7 * i]) - kSamples * probabilities[i]) < 4 * sigma);
  }
  EXPECT_EQ(counts[0] + counts[7] + counts[14] + counts[21], kSamples);
}

TEST(prefixes_that_top_p_and_min_p_keep) {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.3f),
                                     std::log(0.2f)};
  const auto kept = [&](double top_p, int top_k, double min_p) {
    Sampling s = at_temperature(1);
    s.top_p = top_p;
    s.top_k = top_k;
    s.min_p = min_p;
    std::vector<int> ids;
    const auto counts = counts_of(logits, s, 120);
    for (int i = 0; i < 4; ++i) {
      if (counts[static_cast<size_t>(i)] > 0) ids.push_back(i);
    }
    return ids;
  };
  EXPECT((kept(0.35, 0, 0) == std::vector<int>{1}));
  EXPECT((kept(0.45, 0, 0) == std::vector<int>{1, 2}));
  EXPECT((kept(0.75, 0, 0) == std::vector<int>{1, 2, 3}));
  EXPECT((kept(0.95, 0, 0) == std::vector<int>{0, 1, 2, 3}));
  EXPECT((kept(1e-9, 0, 0) == std::vector<int>{1}));  // one always stays
  EXPECT((kept(1e-300, 0, 0) == std::vector<int>{1}));
  EXPECT((kept(0.55, 2, 0) == std::vector<int>{1}));  // of what top-k left: 0.4 / 0.7 > 0.55
  EXPECT((kept(1.0, 0, 0.6) == std::vector<int>{1, 2}));
  EXPECT((kept(1.0, 3, 0.3) == std::vector<int>{1, 2, 3}));
  EXPECT((kept(0.45, 0, 0.3) == std::vector<int>{1, 2}));  // the nucleus is of all, not of min-p's
}

// Where more tokens tie than are gathered, keys are split by digits, ids included.
TEST(ties_go_to_the_lowest_ids) {
  constexpr int kVocab = 5000;
  Sampler host(kVocab);
  DeviceSampler device(kVocab);
  std::vector<float> equal(kVocab, 1.5f);
  std::vector<float> zeros(kVocab);
  for (size_t i = 0; i < kVocab; i += 3) zeros[i] = -0.0f;
  std::vector<float> steps(kVocab);
  for (size_t i = 0; i < kVocab; ++i) steps[i] = static_cast<float>(i % 3) * 1e-6f;
  std::vector<float> lone = equal;
  lone[4321] = 9.0f;
  const std::vector<int32_t> history(50);
  for (const auto& logits : {equal, zeros, steps, lone}) {
    for (const int top_k : {0, 2, 1500}) {
      for (const size_t position : {17, 50}) {
        set_order(position);
        Sampling s = at_temperature(50);
        s.top_k = top_k;
        s.top_p = position == 17 ? 0.5 : 1.0;
        s.wants_logprobs = true;
        s.top_logprobs = kMaxLogprobs;
        const auto before = std::span(history).first(position);
        expect_same_sample(device.sample(logits, s, before), host.sample(logits, s, before, {}));
      }
    }
    EXPECT_EQ(device.sample(logits, Sampling{}).token, host.sample(logits, {}, {}, {}).token);
  }
}

TEST(a_row_has_the_same_bits_alone_and_in_company) {
  for (const int vocab : {257, 516}) {  // rows off and on 16 bytes
    DeviceSampler device(vocab);
    const auto logits = random_logits(32 * vocab, 21);
    std::vector<Sampling> samplings;
    std::vector<std::vector<int32_t>> histories;
    for (int r = 0; r < 32; ++r) {
      Sampling s = with_changes(r, vocab);
      s.temperature = r % 4 == 0 ? 0.0 : 1.2;
      s.top_k = r % 3 == 0 ? 50 : 0;
      s.top_p = r % 5 == 0 ? 0.8 : 1.0;
      s.min_p = r % 7 == 0 ? 0.05 : 0.0;
      s.wants_logprobs = r % 2 == 0;
      s.top_logprobs = r % 2 == 0 ? r : 0;
      samplings.push_back(s);
      histories.push_back(some_tokens(10 + r, vocab, 3));
    }
    std::vector<cuda::SamplingRequest> requests;
    for (size_t r = 0; r < 32; ++r) {
      requests.push_back({.sampling = &samplings[r], .history = histories[r]});
    }
    set_order(0);
    const auto together = device.sample(logits, requests);
    for (uint64_t seed = 1; seed <= n_orders(10); ++seed) {
      set_order(seed);
      const unsigned threads = 32 * static_cast<unsigned>(1 + seed % 5);
      EXPECT(same_bits(device.sample(logits, requests, threads), together));
      const size_t r = seed * 3 % 32;
      const auto begin = logits.begin() + static_cast<ptrdiff_t>(r) * vocab;
      const std::vector<float> own(begin, begin + vocab);
      const auto alone = device.sample(own, std::span(requests).subspan(r, 1));
      EXPECT(same_bits(alone, {together[r]}));
    }
  }
}

TEST(logits_that_are_not_finite_fail) {
  for (const int vocab : {1, 31, 257}) {
    Sampler host(vocab);
    DeviceSampler device(vocab);
    for (const float bad : {NAN, -NAN, kInfinity, -kInfinity}) {
      for (const int at : {0, vocab / 2, vocab - 1}) {
        auto logits = random_logits(vocab, 2);
        logits[static_cast<size_t>(at)] = bad;
        Sampling s = at_temperature(at == 0 ? 1.0 : 0.0);
        s.wants_logprobs = true;
        if (at > 0) s.logit_bias = {{at, 1.0f}};
        expect_same_sample(device.sample(logits, s), host.sample(logits, s, {}, {}));
        const cuda::SamplingRequest request = {.target = 0, .n_top = 2};
        expect_same_sample(device.samples(logits, {&request, 1})[0], host.scored(logits, 0));
      }
    }
  }
}

TEST(forbidden_tokens_are_not_drawn) {
  const std::vector<float> logits = {2.0f, 1.9f, -1.0f, 1.0f};
  Sampling s = at_temperature(100.0);
  s.min_tokens = 1000;
  s.stop_token_ids = {0, 2};
  const auto counts = counts_of(logits, s, 200);
  EXPECT_EQ(counts[0] + counts[2], 0);
  EXPECT(counts[1] > 50 && counts[3] > 50);
  s.stop_token_ids = {0, 1, 2, 3, 0};
  for (const double temperature : {0.0, 1.0}) {
    s.temperature = temperature;
    expect_same_sample(DeviceSampler(4).sample(logits, s), Sampler(4).sample(logits, s, {}, {}));
  }
}

TEST(extremes_are_those_of_the_host) {
  for (const int vocab : kVocabs) {
    Sampler host(vocab);
    DeviceSampler device(vocab);
    const std::vector<int32_t> history(9);
    for (const float scale : {0.0f, 1e-30f, 5.0f, 1e37f}) {
      const auto logits = random_logits(vocab, 31, scale);
      for (const double temperature : {1e-300, 1e-6, 100.0}) {
        for (int which = 0; which < 4; ++which) {
          set_order(static_cast<uint64_t>(which));
          Sampling s = at_temperature(temperature);
          if (which == 1) s.top_k = 1;
          if (which == 2) s.top_p = 1e-12;
          if (which == 3) s.min_p = 1.0;
          expect_same_sample(device.sample(logits, s, history),
                             host.sample(logits, s, history, {}));
        }
      }
    }
    // A score that is infinite: nothing has a weight beside it.
    std::vector<float> large(static_cast<size_t>(vocab), 3e38f);
    Sampling s = at_temperature(1.0);
    s.repetition_penalty = 0.5;
    const std::vector<int32_t> last = {vocab - 1};
    expect_same_sample(device.sample(large, s, last), host.sample(large, s, last, {}));
  }
}

TEST(a_large_vocabulary) {
  constexpr int kVocab = 40000;
  Sampler host(kVocab);
  DeviceSampler device(kVocab);
  const auto logits = random_logits(kVocab, 41);
  const auto tokens = some_tokens(60, kVocab, 1709);
  set_order(1);
  for (int which = 0; which < 3; ++which) {
    Sampling s = with_changes(31, kVocab);
    s.temperature = 0.9;
    s.wants_logprobs = true;
    s.top_logprobs = kMaxLogprobs;
    if (which > 0) s.top_p = 0.95;
    if (which > 1) s.top_k = 20000;
    expect_same_sample(device.sample(logits, s, tokens), host.sample(logits, s, tokens, {}));
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
