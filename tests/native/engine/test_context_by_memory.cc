// n_ctx = kAutoContext: how much KV there is where the memory decides.
#include <string>

#include "base/error.h"
#include "check.h"
#include "engine/context_by_memory.h"
#include "engine_fixture.h"

namespace pb::test {
namespace {

const ContextMemory kRoomy{.memory = 1000000,
                           .bytes_of = [](int n_blocks) { return size_t{1000} * size_t(n_blocks); },
                           .block_size = 16,
                           .n_sequences = 100,
                           .n_positions = 1000};

ContextMemory with_memory(size_t bytes) {
  ContextMemory of = kRoomy;
  of.memory = bytes;
  return of;
}

TEST(memory_is_filled_with_whole_blocks) {
  EXPECT_EQ(context_by_memory(kRoomy), 1000);
  EXPECT_EQ(context_by_memory(with_memory(999999)), 999);
}

TEST(no_more_is_taken_than_sequences_can_use) {
  ContextMemory of = kRoomy;
  of.n_sequences = 3;  // of 63 blocks each: the last one is not full
  EXPECT_EQ(context_by_memory(of), 189);
  of.n_positions = 5;
  EXPECT_EQ(context_by_memory(of), 3);
  of.memory = 2999;
  EXPECT_THROWS(ErrorCode::kOutOfMemory, context_by_memory(of));
}

TEST(no_more_is_taken_than_n_ctx_may_be) {
  ContextMemory of = kRoomy;
  of.memory = size_t{1} << 60;
  of.n_sequences = 1 << 16;
  of.n_positions = 1 << 30;
  EXPECT_EQ(context_by_memory(of), kMostContext / 16);
}

TEST(too_little_memory_is_said_with_sizes) {
  EXPECT_EQ(context_by_memory(with_memory(32000)), 32);
  std::string message;
  try {
    context_by_memory(with_memory(31999));
  } catch (const Error& error) {
    EXPECT(error.code() == ErrorCode::kOutOfMemory);
    message = error.what();
  }
  EXPECT(
      message.starts_with("out of memory: 31.25 KiB wanted, 31.25 KiB may be taken; "
                          "n_ctx='auto' wants KV for at least 512 tokens:"));
}

// A backend that has so much memory for KV before and after passes have theirs.
class MeasuredBackend final : public NaiveBackend {
 public:
  MeasuredBackend(size_t before, size_t after) : before_(before), after_(after) {}

  size_t memory_for_kv(size_t) override { return is_prepared_ ? after_ : before_; }
  void prepare(const PassShape& shape) override {
    NaiveBackend::prepare(shape);
    is_prepared_ = true;
  }

 private:
  size_t before_;
  size_t after_;
  bool is_prepared_ = false;
};

TEST(an_engine_takes_what_passes_leave) {
  EngineOptions options = small_options();
  options.n_parallel = 100;
  const size_t block = make_engine(options)->kv_bytes() / 6;
  options.n_ctx = kAutoContext;
  const auto engine =
      make_engine(options, std::make_unique<MeasuredBackend>(80 * block, 41 * block + 3));
  EXPECT_EQ(engine->options().n_ctx, 41 * options.block_size);
  EXPECT_EQ(engine->kv().total_blocks(), 41);
  EXPECT_EQ(engine->kv_bytes(), 41 * block);
  EXPECT(prefill(*engine, engine->seq_new(""), some_tokens(20, 1)) ==
         logits_alone(some_tokens(20, 1)));
  engine->restart();
  EXPECT_EQ(engine->kv().total_blocks(), 41);
  // What others give back meanwhile is not taken: sizes of passes are bounded by the first answer.
  const auto bounded =
      make_engine(options, std::make_unique<MeasuredBackend>(40 * block, 80 * block));
  EXPECT_EQ(bounded->kv().total_blocks(), 40);
}

// With the blocks that are left, the layer with a window would be in the group of the other.
TEST(layers_stay_in_the_groups_that_passes_were_made_for) {
  EngineOptions options = small_options();
  options.n_parallel = 12;
  options.block_size = 4;
  options.n_ctx = 4000;
  const auto whole = make_engine(options);
  EXPECT_EQ(whole->kv().n_groups(), 2);
  const int n_window = whole->kv().total_blocks(1);
  const size_t block = whole->kv_bytes() / static_cast<size_t>(1000 + n_window);
  options.n_ctx = kAutoContext;
  const size_t before = block * static_cast<size_t>(2 * n_window + 20);
  const size_t after = block * static_cast<size_t>(2 * n_window - 20);
  const auto engine = make_engine(options, std::make_unique<MeasuredBackend>(before, after));
  EXPECT_EQ(engine->kv().n_groups(), 2);
  EXPECT_EQ(engine->kv().total_blocks(0), n_window - 10);
  EXPECT_EQ(engine->kv().total_blocks(1), n_window - 10);
  EXPECT_EQ(engine->kv_bytes(), after);
  const int a = engine->seq_new("");
  const auto tokens = some_tokens(60, 1);
  EXPECT(prefill(*engine, a, tokens) == prefill(*whole, whole->seq_new(""), tokens));
  engine->check_integrity();
}

TEST(an_engine_without_memory_for_kv_is_not_made) {
  EngineOptions options = small_options();
  options.n_ctx = kAutoContext;
  EXPECT_THROWS(ErrorCode::kOutOfMemory,
                make_engine(options, std::make_unique<MeasuredBackend>(1 << 20, 100)));
  EXPECT_THROWS(ErrorCode::kOutOfMemory,
                make_engine(options, std::make_unique<MeasuredBackend>(100, 1 << 20)));
  options.n_ctx = -2;
  EXPECT_THROWS(ErrorCode::kConfig, make_engine(options));
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
