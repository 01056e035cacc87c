// Steps with drafts: what is sampled is what steps of one token sample, bit for bit, and of a draft
// that was wrong nothing is left.
#include <algorithm>
#include <string>
#include <vector>

#include "check.h"
#include "engine_fixture.h"

namespace pb::test {
namespace {

using Ids = std::vector<int32_t>;

constexpr int kSteps = 30;

// Ways to sample, each of which looks at more than the logits of the row.
std::vector<Sampling> ways_to_sample() {
  std::vector<Sampling> ways(4);
  ways[1].temperature = 1.3;
  ways[1].seed = 7;
  ways[2].repetition_penalty = 1.4;
  ways[2].presence_penalty = 0.3;
  ways[2].frequency_penalty = 0.2;
  ways[2].n_prompt = 9;
  ways[2].wants_logprobs = true;
  ways[2].top_logprobs = 4;
  ways[3] = ways[2];
  ways[3].temperature = 0.8;
  ways[3].top_k = 20;
  ways[3].min_tokens = 12;
  for (int32_t token = 0; token < 20; ++token) ways[3].stop_token_ids.push_back(token);
  // The bias keeps kPoison from being sampled, because the logits after it are not finite.
  for (Sampling& way : ways) way.logit_bias = {{kPoison, -1000.0f}};
  return ways;
}

bool same(const Sample& a, const Sample& b) {
  const auto equal = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token == y.token && x.logprob == y.logprob;
  };
  return a.failure == b.failure && a.token == b.token && a.has_logprobs == b.has_logprobs &&
         a.logprob == b.logprob &&
         std::equal(a.top.begin(), a.top.begin() + a.n_top, b.top.begin(), b.top.begin() + b.n_top,
                    equal);
}

// The samples of one sequence after `prompt`, a step each.
std::vector<Sample> samples_in_turn(const Sampling& sampling, const Ids& prompt) {
  const auto engine = make_engine();
  const int id = engine->seq_new("");
  engine->seq_sampling(id, sampling);
  std::vector<Sample> samples;
  Ids next = prompt;
  for (int i = 0; i < kSteps; ++i) {
    const StepEntry entry = {.seq_id = id, .tokens = next, .wants_logits = true};
    samples.push_back(engine->step({&entry, 1})[0].sample);
    next = {samples.back().token};
  }
  return samples;
}

// A step that appends `last` and a draft: `n_drafts` of the tokens that will come, the one at
// `n_right` spoilt where there is such a one.
std::vector<StepSample> step_with_draft(Engine& engine, int id, Ids last,
                                        std::span<const Sample> coming, size_t n_drafts,
                                        size_t n_right) {
  const auto n_known = static_cast<std::ptrdiff_t>(last.size());
  for (size_t i = 0; i < n_drafts; ++i) {
    last.push_back(i == n_right ? (coming[i].token + 1) % 61 : coming[i].token);
  }
  const StepEntry entry = {.seq_id = id,
                           .tokens = last,
                           .wants_logits = true,
                           .n_draft = static_cast<int>(last.size()) - static_cast<int>(n_known)};
  return engine.step({&entry, 1});
}

}  // namespace

