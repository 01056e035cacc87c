// How far an engine has come, seen from another thread: while a call computes, without a lock, and
// after its end.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "engine/guarded_engine.h"
#include "engine_fixture.h"

namespace pb::test {
namespace {

constexpr int kLayers = 2;

// Computes no layer before a watcher has seen the one before it.
class WatchedBackend : public NaiveBackend {
 public:
  explicit WatchedBackend(const std::atomic<int64_t>& seen) : seen_(seen) {}

  void rope_and_store(Buffer& qkv, const AttentionLayer& layer, KvStorage& kv) override {
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (seen_ < n_layers_ && std::chrono::steady_clock::now() < patience) {
      std::this_thread::yield();
    }
    was_seen_ = was_seen_ && seen_ >= n_layers_;
    ++n_layers_;
    NaiveBackend::rope_and_store(qkv, layer, kv);
  }

  bool was_seen() const { return was_seen_; }

 private:
  const std::atomic<int64_t>& seen_;
  int64_t n_layers_ = 0;
  bool was_seen_ = true;
};

TEST(it_is_seen_layer_by_layer_while_a_call_computes) {
  std::atomic<int64_t> seen = 0;
  std::atomic<bool> is_over = false;
  auto made = std::make_unique<WatchedBackend>(seen);
  const WatchedBackend& backend = *made;
  GuardedEngine guarded(make_engine(small_options(4), std::move(made)));
  std::thread watcher([&] {
    while (!is_over) seen = guarded.progress();
  });
  guarded.call([&](Engine& engine) {
    const auto tokens = some_tokens(40, 1);  // ten ubatches
    prefill(engine, engine.seq_new(""), tokens);
  });
  is_over = true;
  watcher.join();
  EXPECT(backend.was_seen());
  EXPECT_EQ(guarded.progress(), 10 * kLayers + 1);
}

TEST(it_counts_layers_heads_and_draws) {
  GuardedEngine guarded(make_engine(small_options(8)));
  EXPECT_EQ(guarded.progress(), 0);
  const auto tokens = some_tokens(17, 1);  // three ubatches
  guarded.call([&](Engine& engine) {
    const int seq_id = engine.seq_new("");
    const std::vector<StepEntry> entries = {
        {.seq_id = seq_id, .tokens = tokens, .wants_logits = true}};
    engine.step(entries);
  });
  EXPECT_EQ(guarded.progress(), 3 * kLayers + 2);
  std::vector<float> embedding(24);
  guarded.call([&](Engine& engine) {
    engine.embed(engine.seq_new("other"), tokens, Pooling::kLast, embedding.data());
  });
  EXPECT_EQ(guarded.progress(), 6 * kLayers + 3);
}

TEST(it_stays_after_a_restart_and_after_the_end) {
  GuardedEngine guarded(make_engine());
  const auto tokens = some_tokens(5, 1);
  guarded.call([&](Engine& engine) { prefill(engine, engine.seq_new(""), tokens); });
  const int64_t before = guarded.progress();
  EXPECT(before > 0);
  guarded.call([](Engine& engine) { engine.restart(); });
  EXPECT_EQ(guarded.progress(), before);
  std::atomic<bool> is_over = false;
  std::atomic<bool> has_changed = false;
  std::thread watcher([&] {
    while (!is_over) has_changed = has_changed || guarded.progress() != before;
  });
  guarded.close();
  is_over = true;
  watcher.join();
  EXPECT(!has_changed);
  EXPECT_EQ(guarded.progress(), before);
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
