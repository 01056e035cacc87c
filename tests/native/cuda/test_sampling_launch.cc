// What rows ask of sampling, as parameters of its kernels.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "counted_heap.h"
#include "cuda/sampling/sampling_launch.h"

namespace pb::test {
namespace {

using cuda::PlannedRows;
using cuda::RowSampling;
using cuda::SamplingPlanner;
using cuda::SamplingRequest;
using cuda::ScoreChange;

constexpr int kVocab = 20;

bool same_change(const ScoreChange& a, const ScoreChange& b) {
  return a.token == b.token && a.bias == b.bias && a.penalty == b.penalty &&
         a.is_seen == b.is_seen && a.is_forbidden == b.is_forbidden;
}

Sampling with_everything() {
  Sampling s;
  s.n_prompt = 2;
  s.repetition_penalty = 1.5;
  s.presence_penalty = 0.5;
  s.frequency_penalty = 0.25;
  s.logit_bias = {{3, 2.0f}, {19, -1.0f}};
  s.min_tokens = 5;
  s.stop_token_ids = {0, 3};
  return s;
}

const std::vector<int32_t> kHistory = {7, 3, 7, 5};  // the first two are the prompt
const std::vector<int32_t> kAppended = {7};

struct Plan {
  std::array<RowSampling, 4> rows{};
  std::vector<ScoreChange> changes = std::vector<ScoreChange>(kVocab);
  PlannedRows planned;
};

TEST(each_token_that_changes_is_listed_once) {
  const Sampling s = with_everything();
  const SamplingRequest request = {.sampling = &s, .history = kHistory, .appended = kAppended};
  SamplingPlanner planner(kVocab);
  for (int repeated = 0; repeated < 2; ++repeated) {  // nothing stays behind
    Plan plan;
    plan.planned = planner.plan({&request, 1}, plan.rows, plan.changes);
    EXPECT_EQ(plan.planned.n_rows, 1);
    const std::array<ScoreChange, 5> expected = {{
        {.token = 3, .bias = 2.0f, .is_seen = 1, .is_forbidden = 1},  // of the prompt alone
        {.token = 19, .bias = -1.0f},
        {.token = 7, .penalty = 1.0f, .is_seen = 1},  // twice in the output
        {.token = 5, .penalty = 0.75f, .is_seen = 1},
        {.token = 0, .is_forbidden = 1},
    }};
    EXPECT_EQ(plan.planned.n_changes, expected.size());
    EXPECT_EQ(plan.rows[0].n_changes, 5);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT(same_change(plan.changes[i], expected[i]));
  }
}

TEST(bans_end_with_min_tokens) {
  Sampling s;
  s.n_prompt = 2;
  s.stop_token_ids = {4};
  SamplingPlanner planner(kVocab);
  Plan plan;
  const SamplingRequest request = {.sampling = &s, .history = kHistory, .appended = kAppended};
  for (const int min_tokens : {3, 4}) {
    s.min_tokens = min_tokens;
    const PlannedRows planned = planner.plan({&request, 1}, plan.rows, plan.changes);
    EXPECT_EQ(planned.n_changes, min_tokens == 4 ? size_t{1} : size_t{0});
  }
}

TEST(tokens_that_a_mask_leaves_out_are_forbidden_besides) {
  const Sampling s = with_everything();
  const uint32_t mask = 0xfff0fu;  // all but 4, 5, 6, 7
  const SamplingRequest request = {
      .sampling = &s, .history = kHistory, .appended = kAppended, .mask = &mask};
  SamplingPlanner planner(kVocab);
  for (int repeated = 0; repeated < 2; ++repeated) {  // nothing stays behind
    Plan plan;
    plan.planned = planner.plan({&request, 1}, plan.rows, plan.changes);
    EXPECT_EQ(plan.planned.n_changes, size_t{7});
    std::vector<int32_t> forbidden;
    for (const ScoreChange& change : std::span(plan.changes).first(plan.planned.n_changes)) {
      if (change.is_forbidden != 0) forbidden.push_back(change.token);
      if (change.token == 7) EXPECT(change.is_seen == 1 && change.penalty == 1.0f);
    }
    std::ranges::sort(forbidden);
    EXPECT(forbidden == (std::vector<int32_t>{0, 3, 4, 5, 6, 7}));
  }
  const Sampling plain;
  const SamplingRequest alone = {.sampling = &plain, .mask = &mask};
  Plan plan;
  EXPECT_EQ(planner.plan({&alone, 1}, plan.rows, plan.changes).n_changes, size_t{4});
}

TEST(rows_that_do_not_fit_are_for_another_call) {
  const Sampling s = with_everything();
  const Sampling plain;
  const SamplingRequest full = {.sampling = &s, .history = kHistory, .appended = kAppended};
  const std::array<SamplingRequest, 5> requests = {
      {full, {.sampling = &plain}, full, full, {.target = 6, .n_top = 3}}};
  SamplingPlanner planner(kVocab);
  Plan whole;
  whole.planned = planner.plan({&full, 1}, whole.rows, whole.changes);
  for (size_t room = 10; room < 15; ++room) {  // two rows with 5 changes each fit, three do not
    Plan plan;
    const auto changes = std::span(plan.changes).first(room);
    plan.planned = planner.plan(requests, plan.rows, changes);
    EXPECT_EQ(plan.planned.n_rows, 3);
    EXPECT_EQ(plan.planned.n_changes, size_t{10});
    EXPECT_EQ(plan.rows[2].first_change, 5);
    plan.planned = planner.plan(std::span(requests).subspan(3), plan.rows, changes);
    EXPECT_EQ(plan.planned.n_rows, 2);
    for (size_t i = 0; i < 5; ++i) EXPECT(same_change(changes[i], whole.changes[i]));
    EXPECT_EQ(plan.rows[1].target, 6);
    EXPECT_EQ(plan.rows[1].n_top, 3);
    EXPECT(plan.planned.wants_logprobs && !plan.planned.is_random);
  }
  Plan plan;
  EXPECT_EQ(planner.plan(requests, std::span(plan.rows).first(2), plan.changes).n_rows, 2);
}

TEST(fractions_are_rounded_where_it_is_safe) {
  Sampling s;
  s.temperature = 0.5;
  SamplingPlanner planner(kVocab);
  const auto row = [&] {
    Plan plan;
    const SamplingRequest request = {.sampling = &s};
    EXPECT(planner.plan({&request, 1}, plan.rows, plan.changes).is_random);
    return plan.rows[0];
  };
  constexpr uint64_t kOne = uint64_t{1} << cuda::kFractionBits;
  EXPECT_EQ(row().top_p, kOne);
  EXPECT_EQ(row().inverse_temperature, 2.0f);
  EXPECT_EQ(row().min_p, 0.0f);
  EXPECT(row().uniform < kOne);
  s.top_p = 0.75;
  EXPECT_EQ(row().top_p, kOne / 4 * 3);
  s.top_p = 1e-300;  // one token always stays
  EXPECT_EQ(row().top_p, uint64_t{1});
  for (const double min_p : {0.1, 0.3, 1e-300, 1.0}) {  // a weight that is less never passes
    s.min_p = min_p;
    EXPECT(double{row().min_p} >= min_p && row().min_p <= 1.0f);
    EXPECT(double{std::nextafter(row().min_p, 0.0f)} < min_p);
  }
  s.temperature = 1e-300;
  EXPECT_EQ(row().inverse_temperature, 1e30f);
}

TEST(planning_allocates_nothing) {
  const Sampling s = with_everything();
  const SamplingRequest request = {.sampling = &s, .history = kHistory, .appended = kAppended};
  SamplingPlanner planner(kVocab);
  Plan plan;
  const int64_t before = n_allocations;
  plan.planned = planner.plan({&request, 1}, plan.rows, plan.changes);
  const auto launches = cuda::sampling_launches(plan.planned, {});
  EXPECT_EQ(n_allocations - before, int64_t{0});
  EXPECT_EQ(launches.n, size_t{2});
}

TEST(only_kernels_that_rows_need_are_launched) {
  const cuda::SampleParams params = {.vocab = 1000};
  const auto names = [&](const PlannedRows& planned) {
    const auto all = cuda::sampling_launches(planned, params);
    std::string text;
    for (size_t i = 0; i < all.n; ++i) {
      text += all.launches[i].kernel + std::string(" ");
      EXPECT_EQ(all.launches[i].grid.x, 3u);
      EXPECT_EQ(all.launches[i].threads, 256u);
    }
    return text;
  };
  EXPECT_EQ(names({.n_rows = 3}), "find_likeliest ");
  EXPECT_EQ(names({.n_rows = 3, .n_changes = 1, .is_random = true, .wants_logprobs = true}),
            "find_likeliest change_scores draw_tokens note_logprobs ");
}

TEST(device_memory_is_counted_in_bytes) {
  const cuda::SamplingBytes bytes = cuda::sampling_bytes(1000, 32, 5000);
  EXPECT_EQ(bytes.rows, 32 * sizeof(RowSampling));
  EXPECT_EQ(bytes.changes, size_t{5000} * 16);
  EXPECT_EQ(bytes.scores, size_t{32} * 1000 * 4);
  EXPECT_EQ(bytes.sampled, 32 * sizeof(cuda::SampledRow));
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