TEST(what_is_drawn_is_what_steps_of_one_token_draw) {
  const auto prompt = some_tokens(9, 2);
  for (const Sampling& sampling : ways_to_sample()) {
    const auto expected = samples_in_turn(sampling, prompt);
    for (int n_ubatch : {1, 3, 8, 64}) {
      const auto engine = make_engine(small_options(n_ubatch));
      const int id = engine->seq_new("");
      engine->seq_sampling(id, sampling);
      int n_steps = 0;
      int64_t n_drafted = 0;
      Ids last = prompt;
      for (size_t done = 0; done < expected.size(); ++n_steps) {
        const size_t n_drafts = std::min<size_t>(n_steps % 7, expected.size() - done - 1);
        const size_t n_right = static_cast<size_t>(n_steps % 3 == 0 ? 7 : n_steps % 5);
        const auto coming = std::span<const Sample>(expected).subspan(done);
        const auto samples = step_with_draft(*engine, id, last, coming, n_drafts, n_right);
        EXPECT_EQ(samples.size(), std::min(n_drafts, n_right) + 1);
        for (size_t i = 0; i < samples.size(); ++i) {
          EXPECT(samples[i].seq_id == id && same(samples[i].sample, coming[i]));
        }
        done += samples.size();
        last = {samples.back().sample.token};
        n_drafted += static_cast<int64_t>(n_drafts);
        EXPECT_EQ(engine->seq_length(id), static_cast<int>(prompt.size() + done) - 1);
        engine->check_integrity();
      }
      const EngineStatistics s = engine->statistics();
      EXPECT_EQ(s.forward_passes, n_steps);
      EXPECT_EQ(s.sampled_tokens, kSteps);
      EXPECT_EQ(s.draft_tokens, n_drafted);
      EXPECT_EQ(s.accepted_tokens, kSteps - n_steps);
      EXPECT_EQ(s.computed_tokens, 9 + n_steps - 1 + n_drafted);
      EXPECT_EQ(s.logits_rows, n_steps + n_drafted);
    }
  }
}

TEST(each_neighbour_has_its_own_draft) {
  const auto prompts = std::vector{some_tokens(9, 2), some_tokens(4, 1), some_tokens(20, 3)};
  const auto engine = make_engine();
  std::vector<std::vector<Sample>> expected;
  std::vector<Ids> tokens;
  std::vector<StepEntry> entries;
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(engine->seq_new(""), static_cast<int>(i));
    expected.push_back(samples_in_turn(Sampling{}, prompts[i]));
    tokens.push_back(prompts[i]);
    for (size_t k = 0; k < 4; ++k) tokens[i].push_back(expected[i][k].token);
    tokens[i][prompts[i].size() + i + 1] = 60 - tokens[i][prompts[i].size() + i + 1];
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    entries.push_back(
        {.seq_id = static_cast<int>(i), .tokens = tokens[i], .wants_logits = true, .n_draft = 4});
  }
  const auto samples = engine->step(entries);
  EXPECT_EQ(samples.size(), size_t{2 + 3 + 4});
  size_t at = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (size_t k = 0; k < i + 2; ++k, ++at) {
      EXPECT(samples[at].seq_id == static_cast<int>(i) && same(samples[at].sample, expected[i][k]));
    }
  }
  engine->check_integrity();
}

TEST(more_draft_tokens_than_the_head_takes_at_once) {
  EngineOptions options = small_options(128);
  const auto prompt = some_tokens(9, 2);
  const auto engine = make_engine(options);
  const auto in_turn = samples_in_turn(Sampling{}, prompt);
  std::vector<Sample> coming = in_turn;
  coming.resize(44);  // what was not sampled is drafted as token 0
  const auto samples =
      step_with_draft(*engine, engine->seq_new(""), prompt, coming, coming.size(), 99);
  EXPECT(samples.size() > kSteps);
  for (size_t i = 0; i < in_turn.size(); ++i) EXPECT(same(samples[i].sample, in_turn[i]));
}

TEST(a_wrong_draft_token_is_nowhere_in_the_cache) {
  const auto prompt = some_tokens(9, 2);
  const auto expected = samples_in_turn(Sampling{}, prompt);
  const auto engine = make_engine();
  const int id = engine->seq_new("");
  step_with_draft(*engine, id, prompt, expected, 30, 2);  // three blocks long; 11 tokens of it stay
  EXPECT_EQ(engine->seq_length(id), 11);
  EXPECT_EQ(engine->kv().free_blocks(), 5);
  EXPECT_EQ(engine->kv().cached_blocks(), 0);
  engine->check_integrity();
  Ids draft = prompt;
  for (size_t i = 0; i < 30; ++i) draft.push_back(expected[i].token);
  draft[11] = (draft[11] + 1) % 61;
  EXPECT_EQ(engine->seq_match(engine->seq_new(""), draft), 0);
  engine->seq_remove(id, 0, -1);
  EXPECT_EQ(engine->kv().free_blocks(), 6);
}

