// Entries that ask about their own tokens: log-probabilities and pooled states, in the pass of all
// others, the same however it is cut.
#include <algorithm>
#include <cmath>
#include <vector>

#include "check.h"
#include "engine_fixture.h"
#include "sampling/sampler.h"

namespace pb::test {
namespace {

using Floats = std::vector<float>;

constexpr size_t kHidden = 24;
constexpr int kTop = 3;

// The tokens after `prompt` that greedy decoding samples, with their log-probabilities and those of
// the kTop likeliest.
std::vector<Sample> greedy_samples(std::vector<int32_t> next, int n) {
  const auto engine = make_engine();
  engine->seq_new("");
  Sampling greedy;
  greedy.wants_logprobs = true;
  greedy.top_logprobs = kTop;
  engine->seq_sampling(0, greedy);
  std::vector<Sample> samples;
  for (int i = 0; i < n; ++i) {
    const StepEntry entry = {.seq_id = 0, .tokens = next, .wants_logits = true};
    samples.push_back(engine->step({&entry, 1})[0].sample);
    next = {samples.back().token};
  }
  return samples;
}

Floats embedding_alone(std::span<const int32_t> tokens, Pooling pooling) {
  const auto engine = make_engine(small_options(1));
  Floats made(kHidden);
  engine->embed(engine->seq_new(""), tokens, pooling, made.data());
  return made;
}

}  // namespace

TEST(scores_are_the_log_probabilities_of_draws_however_the_step_is_cut) {
  const auto prompt = some_tokens(9, 2);
  const auto samples = greedy_samples(prompt, 40);
  std::vector<int32_t> tokens = prompt;
  std::vector<int32_t> targets;
  for (const Sample& sample : samples) {
    tokens.push_back(sample.token);
    targets.push_back(sample.token);
  }
  tokens.pop_back();  // the last target comes after the last token
  for (int n_ubatch : {1, 3, 8, 64, 128}) {
    for (size_t n_first : {size_t{0}, size_t{5}, size_t{20}}) {
      const auto engine = make_engine(small_options(n_ubatch));
      for (int i = 0; i < 3; ++i) engine->seq_new(i == 1 ? "" : "other");
      if (n_first > 0) engine->prefill_chunk(1, std::span(tokens).first(n_first), nullptr);
      const auto rest = std::span<const int32_t>(tokens).subspan(n_first);
      const size_t n_targets = std::min(rest.size(), targets.size());
      Floats logprobs(n_targets);
      std::vector<TokenLogprob> top(n_targets * kTop);
      Floats mean(kHidden);
      const auto neighbour = some_tokens(7, 5);
      const EngineStatistics before = engine->statistics();
      const std::vector<StepEntry> entries = {
          {.seq_id = 0, .tokens = neighbour, .wants_logits = true},
          {.seq_id = 1,
           .tokens = rest,
           .targets = std::span<const int32_t>(targets).last(n_targets),
           .logprobs = logprobs.data(),
           .n_top = kTop,
           .top = top.data()},
          {.seq_id = 2, .tokens = neighbour, .pooling = Pooling::kMean, .embedding = mean.data()}};
      const auto sampled = engine->step(entries);
      EXPECT_EQ(sampled.size(), 1u);
      const auto logits = logits_alone(neighbour);
      EXPECT_EQ(sampled[0].sample.token, std::ranges::max_element(logits) - logits.begin());
      for (size_t i = 0; i < n_targets; ++i) {
        const Sample& sample = samples[samples.size() - n_targets + i];
        EXPECT_EQ(logprobs[i], sample.logprob);
        EXPECT_EQ(top[i * kTop].logprob, sample.logprob);  // it was sampled greedily
        for (size_t j = 0; j < kTop; ++j) {
          EXPECT_EQ(top[i * kTop + j].token, sample.top[j].token);
          EXPECT_EQ(top[i * kTop + j].logprob, sample.top[j].logprob);
        }
      }
      EXPECT(mean == embedding_alone(neighbour, Pooling::kMean));
      const EngineStatistics& after = engine->statistics();
      EXPECT_EQ(after.forward_passes, before.forward_passes + 1);
      EXPECT_EQ(after.logits_rows, before.logits_rows + static_cast<int64_t>(n_targets) + 1);
      EXPECT_EQ(after.sampled_tokens, 1);
      EXPECT_EQ(engine->seq_length(1), static_cast<int>(tokens.size()));
      engine->check_integrity();
    }
  }
}

TEST(scores_know_nothing_of_how_the_sequence_draws) {
  const auto prompt = some_tokens(12, 1);
  const std::vector<int32_t> targets = {3, 60, 3};
  std::vector<Floats> scores;
  for (double temperature : {0.0, 1.7}) {
    const auto engine = make_engine();
    engine->seq_new("");
    Sampling sampling;
    sampling.temperature = temperature;
    if (temperature > 0.0) sampling.logit_bias = {{3, 9.0f}};
    sampling.repetition_penalty = 1.0 + temperature;
    engine->seq_sampling(0, sampling);
    Floats logprobs(3);
    const StepEntry entry = {
        .seq_id = 0, .tokens = prompt, .targets = targets, .logprobs = logprobs.data()};
    EXPECT(engine->step({&entry, 1}).empty());
    scores.push_back(logprobs);
  }
  EXPECT(scores[0] == scores[1]);
  for (size_t i = 0; i < targets.size(); ++i) {
    const auto logits = logits_alone(std::span(prompt).first(prompt.size() - 2 + i));
    double total = 0.0;
    for (float l : logits) total += std::exp(double{l});
    const double expected = logits[static_cast<size_t>(targets[i])] - std::log(total);
    EXPECT(std::abs(scores[0][i] - expected) < 1e-5);
  }
}

TEST(pooled_states_do_not_depend_on_tiles_or_neighbours) {
  const auto first = some_tokens(40, 2);
  const auto second = some_tokens(11, 7);
  for (int n_ubatch : {1, 3, 8, 50, 128}) {
    const auto engine = make_engine(small_options(n_ubatch));
    for (int i = 0; i < 4; ++i) engine->seq_new("");
    std::vector<Floats> made(3, Floats(kHidden));
    Floats logprob(1);
    const std::vector<int32_t> target = {4};
    const std::vector<StepEntry> entries = {
        {.seq_id = 3, .tokens = second, .pooling = Pooling::kLast, .embedding = made[0].data()},
        {.seq_id = 0,
         .tokens = first,
         .targets = target,
         .logprobs = logprob.data(),
         .pooling = Pooling::kMean,
         .embedding = made[1].data()},
        {.seq_id = 2, .tokens = second, .wants_logits = true},
        {.seq_id = 1, .tokens = second, .pooling = Pooling::kMean, .embedding = made[2].data()}};
    EXPECT_EQ(engine->step(entries).size(), 1u);
    EXPECT(made[0] == embedding_alone(second, Pooling::kLast));
    EXPECT(made[1] == embedding_alone(first, Pooling::kMean));
    EXPECT(made[2] == embedding_alone(second, Pooling::kMean));
    const auto logits = logits_alone(first);
    Sampler sampler(static_cast<int>(logits.size()));
    EXPECT(logprob[0] == sampler.scored(logits, 4).logprob);
    EXPECT_EQ(engine->statistics().logits_rows, 2);
  }
}

TEST(what_is_not_finite_fails_its_own_sequence) {
  EngineOptions options = small_options();
  options.n_ctx = 160;
  const auto engine = make_engine(options, std::make_unique<PoisonBackend>());
  for (int i = 0; i < 4; ++i) engine->seq_new("");
  const auto prompt = some_tokens(20, 4);
  auto poisoned = prompt;
  poisoned[17] = kPoison;
  const std::vector<int32_t> targets = {1, 2, 3, 4, 5};
  std::vector<Floats> numbers(4, Floats(kHidden));
  std::vector<StepEntry> entries;
  for (int i = 0; i < 4; ++i) {
    StepEntry entry = {.seq_id = i, .tokens = i < 2 ? poisoned : prompt};
    float* out = numbers[static_cast<size_t>(i)].data();
    if (i % 2 == 0) {
      entry.targets = targets;
      entry.logprobs = out;
    } else {
      entry.pooling = Pooling::kMean;
      entry.embedding = out;
    }
    entries.push_back(entry);
  }
  const auto samples = engine->step(entries);
  EXPECT_EQ(samples.size(), 2u);
  for (size_t i = 0; i < samples.size(); ++i) {
    EXPECT_EQ(samples[i].seq_id, static_cast<int>(i));
    EXPECT(samples[i].sample.failure != nullptr);
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(engine->seq_length(i), 20);
  for (size_t i = 2; i < 4; ++i) {
    EXPECT(std::ranges::all_of(numbers[i], [](float v) { return std::isfinite(v); }));
  }
  EXPECT_EQ(engine->statistics().sampled_tokens, 0);
  engine->check_integrity();
  const StepEntry next = {.seq_id = 3, .tokens = prompt, .wants_logits = true};
  EXPECT(engine->step({&next, 1})[0].sample.failure == nullptr);  // a failure is of one step
}

TEST(questions_that_cannot_be_are_refused) {
  const auto engine = make_engine();
  engine->seq_new("");
  const auto prompt = some_tokens(5, 1);
  Floats out(64);
  const auto before = state_of(*engine);
  const auto refuse = [&](std::vector<int32_t> targets, Pooling pooling, bool wants_logits,
                          int n_top = 0) {
    const StepEntry entry = {.seq_id = 0,
                             .tokens = prompt,
                             .wants_logits = wants_logits,
                             .targets = targets,
                             .logprobs = out.data(),
                             .n_top = n_top,
                             .pooling = pooling,
                             .embedding = out.data()};
    EXPECT_THROWS(ErrorCode::kInvalidRequest, engine->step({&entry, 1}));
    EXPECT(state_of(*engine) == before);
  };
  refuse({1, 2, 3, 4, 5, 6}, Pooling::kNone, false);
  refuse({61}, Pooling::kNone, false);
  refuse({-1}, Pooling::kNone, false);
  refuse({1}, Pooling::kNone, true);
  refuse({1}, Pooling::kNone, false, -1);
  refuse({1}, Pooling::kNone, false, kMaxLogprobs + 1);
  refuse({}, Pooling::kMean, true);
  refuse({}, Pooling::kLast, true);
}

}  // namespace pb::test

PB_TEST_MAIN()
