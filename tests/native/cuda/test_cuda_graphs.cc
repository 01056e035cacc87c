// Graphs of decode passes: the bits of plain launches, few calls of the driver, and plain launches
// again where the driver refuses graphs.
#include <algorithm>
#include <string>
#include <vector>

#include "check.h"
#include "cuda_engine.h"
#include "engine_fixture.h"

namespace pb::test {
namespace {

using cuda_on_cpu::count_calls;

constexpr int kLong = 270;  // tokens of sequence 0: past a segment of attention

EngineOptions options_for(int n_sequences, DType dtype = DType::kBF16) {
  EngineOptions options = small_options(n_sequences);
  options.dtype = dtype;
  options.kv_dtype = dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
  options.n_ctx = 2048;
  options.n_parallel = n_sequences;
  return options;
}

std::unique_ptr<Engine> engine_of(const EngineOptions& options, bool graphs,
                                  const cuda::DriverApi& driver = cuda_on_cpu::emulated_driver()) {
  TinyModel model = rotary_model();
  model.config.max_position_embeddings = 1024;
  return std::make_unique<Engine>(model.config, model.tensors, options,
                                  make_emulated_backend({.graphs = graphs}, driver));
}

// Greedy, scored, at random, and with every change of scores, by turns.
Sampling sampling_of(int i) {
  Sampling s;
  s.n_prompt = 3;
  s.seed = static_cast<uint64_t>(i);
  s.wants_logprobs = i % 2 == 1;
  s.top_logprobs = s.wants_logprobs ? kMaxLogprobs : 0;
  if (i % 3 == 0) return s;
  s.temperature = 1.3;
  s.top_k = i % 3 == 1 ? 0 : 20;
  if (i % 3 == 1) return s;
  s.repetition_penalty = 1.2;
  s.presence_penalty = 0.3;
  s.logit_bias = {{5, 1.0f}, {7, -1.0f}};
  return s;
}

// Sequences that are decoded together.
struct Decoder {
  Decoder(Engine& own_engine, int n, int n_first) : engine(own_engine) {
    for (int i = 0; i < n; ++i) {
      const int id = engine.seq_new("");
      engine.seq_sampling(id, sampling_of(i));
      engine.prefill_chunk(id, some_tokens(i == 0 ? n_first : 3 + i % 9, i), nullptr);
      last.push_back(i);
    }
  }

  // A step of n sequences from `first` on, each with n_draft draft tokens.
  void step(int n, int n_draft = 0, int first = 0) {
    step(std::vector(static_cast<size_t>(n), n_draft), first);
  }

  // n_draft: of each sequence of the step
  void step(const std::vector<int>& n_draft, int first = 0) {
    const int n = static_cast<int>(n_draft.size());
    std::vector<std::vector<int32_t>> tokens;
    std::vector<StepEntry> entries;
    for (int i = first; i < first + n; ++i) {
      tokens.push_back({last[static_cast<size_t>(i)]});
      for (int j = 0; j < n_draft[static_cast<size_t>(i - first)]; ++j) {
        tokens.back().push_back((i + 9 * j) % 61);
      }
    }
    for (int i = 0; i < n; ++i) {
      entries.push_back({.seq_id = first + i,
                         .tokens = tokens[static_cast<size_t>(i)],
                         .wants_logits = true,
                         .n_draft = n_draft[static_cast<size_t>(i)]});
    }
    for (const StepSample& sampled : engine.step(entries)) {
      note(sampled.sample);
      last[static_cast<size_t>(sampled.seq_id)] = sampled.sample.token;
    }
  }

  void note(const Sample& sample) {
    EXPECT(sample.failure == nullptr);
    seen.push_back(static_cast<float>(sample.token));
    seen.push_back(sample.logprob);
    for (int k = 0; k < sample.n_top; ++k) {
      seen.push_back(static_cast<float>(sample.top[static_cast<size_t>(k)].token));
      seen.push_back(sample.top[static_cast<size_t>(k)].logprob);
    }
  }

  // All that was sampled, and logits that keys and values of up to nine sequences have a part in.
  std::vector<float> result() {
    for (size_t i = 0; i < std::min<size_t>(last.size(), 9); ++i) {
      const auto logits = prefill(engine, static_cast<int>(i), some_tokens(1, 4));
      seen.insert(seen.end(), logits.begin(), logits.end());
    }
    engine.check_integrity();
    return seen;
  }

