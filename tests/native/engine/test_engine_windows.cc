// An engine whose second layer gives back KV that has left its window of 11 positions.

#include "check.h"
#include "engine_fixture.h"

namespace pb::test {
namespace {

constexpr int kLong = 90;

EngineOptions windowed_options(int n_parallel = 2) {
  EngineOptions options = small_options();
  options.n_ctx = 1000;
  options.n_parallel = n_parallel;
  options.block_size = 4;
  return options;
}

// Logits after each of kLong tokens, from an engine that keeps everything.
std::vector<std::vector<float>> expected_logits(const std::vector<int32_t>& tokens) {
  const auto engine = make_engine(windowed_options(40));
  EXPECT_EQ(engine->kv().n_groups(), 1);
  std::vector<std::vector<float>> rows;
  const int a = engine->seq_new("");
  for (const int32_t token : tokens) rows.push_back(prefill(*engine, a, std::vector{token}));
  return rows;
}

TEST(layers_with_a_window_have_a_pool_of_their_own) {
  const auto engine = make_engine(windowed_options());
  EXPECT_EQ(engine->kv().n_groups(), 2);
  EXPECT_EQ(engine->kv().total_blocks(0), 250);
  EXPECT_EQ(engine->kv().total_blocks(1), 2 * (3 + 1 + 1) + 128);
  const auto whole = make_engine(windowed_options(40));
  const size_t block_of_layer = whole->kv_bytes() / (2 * 250);
  EXPECT_EQ(engine->kv_bytes(), block_of_layer * (250 + 138));
}

TEST(what_is_given_back_changes_no_bit) {
  const auto tokens = some_tokens(kLong, 3);
  const auto expected = expected_logits(tokens);
  for (const size_t chunk : {1, 3, 4, 7, 20}) {
    const auto engine = make_engine(windowed_options());
    const int a = engine->seq_new("");
    const int b = engine->seq_new("b");
    for (size_t at = 0; at < tokens.size(); at += chunk) {
      const size_t n = std::min(chunk, tokens.size() - at);
      EXPECT(prefill(*engine, a, std::span(tokens).subspan(at, n)) == expected[at + n - 1]);
      if (at < 40) prefill(*engine, b, some_tokens(2, 8));  // takes what was given back
      engine->check_integrity();
    }
    EXPECT_EQ(engine->kv().first_block(a, 1), (kLong + 1 - 11) / 4);
  }
}

TEST(copies_and_hits_go_on_as_if_computed) {
  const auto tokens = some_tokens(kLong, 3);
  const auto expected = expected_logits(tokens);
  const auto engine = make_engine(windowed_options());
  const int a = engine->seq_new("");
  for (int at = 0; at < kLong; at += 5) prefill(*engine, a, std::span(tokens).subspan(at, 5));
  for (const int wanted : {89, 88, 85, 80, 30}) {
    const int b = engine->seq_new("");
    const int n = engine->seq_copyable(a, wanted);
    EXPECT(n == wanted || n % 4 == 0);
    engine->seq_copy(a, b, n);
    for (size_t at = size_t(n); at < size_t(wanted) + 1; ++at) {
      EXPECT(prefill(*engine, b, std::span(tokens).subspan(at, 1)) == expected[at]);
    }
    engine->seq_remove(b, 0, -1);
    engine->check_integrity();
  }
  engine->seq_remove(a, 0, -1);
  const int c = engine->seq_new("");
  const int n = engine->seq_match(c, tokens);
  EXPECT_EQ(n, 88);
  EXPECT(prefill(*engine, c, std::span(tokens).subspan(size_t(n))) == expected.back());
}

// A step that fails, and a draft that is wrong, leave the window as it was.
TEST(what_is_rolled_back_was_not_given_back) {
  const auto tokens = some_tokens(kLong, 3);
  const auto expected = expected_logits(tokens);
  const auto engine = make_engine(windowed_options(), std::make_unique<PoisonBackend>());
  const int a = engine->seq_new("");
  for (int at = 0; at < 60; at += 5) prefill(*engine, a, std::span(tokens).subspan(at, 5));
  std::vector<int32_t> draft(tokens.begin() + 60, tokens.begin() + 61);
  for (int i = 0; i < 9; ++i) draft.push_back(60 - i % 2);
  const std::vector<StepEntry> entries = {
      {.seq_id = a, .tokens = draft, .wants_logits = true, .n_draft = 9}};
  engine->step(entries);
  engine->check_integrity();
  EXPECT(engine->seq_length(a) < 70);
  engine->seq_remove(a, 61, -1);
  EXPECT(prefill(*engine, a, std::span(tokens).subspan(61, 1)) == expected[61]);
  auto fails = some_tokens(30, 1);
  fails.back() = kPoison;
  EXPECT_THROWS(ErrorCode::kEngine, prefill(*engine, a, fails));
  engine->check_integrity();
  EXPECT_EQ(engine->seq_length(a), 62);
  EXPECT(prefill(*engine, a, std::span(tokens).subspan(62, 1)) == expected[62]);
  engine->restart();
  const int again = engine->seq_new("");
  for (int at = 0; at < kLong; at += 10) {
    EXPECT(prefill(*engine, again, std::span(tokens).subspan(at, 10)) == expected[at + 9]);
  }
}

TEST(more_context_fits_into_the_same_memory) {
  EngineOptions options = windowed_options(1);
  const size_t whole = make_engine(windowed_options(40))->kv_bytes();
  EXPECT(make_engine(options)->kv_bytes() < whole * 8 / 10);
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
