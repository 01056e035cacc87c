// Engine and GuardedEngine: that a step is the sum of its entries however it is cut, that failures
// change nothing, and that threads and close() get along. On the naive backend where numbers
// matter, on the CPU's where threads do.
#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/guarded_engine.h"
#include "engine_fixture.h"

namespace pb::test {

TEST(options_are_checked) {
  const auto refused = [](auto damage) {
    EngineOptions options = small_options();
    damage(options);
    EXPECT_THROWS(ErrorCode::kConfig, make_engine(options));
  };
  refused([](EngineOptions& o) { o.n_ctx = 0; });
  refused([](EngineOptions& o) { o.n_parallel = 0; });
  refused([](EngineOptions& o) { o.n_ubatch = -1; });
  refused([](EngineOptions& o) { o.block_size = 24; });
  refused([](EngineOptions& o) { o.dtype = DType::kF16; });
  refused([](EngineOptions& o) { o.kv_dtype = DType::kInt4; });
  EXPECT_EQ(make_engine()->options().n_ctx, 96);
  EXPECT_EQ(make_engine()->max_sequence_length(), 96);
}

TEST(a_step_is_the_sum_of_its_entries_however_it_is_tiled) {
  for (int n_ubatch : {1, 3, 8, 64}) {
    const auto engine = make_engine(small_options(n_ubatch));
    std::vector<std::vector<int32_t>> prompts;
    std::vector<StepEntry> entries;
    for (int i = 0; i < 4; ++i) {
      prompts.push_back(some_tokens(3 + 6 * i, i));
      EXPECT_EQ(engine->seq_new(""), i);
    }
    for (int i = 0; i < 4; ++i) {
      entries.push_back(
          {.seq_id = i, .tokens = prompts[static_cast<size_t>(i)], .wants_logits = i != 2});
    }
    const auto samples = engine->step(entries);
    EXPECT_EQ(samples.size(), 3u);
    for (const StepSample& sampled : samples) {
      const auto logits = logits_alone(prompts[static_cast<size_t>(sampled.seq_id)]);
      EXPECT_EQ(sampled.sample.token,
                std::max_element(logits.begin(), logits.end()) - logits.begin());
    }
    const std::vector<int32_t> ids = {3, 1};
    const std::vector<int32_t> tokens = {5, 6};
    std::vector<int32_t> next(2);
    std::vector<float> rows(2 * 61);
    engine->decode_batch(ids, tokens, next.data(), rows.data());
    for (size_t i = 0; i < 2; ++i) {
      auto all = prompts[static_cast<size_t>(ids[i])];
      all.push_back(tokens[i]);
      const std::vector<float> row(rows.begin() + static_cast<std::ptrdiff_t>(61 * i),
                                   rows.begin() + static_cast<std::ptrdiff_t>(61 * (i + 1)));
      EXPECT(row == logits_alone(all));
    }
    const EngineStatistics s = engine->statistics();
    EXPECT_EQ(s.forward_passes, 2);
    EXPECT_EQ(s.computed_tokens, 3 + 9 + 15 + 21 + 2);
    EXPECT_EQ(s.logits_rows, 5);
    EXPECT_EQ(s.sampled_tokens, 5);
    engine->check_integrity();
  }
}

TEST(copied_matched_and_cut_sequences_go_on_as_if_computed) {
  EngineOptions options = small_options();
  options.n_ctx = 160;
  const auto engine = make_engine(options);
  const auto prompt = some_tokens(40, 3);
  const std::span<const int32_t> all = prompt;
  const auto expected = logits_alone(prompt);
  const int first = engine->seq_new("");
  EXPECT(prefill(*engine, first, prompt) == expected);
  const int second = engine->seq_new("");
  engine->seq_copy(first, second, 25);
  EXPECT(prefill(*engine, second, all.subspan(25)) == expected);
  const int third = engine->seq_new("");
  EXPECT_EQ(engine->seq_match(third, prompt), 32);
  EXPECT(prefill(*engine, third, all.subspan(32)) == expected);
  engine->seq_remove(first, 13, -1);
  EXPECT(prefill(*engine, first, all.subspan(13)) == expected);
  for (int id : {first, second, third}) engine->seq_remove(id, 0, -1);
  EXPECT_EQ(engine->kv().free_blocks() + engine->kv().cached_blocks(), 10);
}

TEST(a_refused_step_changes_nothing) {
  const auto engine = make_engine();
  const auto prompt = some_tokens(60, 1);
  engine->seq_new("");
  engine->seq_new("");
  engine->seq_new("");
  prefill(*engine, 0, some_tokens(20, 1));
  prefill(*engine, 1, some_tokens(5, 2));
  const auto before = state_of(*engine);
  const std::span<const int32_t> all = prompt;
  const auto refuse = [&](ErrorCode code, std::vector<StepEntry> entries) {
    EXPECT_THROWS(code, engine->step(entries));
    EXPECT(state_of(*engine) == before);
  };
  const std::vector<int32_t> too_large = {1, 61};
  const std::vector<int32_t> negative = {-1};
  const StepEntry good = {.seq_id = 1, .tokens = all.first(3), .wants_logits = true};
  refuse(ErrorCode::kInvalidRequest, {});
  refuse(ErrorCode::kInvalidRequest, {good, {.seq_id = 0, .tokens = {}}});
  refuse(ErrorCode::kInvalidRequest, {good, {.seq_id = 3, .tokens = all.first(1)}});
  refuse(ErrorCode::kInvalidRequest, {good, {.seq_id = -1, .tokens = all.first(1)}});
  refuse(ErrorCode::kInvalidRequest, {good, {.seq_id = 4, .tokens = all.first(1)}});
  refuse(ErrorCode::kInvalidRequest, {good, {.seq_id = 0, .tokens = all.first(1)}, good});
  refuse(ErrorCode::kInvalidRequest, {good, {.seq_id = 0, .tokens = too_large}});
  refuse(ErrorCode::kInvalidRequest, {good, {.seq_id = 0, .tokens = negative}});
  const auto long_prompt = some_tokens(80, 1);
  refuse(ErrorCode::kRequestTooLong, {good, {.seq_id = 0, .tokens = long_prompt}});
  // 2 and 1 of 6 blocks are used; 12 more tokens take none, 60 take 4.
  refuse(ErrorCode::kKvCacheFull,
         {{.seq_id = 0, .tokens = all.first(12)}, good, {.seq_id = 2, .tokens = all}});
  EXPECT_THROWS(ErrorCode::kInvalidRequest,
                engine->decode_batch(std::vector<int32_t>{0, 1}, negative, nullptr, nullptr));
  EXPECT_EQ(engine->step(std::vector<StepEntry>{good}).size(), 1u);
}

TEST(a_refused_step_costs_no_cached_block) {
  const auto engine = make_engine();
  for (int i = 0; i < 3; ++i) engine->seq_new("");
  prefill(*engine, 0, some_tokens(90, 1));
  engine->seq_remove(0, 0, -1);
  EXPECT_EQ(engine->kv().cached_blocks(), 5);
  const auto prompt = some_tokens(60, 2);
  const auto too_long = some_tokens(97, 3);
  const auto before = state_of(*engine);
  EXPECT_THROWS(ErrorCode::kRequestTooLong,
                engine->step(std::vector<StepEntry>{
                    {.seq_id = 1, .tokens = prompt, .wants_logits = true},
                    {.seq_id = 2, .tokens = too_long, .wants_logits = true}}));
  EXPECT(state_of(*engine) == before);
}

TEST(more_rows_than_the_head_takes_at_once) {
  constexpr int kRows = 69;  // more than Backend::output_rows() twice
  EngineOptions options = small_options(2 * kRows);
  options.n_parallel = kRows;
  options.n_ctx = kRows * options.block_size;
  const auto engine = make_engine(options);
  std::vector<int32_t> ids;
  std::vector<int32_t> tokens;
  for (int i = 0; i < kRows; ++i) {
    ids.push_back(engine->seq_new(""));
    tokens.push_back(i % 61);
  }
  std::vector<int32_t> next(ids.size());
  std::vector<float> rows(ids.size() * 61);
  engine->decode_batch(ids, tokens, next.data(), rows.data());
  for (size_t i : {size_t{0}, size_t{31}, size_t{32}, size_t{33}, size_t{64}, ids.size() - 1}) {
    const std::span<const float> row(rows.data() + i * 61, 61);
    const auto expected = logits_alone(std::span(tokens).subspan(i, 1));
    EXPECT(std::ranges::equal(row, expected));
    EXPECT_EQ(next[i], std::ranges::max_element(expected) - expected.begin());
  }
}

TEST(a_sequence_without_finite_logits_harms_only_itself) {
  const auto engine = make_engine(small_options(), std::make_unique<PoisonBackend>());
  for (int i = 0; i < 3; ++i) engine->seq_new("");
  const auto prompt = some_tokens(6, 4);
  const std::vector<int32_t> poisoned = {2, kPoison};
  const std::vector<StepEntry> entries = {{.seq_id = 0, .tokens = prompt, .wants_logits = true},
                                          {.seq_id = 1, .tokens = poisoned, .wants_logits = true},
                                          {.seq_id = 2, .tokens = prompt, .wants_logits = true}};
  const auto samples = engine->step(entries);
  EXPECT(samples[0].sample.failure == nullptr && samples[2].sample.failure == nullptr);
  EXPECT(samples[1].sample.failure != nullptr && samples[1].seq_id == 1);
  EXPECT_EQ(engine->seq_length(1), 2);
  EXPECT_EQ(engine->statistics().sampled_tokens, 2);
  const auto before = state_of(*engine);
  std::vector<float> out(64);
  std::vector<int32_t> next(2);
  EXPECT_THROWS(ErrorCode::kEngine, prefill(*engine, 0, poisoned));
  EXPECT_THROWS(ErrorCode::kEngine, engine->embed(0, poisoned, Pooling::kMean, out.data()));
  EXPECT_THROWS(ErrorCode::kEngine,
                engine->decode_batch(std::vector<int32_t>{0, 2}, std::vector<int32_t>{1, kPoison},
                                     next.data(), nullptr));
  EXPECT(state_of(*engine) == before);
  EXPECT_EQ(prefill(*engine, 0, prompt).size(), 61u);
}

TEST(sampling_belongs_to_one_life_of_an_id) {
  const auto engine = make_engine();
  const auto prompt = some_tokens(6, 4);
  const auto logits = logits_alone(prompt);
  const auto likeliest =
      static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const auto token_of = [&](int seq_id) {
    const StepEntry entry = {.seq_id = seq_id, .tokens = prompt, .wants_logits = true};
    return engine->step({&entry, 1})[0].sample.token;
  };
  EXPECT_EQ(token_of(engine->seq_new("")), likeliest);
  engine->seq_remove(0, 0, -1);
  engine->seq_new("");
  Sampling biased;
  biased.logit_bias = {{50, 1000.0f}};
  engine->seq_sampling(0, biased);
  Sampling bad;
  bad.top_p = 2;
  EXPECT_THROWS(ErrorCode::kInvalidRequest, engine->seq_sampling(0, bad));
  EXPECT_THROWS(ErrorCode::kInvalidRequest, engine->seq_sampling(2, biased));
  EXPECT_EQ(token_of(0), 50);
  engine->seq_new("");
  EXPECT_EQ(token_of(1), likeliest);
  engine->seq_remove(0, 0, -1);
  engine->seq_new("");
  EXPECT_EQ(token_of(0), likeliest);
}

TEST(embeddings_do_not_depend_on_tiles) {
  const auto tokens = some_tokens(70, 2);
  std::vector<std::vector<float>> means;
  for (int n_ubatch : {1, 8, 50, 128}) {
    const auto engine = make_engine(small_options(n_ubatch));
    std::vector<float> mean(24);
    std::vector<float> last(24);
    std::vector<float> only(24);
    engine->seq_new("");
    engine->seq_new("");
    engine->embed(0, tokens, Pooling::kMean, mean.data());
    EXPECT_EQ(engine->seq_length(0), 70);
    engine->seq_remove(0, 69, -1);
    engine->embed(0, std::span(tokens).last(1), Pooling::kLast, last.data());
    engine->seq_remove(0, 69, -1);
    engine->embed(0, std::span(tokens).last(1), Pooling::kMean, only.data());
    EXPECT(last == only && last != mean);
    means.push_back(mean);
    EXPECT(means.back() == means.front());
  }
}

TEST(threads_take_turns_and_close_ends_them) {
  EngineOptions options = small_options(16);
  GuardedEngine guarded(make_engine(options, make_cpu_backend(2)));
  const auto prompt = some_tokens(9, 1);
  std::vector<float> expected;
  guarded.call([&](Engine& e) {
    const int id = e.seq_new("");
    expected = prefill(e, id, prompt);
    e.seq_remove(id, 0, -1);
  });
  std::atomic<int> done{0};
  std::atomic<int> closed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      try {
        for (;;) {
          const std::string space = std::to_string(t);
          const int id = guarded.call([&](Engine& e) { return e.seq_new(space); });
          const auto logits = guarded.call([&](Engine& e) { return prefill(e, id, prompt); });
          if (logits != expected)
            fail(__FILE__, __LINE__, "another thread's call shows in the logits");
          EXPECT(guarded.counters().used_sequences <= 4);
          guarded.call([&](Engine& e) { e.seq_remove(id, 0, -1); });
          ++done;
        }
      } catch (const Error& e) {
        EXPECT(e.code() == ErrorCode::kEngine);
        ++closed;
      }
    });
  }
  while (done.load() < 20) std::this_thread::yield();
  guarded.call([](Engine& e) { e.check_integrity(); });
  guarded.close();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(closed.load(), 4);
  guarded.close();
  EXPECT_THROWS(ErrorCode::kEngine, guarded.counters());
}

TEST(counters_are_those_of_the_last_call_that_ended) {
  GuardedEngine guarded(make_engine());
  EXPECT_EQ(guarded.counters().kv_free_blocks, 6);
  guarded.call([](Engine& e) { prefill(e, e.seq_new(""), some_tokens(20, 1)); });
  EXPECT_EQ(guarded.counters().kv_free_blocks, 4);
  EXPECT_EQ(guarded.counters().used_sequences, 1);
  EXPECT_EQ(guarded.counters().statistics.computed_tokens, 20);
  EXPECT_THROWS(ErrorCode::kInvalidRequest, guarded.call([](Engine& e) {
    e.seq_new("");
    e.seq_remove(3, 0, -1);
  }));
  EXPECT_EQ(guarded.counters().used_sequences, 2);
}

}  // namespace pb::test

PB_TEST_MAIN()