  Engine& engine;
  std::vector<int32_t> last;  // token of each sequence
  std::vector<float> seen;
};

// With and without sequence 0, whose attention may be split.
std::vector<float> decode_some(Engine& engine, int n_sequences, int n_first) {
  Decoder decoder(engine, n_sequences, n_first);
  for (int n = 1; n <= n_sequences; ++n) {
    if (n < n_sequences) decoder.step(n, 0, 1);
    decoder.step(n);
  }
  for (int n = n_sequences; n >= 1; --n) decoder.step(n);
  return decoder.result();
}

std::vector<float> decode_some(bool graphs,
                               const cuda::DriverApi& driver = cuda_on_cpu::emulated_driver()) {
  const auto engine = engine_of(options_for(4), graphs, driver);
  return decode_some(*engine, 4, 12);
}

TEST(one_to_nine_rows_have_the_bits_of_plain_launches) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const int n = dtype == DType::kBF16 ? 9 : 4;
    const int n_first = dtype == DType::kBF16 ? kLong : 12;
    EngineOptions options = options_for(n, dtype);
    options.n_ubatch = 64;
    const auto plain = engine_of(options, false);
    const auto expected = decode_some(*plain, n, n_first);
    cuda_on_cpu::reset_emulated_driver();
    const auto engine = engine_of(options, true);
    EXPECT(decode_some(*engine, n, n_first) == expected);
    EXPECT(count_calls("cuGraphLaunch") > n);
  }
}

TEST(a_graph_takes_the_place_of_all_launches_and_is_used_again) {
  cuda_on_cpu::reset_emulated_driver();
  const auto engine = engine_of(options_for(9), true);
  Decoder decoder(*engine, 9, 30);
  for (const int n : {1, 2, 3, 5, 9}) decoder.step(n);
  EXPECT_EQ(count_calls("cuGraphLaunch"), 0);
  for (const int n : {9, 4, 1, 6, 2, 8, 7, 5, 3}) {
    const int launches = count_calls("cuLaunchKernel");
    const int copies = count_calls("cuMemcpyHtoDAsync_v2") + count_calls("cuMemcpyDtoHAsync_v2");
    const int allocations = count_calls("cuMemAlloc_v2") + count_calls("cuMemAllocHost_v2");
    const int graph_launches = count_calls("cuGraphLaunch");
    const int captured = count_calls("cuStreamBeginCapture_v2");
    decoder.step(n);
    EXPECT_EQ(count_calls("cuLaunchKernel"), launches);
    EXPECT(count_calls("cuMemcpyHtoDAsync_v2") + count_calls("cuMemcpyDtoHAsync_v2") <= copies + 3);
    EXPECT_EQ(count_calls("cuMemAlloc_v2") + count_calls("cuMemAllocHost_v2"), allocations);
    EXPECT_EQ(count_calls("cuGraphLaunch"), graph_launches + 1);
    EXPECT_EQ(count_calls("cuStreamBeginCapture_v2"), captured);
  }
  EXPECT_EQ(count_calls("cuGraphInstantiateWithFlags"), 5);
}

TEST(passes_with_rows_that_are_not_sampled_are_launched_plainly) {
  cuda_on_cpu::reset_emulated_driver();
  const auto engine = engine_of(options_for(9), true);
  Decoder decoder(*engine, 2, 30);
  const auto prompt = some_tokens(4, 8);
  const int id = engine->seq_new("");
  for (int i = 0; i < 2; ++i) {
    const std::vector<StepEntry> mixed = {
        {.seq_id = 0, .tokens = std::span(prompt).first(1), .wants_logits = true},
        {.seq_id = id, .tokens = prompt, .wants_logits = true}};
    engine->step(mixed);
    std::vector<float> embedding(static_cast<size_t>(engine->config().hidden_size));
    engine->embed(id, std::span(prompt).first(1), Pooling::kLast, embedding.data());
    prefill(*engine, id, std::span(prompt).first(1));
  }
  EXPECT_EQ(count_calls("cuStreamBeginCapture_v2"), 0);
}

TEST(rows_of_drafts_have_the_bits_of_plain_launches) {
  std::vector<float> expected;
  for (const bool graphs : {false, true}) {
    cuda_on_cpu::reset_emulated_driver();
    const auto engine = engine_of(options_for(40), graphs);
    Decoder decoder(*engine, 4, 30);
    for (const int n_draft : {3, 3, 0, 9, 2, 9}) decoder.step(4, n_draft);
    // As many rows when padded, with small tiles of queries only, large ones only, and both.
    for (int i = 0; i < 2; ++i) decoder.step(4, 7);
    for (int i = 0; i < 2; ++i) decoder.step(1, 20);
    for (int i = 0; i < 2; ++i) decoder.step({20, 0});
    if (!graphs) expected = decoder.result();
    if (graphs) EXPECT(decoder.result() == expected);
    EXPECT_EQ(count_calls("cuGraphLaunch") >= 4, graphs);
  }
}

// 40 rows go through the head in two groups, and are the most that a pass may have: 33 are padded
// to 40, not 64.
TEST(more_rows_than_the_head_takes_at_once) {
  std::vector<float> expected;
  for (const bool graphs : {false, true}) {
    cuda_on_cpu::reset_emulated_driver();
    const auto engine = engine_of(options_for(40), graphs);
    Decoder decoder(*engine, 40, 30);
    for (const int n : {33, 40, 35}) decoder.step(n);
    if (!graphs) expected = decoder.result();
    if (graphs) EXPECT(decoder.result() == expected);
    EXPECT_EQ(count_calls("cuGraphLaunch"), graphs ? 2 : 0);
  }
}

