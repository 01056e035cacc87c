// The engine on a device whose memory is not the host's and which is behind with its work: the
// double that stands for one is what it says, and nothing shows in what the engine gives.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "device_double.h"
#include "engine/guarded_engine.h"
#include "engine_fixture.h"

namespace pb::test {
namespace {

// Whether a process of its own survives f.
template <typename F>
bool survives(F f) {
  const pid_t child = fork();
  if (child == 0) {
    std::fclose(stderr);  // a sanitizer would tell of what is wanted here
    f();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::unique_ptr<Engine> engine_of(DType dtype, std::unique_ptr<Backend> backend) {
  EngineOptions options = small_options(7);
  options.n_ctx = 192;
  options.dtype = dtype;
  if (dtype == DType::kBF16) options.kv_dtype = DType::kBF16;
  const TinyModel model = rotary_model();
  return std::make_unique<Engine>(model.config, model.tensors, options, std::move(backend));
}

// Samples, scores, states and logits of some steps, drafts that are wrong among them.
std::vector<float> numbers_of(Engine& engine) {
  constexpr size_t kVocab = 61, kHidden = 24;
  std::vector<float> all;
  for (int i = 0; i < 3; ++i) engine.seq_new("");
  Sampling sampling;
  sampling.temperature = 0.9;
  sampling.repetition_penalty = 1.2;
  sampling.wants_logprobs = true;
  sampling.top_logprobs = 3;
  engine.seq_sampling(1, sampling);
  std::vector<std::vector<int32_t>> next = {some_tokens(9, 1), some_tokens(20, 2),
                                            some_tokens(5, 3)};
  for (int round = 0; round < 4; ++round) {
    std::vector<float> logprobs(next[2].size()), embedding(kHidden);
    const std::vector<StepEntry> entries = {
        {.seq_id = 0, .tokens = next[0], .wants_logits = true, .n_draft = round > 0 ? 4 : 0},
        {.seq_id = 1, .tokens = next[1], .wants_logits = true},
        {.seq_id = 2,
         .tokens = next[2],
         .targets = next[2],
         .logprobs = logprobs.data(),
         .pooling = Pooling::kMean,
         .embedding = embedding.data()}};
    for (const StepSample& sampled : engine.step(entries)) {
      EXPECT(sampled.sample.failure == nullptr);
      all.insert(all.end(), {static_cast<float>(sampled.seq_id),
                             static_cast<float>(sampled.sample.token), sampled.sample.logprob});
      next[static_cast<size_t>(sampled.seq_id)] = {sampled.sample.token};
    }
    next[0].insert(next[0].end(), {next[0][0], 3, 4, 5});
    all.insert(all.end(), logprobs.begin(), logprobs.end());
    all.insert(all.end(), embedding.begin(), embedding.end());
  }
  std::vector<int32_t> sampled(2);
  std::vector<float> logits(2 * kVocab);
  engine.decode_batch(std::vector<int32_t>{2, 0}, std::vector<int32_t>{7, 8}, sampled.data(),
                      logits.data());
  all.insert(all.end(), logits.begin(), logits.end());
  engine.prefill_chunk(1, some_tokens(17, 4), logits.data());
  all.insert(all.end(), logits.begin(), logits.end());
  return all;
}

}  // namespace

TEST(a_buffer_that_is_touched_between_operations_ends_the_process) {
  DeviceDouble device(std::make_unique<NaiveBackend>());
  Buffer buffer = device.make_buffer(100);
  EXPECT(survives([] {}));
  EXPECT(!survives([&] { static_cast<volatile std::byte*>(buffer.as<std::byte>())[99]; }));
  EXPECT(!survives([&] { *buffer.as<std::byte>() = std::byte{1}; }));
  const std::vector<float> ones(8, 1.0f);
  const Vector vector = device.make_vector(
      {.name = "ones", .data = ones.data(), .rows = 8, .cols = 1, .row_stride = 1});
  EXPECT(!survives([&] { *static_cast<const volatile float*>(vector.values.as<float>()); }));
}

TEST(downloads_are_there_when_finish_has_returned) {
  DeviceDouble device(std::make_unique<NaiveBackend>());
  Heartbeat heartbeat;
  const std::vector<float> ones(8, 1.0f);
  const Vector vector = device.make_vector(
      {.name = "ones", .data = ones.data(), .rows = 8, .cols = 1, .row_stride = 1});
  std::vector<float> copy(8);
  device.download(vector.values, std::as_writable_bytes(std::span(copy)));
  EXPECT(std::isnan(copy[0]) && std::isnan(copy[7]));
  device.finish(heartbeat);
  EXPECT(copy == ones);
}

TEST(a_pass_is_no_greater_than_the_backend_was_told) {
  DeviceDouble device(std::make_unique<NaiveBackend>());
  Heartbeat heartbeat;
  device.prepare({.max_rows = 2,
                  .n_positions = 10,
                  .n_heads = 1,
                  .storages = {{.shape = {1, 8}}},
                  .vocab_size = 5});
  const KvStorage none;
  std::vector<SequenceRows> sequences = {{.n_rows = 2, .first_position = 8}};
  device.plan({.n_rows = 2, .sequences = sequences}, none);
  device.finish(heartbeat);
  device.plan({.n_rows = 3}, none);
  EXPECT_THROWS(ErrorCode::kEngine, device.finish(heartbeat));
  sequences[0].first_position = 9;
  device.plan({.n_rows = 2, .sequences = sequences}, none);
  EXPECT_THROWS(ErrorCode::kEngine, device.finish(heartbeat));
}

TEST(memory_and_time_of_the_device_do_not_show) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
    const auto plain = numbers_of(*engine_of(dtype, make_cpu_backend(2)));
    const auto engine = engine_of(dtype, std::make_unique<DeviceDouble>(make_cpu_backend(2)));
    EXPECT_EQ(engine->backend().device(), "double");
    EXPECT(numbers_of(*engine) == plain);
    EXPECT(plain.size() > 200);
  }
}

TEST(what_a_device_says_in_finish_ends_the_call_and_changes_nothing) {
  auto made = std::make_unique<DeviceDouble>(std::make_unique<NaiveBackend>());
  DeviceDouble& device = *made;
  const auto engine = engine_of(DType::kF32, std::move(made));
  for (int i = 0; i < 2; ++i) engine->seq_new("");
  const auto prompt = some_tokens(20, 1);
  prefill(*engine, 0, prompt);
  const auto before = state_of(*engine);
  std::vector<float> out(61);
  std::vector<int32_t> next(1);
  const std::vector<int32_t> ids = {0}, tokens = {5};
  const StepEntry entry = {.seq_id = 1, .tokens = prompt, .wants_logits = true};
  const auto fails = [&](auto call) {
    device.fail();
    EXPECT_THROWS(ErrorCode::kEngine, call());
    EXPECT(state_of(*engine) == before);
  };
  fails([&] { engine->step({&entry, 1}); });
  fails([&] { engine->prefill_chunk(1, prompt, out.data()); });
  fails([&] { engine->prefill_chunk(1, prompt, nullptr); });
  fails([&] { engine->decode_batch(ids, tokens, next.data(), nullptr); });
  fails([&] { engine->embed(1, prompt, Pooling::kMean, out.data()); });
  EXPECT(prefill(*engine, 1, prompt) == logits_alone(prompt));
}

TEST(a_device_that_will_not_compute_again_fails_the_restart) {
  auto made = std::make_unique<DeviceDouble>(std::make_unique<NaiveBackend>());
  DeviceDouble& device = *made;
  const auto engine = engine_of(DType::kF32, std::move(made));
  prefill(*engine, engine->seq_new(""), some_tokens(20, 1));
  const auto before = state_of(*engine);
  device.die();
  EXPECT_THROWS(ErrorCode::kEngine, engine->restart());
  EXPECT(state_of(*engine) == before);
}

TEST(the_heart_beats_where_the_device_is_waited_for) {
  class BeatingBackend : public NaiveBackend {
   public:
    void finish(Heartbeat& heartbeat) override {
      for (int i = 0; i < 100; ++i) heartbeat.beat();
    }
  };
  GuardedEngine guarded(engine_of(DType::kF32, std::make_unique<BeatingBackend>()));
  guarded.call([](Engine& engine) { prefill(engine, engine.seq_new(""), some_tokens(21, 1)); });
  EXPECT_EQ(guarded.progress(), 3 * (2 + 100) + 1);  // three ubatches of two layers, and the head
}

}  // namespace pb::test

PB_TEST_MAIN()
