// What the tests of Engine share: small engines on the naive backend, prompts, logits of a lone
// sequence. With PYBATCHER_TEST_DEVICE=double in the environment every backend becomes a
// DeviceDouble: ctest runs each program both ways.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "device_double.h"
#include "engine/engine.h"
#include "naive_backend.h"
#include "tiny_model.h"

namespace pb::test {

inline constexpr int32_t kPoison = 13;  // a token whose embedding is not finite in PoisonBackend

class PoisonBackend : public NaiveBackend {
 public:
  void embed(const Matrix& table, float scale, Buffer& x) override {
    NaiveBackend::embed(table, scale, x);
    for (int r = 0; r < batch().n_rows; ++r) {
      if (batch().tokens[r] == kPoison) x.as<float>()[int64_t{r} * table.n_in] = NAN;
    }
  }
};

inline EngineOptions small_options(int n_ubatch = 8) {
  EngineOptions options;
  options.n_ctx = 90;  // 6 blocks: 96
  options.n_parallel = 4;
  options.n_ubatch = n_ubatch;
  options.block_size = 16;
  return options;
}

inline std::unique_ptr<Engine> make_engine(
    const EngineOptions& options = small_options(),
    std::unique_ptr<Backend> backend = std::make_unique<NaiveBackend>()) {
  const char* device = std::getenv("PYBATCHER_TEST_DEVICE");
  if (device != nullptr && std::string_view(device) == "double") {
    backend = std::make_unique<DeviceDouble>(std::move(backend));
  }
  const TinyModel model = rotary_model();
  return std::make_unique<Engine>(model.config, model.tensors, options, std::move(backend));
}

inline std::vector<int32_t> some_tokens(int n, int salt) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back((i * 7 + salt * 11) % 61);
  std::ranges::replace(tokens, kPoison, 14);
  return tokens;
}

inline std::vector<float> prefill(Engine& engine, int seq_id, std::span<const int32_t> tokens) {
  std::vector<float> logits(static_cast<size_t>(engine.config().vocab_size));
  engine.prefill_chunk(seq_id, tokens, logits.data());
  return logits;
}

// The logits of the last of `tokens` in an engine that computes nothing else.
inline std::vector<float> logits_alone(std::span<const int32_t> tokens) {
  const auto engine = make_engine();
  return prefill(*engine, engine->seq_new(""), tokens);
}

// Everything that a failed call must leave as it was.
inline std::vector<int> state_of(const Engine& engine) {
  std::vector<int> state = {engine.kv().free_blocks(), engine.kv().cached_blocks(),
                            engine.kv().used_sequences(),
                            static_cast<int>(engine.statistics().forward_passes),
                            static_cast<int>(engine.statistics().computed_tokens)};
  for (int id = 0; id < engine.kv().n_parallel(); ++id) {
    state.push_back(engine.kv().seq_exists(id) ? engine.seq_length(id) : -1);
  }
  engine.check_integrity();
  return state;
}

}  // namespace pb::test
