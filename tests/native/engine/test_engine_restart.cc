// Engine::restart(): whatever a failed call left, the engine is as if just made.
#include <algorithm>
#include <vector>

#include "check.h"
#include "engine_fixture.h"

namespace pb::test {
namespace {

// Fails in a pass while told to.
class FailingBackend : public NaiveBackend {
 public:
  explicit FailingBackend(const bool& fails) : fails_(fails) {}

  void finish(Heartbeat&) override {
    if (fails_) throw Error(ErrorCode::kEngine, "the device is gone");
  }

 private:
  const bool& fails_;
};

void expect_as_new(Engine& engine) {
  EXPECT_EQ(engine.kv().used_sequences(), 0);
  EXPECT_EQ(engine.kv().free_blocks(), engine.kv().total_blocks());
  EXPECT_EQ(engine.kv().cached_blocks(), 0);
  engine.check_integrity();
  const auto prompt = some_tokens(40, 3);
  EXPECT_EQ(engine.seq_new(""), 0);
  EXPECT_EQ(engine.seq_match(0, prompt), 0);
  EXPECT(prefill(engine, 0, prompt) == logits_alone(prompt));
}

}  // namespace

TEST(everything_but_weights_and_statistics_is_forgotten) {
  const auto engine = make_engine();
  const auto prompt = some_tokens(40, 3);
  Sampling biased;
  biased.logit_bias = {{50, 1000.0f}};
  for (int id : {0, 1}) {
    EXPECT_EQ(engine->seq_new(""), id);
    engine->seq_sampling(id, biased);
  }
  prefill(*engine, 0, prompt);
  engine->seq_remove(0, 0, -1);
  EXPECT_EQ(engine->kv().cached_blocks(), 2);
  const EngineStatistics before = engine->statistics();
  engine->restart();
  EXPECT_EQ(engine->statistics().computed_tokens, before.computed_tokens);
  EXPECT_EQ(engine->statistics().forward_passes, before.forward_passes);
  EXPECT_THROWS(ErrorCode::kInvalidRequest, engine->seq_length(1));
  expect_as_new(*engine);
  const std::vector<int32_t> next = {5};
  const StepEntry entry = {.seq_id = 0, .tokens = next, .wants_logits = true};
  auto all = prompt;
  all.push_back(5);
  const auto logits = logits_alone(all);
  EXPECT_EQ(engine->step({&entry, 1})[0].sample.token,
            std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TEST(a_step_that_threw_and_one_that_left_a_reservation) {
  bool fails = false;
  const auto engine = make_engine(small_options(), std::make_unique<FailingBackend>(fails));
  for (int times = 0; times < 3; ++times) {
    const auto prompt = some_tokens(20, times);
    for (int i = 0; i < 3; ++i) engine->seq_new("");
    prefill(*engine, 0, prompt);
    const StepEntry entry = {.seq_id = 1, .tokens = prompt, .wants_logits = true};
    fails = true;
    EXPECT_THROWS(ErrorCode::kEngine, engine->step({&entry, 1}));
    fails = false;
    auto& kv = const_cast<KvCache&>(engine->kv());
    kv.reserve(1, prompt);
    EXPECT_THROWS(ErrorCode::kEngine, engine->seq_remove(1, 0, -1));
    engine->restart();
    expect_as_new(*engine);
    engine->seq_remove(0, 0, -1);
    engine->restart();
  }
}

}  // namespace pb::test

PB_TEST_MAIN()