TEST(a_draft_token_whose_numbers_are_not_finite_harms_nobody) {
  const auto prompt = some_tokens(9, 2);
  const auto expected = samples_in_turn(ways_to_sample()[0], prompt);
  const auto engine = make_engine(small_options(), std::make_unique<PoisonBackend>());
  const int id = engine->seq_new("");
  Ids tokens = prompt;
  for (int32_t draft : {expected[0].token, kPoison, expected[2].token}) tokens.push_back(draft);
  StepEntry entry = {.seq_id = id, .tokens = tokens, .wants_logits = true, .n_draft = 3};
  auto samples = engine->step({&entry, 1});
  EXPECT(samples.size() == 2 && same(samples[0].sample, expected[0]) &&
         same(samples[1].sample, expected[1]));
  const Ids next = {expected[1].token};
  entry = {.seq_id = id, .tokens = next, .wants_logits = true};
  samples = engine->step({&entry, 1});
  EXPECT(samples.size() == 1 && same(samples[0].sample, expected[2]));
}

TEST(what_cannot_be_drawn_ends_the_draws_of_its_sequence) {
  const auto engine = make_engine(small_options(), std::make_unique<PoisonBackend>());
  const auto prompt = some_tokens(9, 2);
  Sampling poisoned;
  poisoned.logit_bias = {{kPoison, 1000.0f}};
  const int id = engine->seq_new("");
  const int other = engine->seq_new("");
  engine->seq_sampling(id, poisoned);
  Ids tokens = prompt;
  tokens.insert(tokens.end(), {kPoison, 0, 0});  // a sample that fails has no token, not even 0
  const std::vector<StepEntry> entries = {
      {.seq_id = id, .tokens = tokens, .wants_logits = true, .n_draft = 3},
      {.seq_id = other, .tokens = prompt, .wants_logits = true}};
  const auto samples = engine->step(entries);
  EXPECT_EQ(samples.size(), size_t{3});
  EXPECT(samples[0].sample.failure == nullptr && samples[0].sample.token == kPoison);
  EXPECT(samples[1].seq_id == id && samples[1].sample.failure != nullptr);
  EXPECT(samples[2].seq_id == other && samples[2].sample.failure == nullptr);
  EXPECT_EQ(engine->seq_length(id), 10);
  EXPECT_EQ(engine->statistics().sampled_tokens, 2);
  EXPECT_EQ(engine->statistics().accepted_tokens, 1);
  engine->check_integrity();
}

TEST(drafts_that_cannot_be_are_refused) {
  const auto engine = make_engine();
  const int id = engine->seq_new("");
  const auto prompt = some_tokens(90, 1);
  const std::span<const int32_t> all = prompt;
  const auto before = state_of(*engine);
  const auto refuse = [&](ErrorCode code, StepEntry entry) {
    EXPECT_THROWS(code, engine->step({&entry, 1}));
    EXPECT(state_of(*engine) == before);
  };
  const auto entry = [&](size_t n_tokens, bool wants_logits, int n_draft) {
    return StepEntry{.seq_id = id,
                     .tokens = all.first(n_tokens),
                     .wants_logits = wants_logits,
                     .n_draft = n_draft};
  };
  refuse(ErrorCode::kInvalidRequest, entry(3, true, 3));
  refuse(ErrorCode::kInvalidRequest, entry(3, true, -1));
  refuse(ErrorCode::kInvalidRequest, entry(3, false, 1));
  engine->prefill_chunk(id, all, nullptr);
  const auto full = state_of(*engine);
  const StepEntry too_long = entry(7, true, 6);
  EXPECT_THROWS(ErrorCode::kRequestTooLong, engine->step({&too_long, 1}));
  EXPECT(state_of(*engine) == full);
}

}  // namespace pb::test

PB_TEST_MAIN()
