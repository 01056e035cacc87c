// Models with experts on the CUDA backend, on the emulator: near the CPU's logits, and the same
// bits under any schedule, from every kernel.
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "check.h"
#include "cuda_engine.h"
#include "emulator.h"
#include "engine_fixture.h"

namespace pb::test {
namespace {

EngineOptions options_of(DType dtype, int n_ubatch) {
  EngineOptions options = small_options(n_ubatch);
  options.dtype = dtype;
  options.kv_dtype = DType::kF32;
  options.n_ctx = 512;
  return options;
}

// The logits after `tokens`, computed `chunk` a call.
std::vector<float> logits_of(const TinyModel& model, const EngineOptions& options,
                             std::unique_ptr<Backend> backend, std::span<const int32_t> tokens,
                             size_t chunk) {
  Engine engine(model.config, model.tensors, options, std::move(backend));
  const int seq_id = engine.seq_new("");
  std::vector<float> logits;
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    logits = prefill(engine, seq_id, tokens.subspan(at, std::min(chunk, tokens.size() - at)));
  }
  return logits;
}

std::vector<int32_t> tokens_for(const TinyModel& model, int n) {
  std::vector<int32_t> tokens = some_tokens(n, 3);
  for (int32_t& token : tokens) token %= model.config.vocab_size;
  return tokens;
}

TEST(logits_are_near_those_of_the_cpu) {
  for (const auto make_model : {moe_model, oss_model, shared_expert_model}) {
    const TinyModel model = make_model();
    const EngineOptions options = options_of(DType::kF32, 64);
    const std::vector<int32_t> tokens = tokens_for(model, 37);
    const auto expected = logits_of(model, options, make_cpu_backend(1), tokens, 37);
    const auto logits = logits_of(model, options, make_emulated_backend(), tokens, 37);
    float worst = 0.0f;
    float largest = 0.0f;
    for (size_t i = 0; i < logits.size(); ++i) {
      worst = std::max(worst, std::abs(logits[i] - expected[i]));
      largest = std::max(largest, std::abs(expected[i]));
    }
    EXPECT(worst <= 2e-5f * std::max(1.0f, largest));
  }
}

TEST(logits_have_the_same_bits_under_any_schedule) {
  for (const auto make_model : {moe_model, oss_model, shared_expert_model}) {
    const TinyModel model = make_model();
    const std::vector<int32_t> tokens = tokens_for(model, 37);
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
      const auto run = [&](int n_ubatch, size_t chunk) {
        return logits_of(model, options_of(dtype, n_ubatch), make_emulated_backend(), tokens,
                         chunk);
      };
      const auto expected = run(64, 37);
      EXPECT(run(64, 1) == expected);
      EXPECT(run(8, 7) == expected);
    }
  }
}

TEST(wgmma_is_in_use_and_changes_no_bit) {
  TinyModel model = moe_model();
  model.config.max_position_embeddings = 512;
  const std::vector<int32_t> tokens = tokens_for(model, 250);
  cuda_on_cpu::options().mma = cuda_on_cpu::MmaModel::kHopper;
  const auto run = [&](const char* architecture, int n_ubatch) {
    setenv("PYBATCHER_EMULATED_ARCHITECTURE", architecture, 1);
    setenv("PYBATCHER_EMULATED_MULTIPROCESSORS", "1000", 1);  // too many for wgmma elsewhere
    auto backend = make_emulated_backend();
    unsetenv("PYBATCHER_EMULATED_ARCHITECTURE");
    unsetenv("PYBATCHER_EMULATED_MULTIPROCESSORS");
    return logits_of(model, options_of(DType::kInt8, n_ubatch), std::move(backend), tokens, 250);
  };
  const uint64_t before = cuda_on_cpu::counters().wgmmas;
  const auto expected = run("89", 256);
  const auto by_few_rows = run("90", 16);
  EXPECT_EQ(cuda_on_cpu::counters().wgmmas, before);
  EXPECT(run("90", 256) == expected);
  EXPECT(cuda_on_cpu::counters().wgmmas > before);
  EXPECT(by_few_rows == expected);
  cuda_on_cpu::options().mma = cuda_on_cpu::MmaModel::kSequential;
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
