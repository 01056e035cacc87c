// The engine on the CUDA backend, on the emulator: near the naive backend, and the same bits under
// any schedule.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "cuda_engine.h"
#include "emulated_state.h"
#include "emulator.h"
#include "engine_fixture.h"

namespace pb::test {
namespace {

struct Case {
  const char* name;
  DType dtype;
  DType kv_dtype;
  float tolerance;  // of logits, of which the largest are about 1
};

constexpr Case kCases[] = {{"f32", DType::kF32, DType::kF32, 2e-5f},
                           {"bf16", DType::kBF16, DType::kBF16, 3e-2f},
                           {"bf16, KV f16", DType::kBF16, DType::kF16, 3e-2f},
                           {"bf16, KV int8", DType::kBF16, DType::kInt8, 6e-2f},
                           {"int8", DType::kInt8, DType::kBF16, 6e-2f},
                           {"int4", DType::kInt4, DType::kInt8, 3e-1f}};

EngineOptions options_of(const Case& c, int n_ubatch) {
  EngineOptions options = small_options(n_ubatch);
  options.dtype = c.dtype;
  options.kv_dtype = c.kv_dtype;
  options.n_ctx = 256;
  return options;
}

std::unique_ptr<Engine> engine_of(const TinyModel& model, const EngineOptions& options,
                                  std::unique_ptr<Backend> backend) {
  return std::make_unique<Engine>(model.config, model.tensors, options, std::move(backend));
}

TinyModel model_with_sinks() {
  TinyModel model = rotary_model();
  for (int i = 0; i < model.config.n_layers; ++i) {
    model.add("layers." + std::to_string(i) + ".sinks.weight", model.config.n_heads, 1, 0.0f, 2.0f);
  }
  return model;
}

TEST(logits_are_near_the_reference) {
  for (const auto make_model : {rotary_model, learned_model, gemma_model, olmo_model, varied_model,
                                xielu_model, model_with_sinks, squared_model}) {
    const TinyModel model = make_model();
    for (const Case& c : kCases) {
      // Its layers are too narrow: the reference's weights are not rounded.
      if (make_model == varied_model && is_quantised(c.dtype)) continue;
      auto tokens = some_tokens(37, 3);
      for (int32_t& token : tokens) token %= model.config.vocab_size;
      const DType reference = c.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
      EngineOptions plain = options_of(c, 64);
      plain.dtype = reference;
      plain.kv_dtype = DType::kF32;
      const auto naive = engine_of(model, plain, std::make_unique<NaiveBackend>());
      const auto cuda = engine_of(model, options_of(c, 64), make_emulated_backend());
      const auto expected = prefill(*naive, naive->seq_new(""), tokens);
      const auto logits = prefill(*cuda, cuda->seq_new(""), tokens);
      float worst = 0.0f;
      float largest = 0.0f;
      for (size_t i = 0; i < logits.size(); ++i) {
        worst = std::max(worst, std::abs(logits[i] - expected[i]));
        largest = std::max(largest, std::abs(expected[i]));
      }
      std::printf("  %s: %g of %g\n", c.name, double{worst}, double{largest});
      EXPECT(worst <= c.tolerance * std::max(1.0f, largest));
    }
  }
}

void expect_same_bits_under_any_schedule(const TinyModel& model) {
  for (const Case& c : kCases) {
    const auto tokens = some_tokens(53, 5);
    const auto whole = engine_of(model, options_of(c, 64), make_emulated_backend());
    const auto expected = prefill(*whole, whole->seq_new(""), tokens);
    for (const size_t chunk : {1, 7, 50}) {
      const auto engine = engine_of(model, options_of(c, 8), make_emulated_backend());
      const int other = engine->seq_new("");
      const int seq_id = engine->seq_new("");
      std::vector<float> logits;
      for (size_t at = 0; at < tokens.size(); at += chunk) {
        engine->prefill_chunk(other, some_tokens(1, static_cast<int>(at)), nullptr);
        const auto part = std::span(tokens).subspan(at, std::min(chunk, tokens.size() - at));
        logits = prefill(*engine, seq_id, part);
      }
      EXPECT(logits == expected);
    }
  }
}

TEST(logits_have_the_same_bits_under_any_schedule) {
  expect_same_bits_under_any_schedule(rotary_model());
}

TEST(layers_of_unlike_shapes_have_the_same_bits_under_any_schedule) {
  expect_same_bits_under_any_schedule(varied_model());
}

// A backend whose GPU has this architecture (90: sm_90), and so few multiprocessors that no grid is
// too small for the kernels of large tiles.
std::unique_ptr<Backend> make_small_gpu(const char* architecture) {
  setenv("PYBATCHER_EMULATED_ARCHITECTURE", architecture, 1);
  setenv("PYBATCHER_EMULATED_MULTIPROCESSORS", "1", 1);
  auto backend = make_emulated_backend();
  unsetenv("PYBATCHER_EMULATED_ARCHITECTURE");
  unsetenv("PYBATCHER_EMULATED_MULTIPROCESSORS");
  return backend;
}

TEST(wgmma_is_in_use_and_changes_no_bit) {
  const TinyModel model = rotary_model();
  cuda_on_cpu::options().mma = cuda_on_cpu::MmaModel::kHopper;
  for (const Case& c : kCases) {
    if (c.kv_dtype != DType::kBF16) continue;
    const auto tokens = some_tokens(37, 5);
    const auto logits_of = [&](const char* architecture, int n_ubatch) {
      auto backend = make_small_gpu(architecture);
      EXPECT_EQ(backend->target(), std::string("sm_") + architecture);
      const auto engine = engine_of(model, options_of(c, n_ubatch), std::move(backend));
      return prefill(*engine, engine->seq_new(""), tokens);
    };
    const uint64_t before = cuda_on_cpu::counters().wgmmas;
    const auto expected = logits_of("89", 64);
    const auto by_few_rows = logits_of("90", 8);
    EXPECT_EQ(cuda_on_cpu::counters().wgmmas, before);
    EXPECT(logits_of("90", 64) == expected);
    EXPECT(cuda_on_cpu::counters().wgmmas > before);
    EXPECT(by_few_rows == expected);
  }
  cuda_on_cpu::options().mma = cuda_on_cpu::MmaModel::kSequential;
}

TEST(greedy_tokens_are_those_of_the_reference) {
  const TinyModel model = rotary_model();
  const auto run = [&](std::unique_ptr<Backend> backend) {
    const auto engine = engine_of(model, small_options(), std::move(backend));
    std::vector<int32_t> sampled;
    std::vector<int> ids;
    std::vector<int32_t> last;
    for (int i = 0; i < 3; ++i) {
      ids.push_back(engine->seq_new(""));
      engine->prefill_chunk(ids.back(), some_tokens(9 + i, i), nullptr);
      last.push_back(5);
    }
    for (int step = 0; step < 10; ++step) {
      std::vector<int32_t> next(ids.size());
      engine->decode_batch(ids, last, next.data(), nullptr);
      sampled.insert(sampled.end(), next.begin(), next.end());
      last = next;
    }
    engine->check_integrity();
    return sampled;
  };
  EXPECT(run(make_emulated_backend()) == run(std::make_unique<NaiveBackend>()));
}

TEST(heads_of_sizes_without_kernels_are_refused_by_name) {
  const auto refusal = [](const TinyModel& model) -> std::string {
    const auto backend = make_emulated_backend();
    try {
      load_weights(model.config, model.tensors, DType::kF32, *backend);
    } catch (const Error& error) {
      EXPECT(error.code() == ErrorCode::kConfig);
      return error.what();
    }
    return "(loaded)";
  };
  TinyModel model = learned_model();
  const int most = make_emulated_backend()->max_head_dim();
  for (const int head_dim : {15, 1, most + 2}) {
    model.config.head_dim = head_dim;
    const std::string said = refusal(model);
    EXPECT(said.find("config.head_dim is " + std::to_string(head_dim)) != std::string::npos);
    EXPECT(said.find("even sizes up to " + std::to_string(most)) != std::string::npos);
    EXPECT(said.find("use device='cpu'") != std::string::npos);
  }
  EXPECT_EQ(refusal(learned_model()), "(loaded)");
}

// Else the GPU would go on reading the plan and writing logits that the host has other uses for.
TEST(no_work_is_under_way_after_a_pass_that_failed) {
  const TinyModel model = rotary_model();
  const auto engine = engine_of(model, small_options(), make_emulated_backend());
  const auto tokens = some_tokens(9, 1);
  const auto expected = prefill(*engine, engine->seq_new("a"), tokens);
  for (const char* function : {"cuLaunchKernel", "cuStreamQuery"}) {
    cuda_on_cpu::fail_call(function, 9, cuda::kErrorOutOfMemory);
    const int seq_id = engine->seq_new(function);
    EXPECT_THROWS(ErrorCode::kOutOfMemory, prefill(*engine, seq_id, tokens));
    for (const auto* stream : cuda_on_cpu::state().streams) EXPECT(stream->work.empty());
  }
  engine->restart();
  EXPECT(prefill(*engine, engine->seq_new(""), tokens) == expected);
}

TEST(a_gpu_that_is_lost_says_why_whenever_a_restart_is_tried) {
  const TinyModel model = rotary_model();
  const auto engine = engine_of(model, small_options(), make_emulated_backend());
  const int seq_id = engine->seq_new("");
  cuda_on_cpu::fail_call("cuStreamQuery", 3, cuda::kErrorIllegalAddress);
  EXPECT_THROWS(ErrorCode::kEngine, prefill(*engine, seq_id, some_tokens(9, 1)));
  for (int i = 0; i < 2; ++i) {
    try {
      engine->restart();
      EXPECT(false);
    } catch (const Error& error) {
      const std::string said = error.what();
      EXPECT(error.code() == ErrorCode::kEngine);
      EXPECT(said.find("start a new one") != std::string::npos);
      EXPECT(said.find("cuStreamQuery gave 700 (CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
    }
  }
  cuda_on_cpu::reset_emulated_driver();
}

TEST(an_automatic_context_takes_half_of_what_is_free) {
  const TinyModel model = learned_model();
  EngineOptions options = options_of(kCases[1], 8);
  options.n_ctx = kAutoContext;
  options.n_parallel = 5;
  const auto roomy = engine_of(model, options, make_emulated_backend());
  EXPECT_EQ(roomy->options().n_ctx, 5 * 64);  // all that five sequences can use
  options.n_parallel = 1 << 14;
  for (const size_t limit : {size_t{400} << 20, size_t{410} << 20}) {
    cuda_on_cpu::set_memory_limit(limit);
    const auto engine = engine_of(model, options, make_emulated_backend());
    size_t free = 0;
    size_t total = 0;
    cuda_on_cpu::emulated_driver().memory_info.call(&free, &total);
    const size_t block = engine->kv_bytes() / static_cast<size_t>(engine->kv().total_blocks());
    EXPECT(free >= engine->kv_bytes() && free < engine->kv_bytes() + 2 * block);
    const auto beside = engine_of(model, options, make_emulated_backend());
    for (Engine* one : {engine.get(), beside.get()}) {
      EXPECT(prefill(*one, one->seq_new(""), std::vector{1, 2, 3}).size() == 53);
    }
  }
  cuda_on_cpu::set_memory_limit(size_t{1} << 20);
  EXPECT_THROWS(ErrorCode::kOutOfMemory, engine_of(model, options, make_emulated_backend()));
  cuda_on_cpu::reset_emulated_driver();
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