TEST(where_the_driver_refuses_graphs_launches_are_plain) {
  const auto expected = decode_some(false);
  for (const char* const function : {"cuStreamBeginCapture_v2", "cuStreamEndCapture",
                                     "cuGraphInstantiateWithFlags", "cuGraphLaunch"}) {
    cuda_on_cpu::reset_emulated_driver();
    const auto engine = engine_of(options_for(4), true);
    cuda_on_cpu::fail_call(function, 2, cuda::kErrorCaptureUnsupported);
    EXPECT(decode_some(*engine, 4, 12) == expected);
    EXPECT_EQ(count_calls(function), 2);
    const std::string problem =
        static_cast<const cuda::CudaBackend&>(engine->backend()).graphs_problem();
    EXPECT(problem.starts_with("the GPU failed, " + std::string(function) + " gave 900"));
    engine->restart();
    EXPECT(static_cast<const cuda::CudaBackend&>(engine->backend()).graphs_problem().empty());
  }
}

TEST(a_restart_makes_graphs_anew) {
  cuda_on_cpu::reset_emulated_driver();
  const auto engine = engine_of(options_for(4), true);
  cuda_on_cpu::fail_call("cuGraphInstantiateWithFlags", 1, cuda::kErrorOutOfMemory);
  const auto expected = decode_some(*engine, 4, 12);
  EXPECT_EQ(count_calls("cuGraphLaunch"), 0);
  engine->restart();
  EXPECT(decode_some(*engine, 4, 12) == expected);
  EXPECT(count_calls("cuGraphLaunch") > 3);
  const int destroyed = count_calls("cuGraphExecDestroy");
  engine->restart();
  EXPECT_EQ(count_calls("cuGraphExecDestroy"), destroyed + 3);
}

// A launch that fails while a graph is captured: the pass it was captured in has been given before.
TEST(a_launch_that_cannot_be_captured_fails_no_step) {
  const auto plain = engine_of(options_for(5), false);
  const auto decode = [](Decoder& decoder) {
    for (int n = 2; n <= 5; ++n) decoder.step(n);
    for (int n = 1; n <= 5; ++n) decoder.step(n);
    return decoder.result();
  };
  Decoder plain_decoder(*plain, 5, 30);
  plain_decoder.step(1);
  const auto expected = decode(plain_decoder);
  cuda_on_cpu::reset_emulated_driver();
  const auto engine = engine_of(options_for(5), true);
  Decoder decoder(*engine, 5, 30);
  const int before = count_calls("cuLaunchKernel");
  decoder.step(1);
  const int launches = (count_calls("cuLaunchKernel") - before) / 2;  // of a pass; as many captured
  cuda_on_cpu::fail_call("cuLaunchKernel", launches + 3, cuda::kErrorOutOfMemory);
  EXPECT(decode(decoder) == expected);
  EXPECT_EQ(count_calls("cuGraphLaunch"), 0);
}

TEST(an_error_that_loses_the_device_fails_the_step) {
  for (const char* const function : {"cuGraphInstantiateWithFlags", "cuGraphLaunch"}) {
    cuda_on_cpu::reset_emulated_driver();
    {
      const auto engine = engine_of(options_for(5), true);
      Decoder decoder(*engine, 2, 30);
      cuda_on_cpu::fail_call(function, 1, cuda::kErrorIllegalAddress);
      const auto steps = [&] {
        decoder.step(2);
        decoder.step(2);
      };
      EXPECT_THROWS(ErrorCode::kEngine, steps());
      EXPECT_THROWS(ErrorCode::kEngine, engine->restart());
    }
    cuda_on_cpu::reset_emulated_driver();
  }
}

TEST(graphs_are_given_back) {
  decode_some(true);
  EXPECT_EQ(cuda_on_cpu::not_given_back(), std::string());
}

// -- what these tests would see ---------------------------------------------------------------

cuda::GraphExecHandle first_graph = nullptr;

// A driver that launches the graph that was launched first, of one row, whichever is asked for.
cuda::Result launch_first(cuda::GraphExecHandle graph, cuda::StreamHandle stream) {
  if (first_graph == nullptr) first_graph = graph;
  return cuda_on_cpu::emulated_driver().launch_graph.call(first_graph, stream);
}

// A driver whose graphs do nothing.
cuda::Result launch_nothing(cuda::GraphExecHandle, cuda::StreamHandle) { return cuda::kSuccess; }

TEST(a_graph_of_other_rows_would_be_seen) {
  const auto expected = decode_some(true);
  for (const auto wrong : {launch_first, launch_nothing}) {
    cuda::DriverApi driver = cuda_on_cpu::emulated_driver();
    driver.launch_graph.call = wrong;
    EXPECT(decode_some(true, driver) != expected);
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
