// Layers with experts: what is refused, that passes are cut without a trace, that every weight
// counts. That the numbers are those of the papers is tests/system/models/test_oracle.py's part.
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "counted_heap.h"
#include "model/forward.h"
#include "model/moe.h"
#include "tiny_model.h"

namespace pb::test {
namespace {

constexpr int kBlock = 16;
constexpr int kPositions = 64;

std::string refusal(ErrorCode code, const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& e) {
    EXPECT(e.code() == code);
    return e.what();
  }
  return "(nothing thrown)";
}

void expect_config_refused(const std::function<void(ModelConfig&)>& damage, const char* field) {
  ModelConfig config = moe_model().config;
  config.validate();
  damage(config);
  const std::string message = refusal(ErrorCode::kModelFormat, [&] { config.validate(); });
  if (message.find(field) == std::string::npos) {
    fail(__FILE__, __LINE__, std::string(field) + ": " + message);
  }
}

void expect_weights_refused(const std::function<void(TinyModel&)>& damage, const char* tensor,
                            TinyModel (*make)() = moe_model) {
  const auto backend = make_cpu_backend(1);
  TinyModel model = make();
  damage(model);
  const std::string message = refusal(ErrorCode::kModelFormat, [&] {
    load_weights(model.config, model.tensors, DType::kF32, *backend);
  });
  if (message.find(tensor) == std::string::npos) {
    fail(__FILE__, __LINE__, std::string(tensor) + ": " + message);
  }
}

// The logits of 20 positions, (20, vocab), computed `chunk` rows a pass. Counts what passes
// allocate.
std::vector<float> all_logits(const TinyModel& model, DType dtype, int chunk, int n_threads = 2) {
  constexpr int kTokens = 20;
  const auto backend = make_cpu_backend(n_threads);
  const ModelConfig& c = model.config;
  const Weights weights = load_weights(c, model.tensors, dtype, *backend);
  Forward forward(
      c, weights, *backend,
      {.n_ubatch = chunk, .n_positions = kPositions, .n_sequences = 1, .storages = one_storage(c)});
  ModelKv kv = one_group(c, backend->make_kv(kPositions / kBlock, kBlock, c.n_layers, c.n_kv_heads,
                                             c.head_dim, DType::kF32));
  const std::vector<int32_t> block_table = {2, 0, 3, 1};
  std::vector<int32_t> tokens(kTokens), all(kTokens);
  std::iota(all.begin(), all.end(), 0);
  for (int i = 0; i < kTokens; ++i) tokens[static_cast<size_t>(i)] = (i * 17 + 5) % c.vocab_size;
  std::vector<float> logits(static_cast<size_t>(kTokens * c.vocab_size));
  const int64_t before = n_allocations;
  for (int begin = 0; begin < kTokens; begin += chunk) {
    const int rows = std::min(chunk, kTokens - begin);
    const SequenceRows sequence{
        .n_rows = rows, .first_position = begin, .block_tables = {block_table.data()}};
    backend->plan({.n_rows = rows,
                   .tokens = tokens.data() + begin,
                   .positions = all.data() + begin,
                   .sequences = {&sequence, 1},
                   .logits_rows = std::span(all).first(static_cast<size_t>(rows))},
                  kv.storages[0]);
    forward.run(rows, kv);
    const auto of_pass = std::span(logits).subspan(static_cast<size_t>(begin * c.vocab_size),
                                                   static_cast<size_t>(rows * c.vocab_size));
    backend->download(forward.logits(0, rows), std::as_writable_bytes(of_pass));
  }
  EXPECT_EQ(n_allocations - before, 0);
  return logits;
}

}  // namespace

TEST(config_refuses_what_no_mixture_has) {
  expect_config_refused([](ModelConfig& c) { c.moe.n_experts = -1; }, "moe.n_experts");
  expect_config_refused([](ModelConfig& c) { c.moe.n_experts = 1'000'000; }, "moe.n_experts");
  expect_config_refused([](ModelConfig& c) { c.moe.n_experts_per_row = 6; }, "n_experts_per_row");
  expect_config_refused([](ModelConfig& c) { c.moe.n_experts_per_row = 0; }, "n_experts_per_row");
  expect_config_refused([](ModelConfig& c) { c.moe.intermediate_size = 0; }, "intermediate_size");
  expect_config_refused([](ModelConfig& c) { c.moe.in_layer.pop_back(); }, "moe.in_layer");
  expect_config_refused([](ModelConfig& c) { c.moe.n_experts = 0; }, "moe.in_layer");
  expect_config_refused([](ModelConfig& c) { c.gated_mlp = false; }, "gated_mlp");
  expect_config_refused([](ModelConfig& c) { c.moe.swiglu_limit = -1.0f; }, "swiglu_limit");
  expect_config_refused([](ModelConfig& c) { c.moe.swiglu_limit = NAN; }, "swiglu_limit");
  expect_config_refused([](ModelConfig& c) { c.moe.swiglu_alpha = 0.0f; }, "swiglu_alpha");
  expect_config_refused([](ModelConfig& c) { c.pre_norm = false; }, "pre_norm");
  expect_config_refused([](ModelConfig& c) { c.post_norm = true; }, "post_norm is true");
  expect_config_refused([](ModelConfig& c) { c.moe.beside_mlp = true; }, "post_norm is false");
}

TEST(weights_of_experts_are_checked) {
  for (const char* name : {"layers.0.router.weight", "layers.0.experts.4.down.weight"}) {
    expect_weights_refused([name](TinyModel& m) { m.tensors.erase(name); }, name);
    expect_weights_refused([name](TinyModel& m) { m.tensors.at(name).rows -= 1; }, name);
    expect_weights_refused([name](TinyModel& m) { m.values(name)[3] = NAN; }, name);
  }
  expect_weights_refused([](TinyModel& m) { m.add("layers.0.router.bias", 4, 1); },
                         "layers.0.router.bias");
  expect_weights_refused([](TinyModel& m) { m.add("layers.0.experts.1.up.bias", 13, 1); },
                         "layers.0.experts.1.up.bias");
  expect_weights_refused([](TinyModel& m) { m.add("layers.1.sinks.weight", 5, 1); },
                         "layers.1.sinks.weight");
  expect_weights_refused([](TinyModel& m) { m.add("layers.0.experts.5.up.weight", 12, 24); },
                         "layers.0.experts.5.up.weight");
  expect_weights_refused([](TinyModel& m) { m.add("layers.0.up.weight", 40, 24); },
                         "layers.0.up.weight");
}

TEST(weights_of_experts_beside_an_mlp_are_checked) {
  for (const char* name :
       {"layers.0.router_norm.weight", "layers.0.experts_norm.weight",
        "layers.0.mlp_out_norm.weight", "layers.0.experts_out_norm.weight",
        "layers.0.expert_scales.weight", "layers.0.down.weight", "layers.0.mlp_post_norm.weight"}) {
    const auto refused = [&](const std::function<void(TinyModel&)>& damage) {
      expect_weights_refused(damage, name, beside_model);
    };
    refused([name](TinyModel& m) { m.tensors.erase(name); });
    refused([name](TinyModel& m) { m.tensors.at(name).rows -= 1; });
    refused([name](TinyModel& m) { m.values(name)[3] = NAN; });
  }
  expect_weights_refused([](TinyModel& m) { m.add("layers.1.router_norm.weight", 24, 1); },
                         "layers.1.router_norm.weight", beside_model);
}

TEST(weights_of_a_shared_expert_are_checked) {
  for (const char* name : {"layers.0.shared_gate", "layers.0.up.weight"}) {
    const auto refused = [&](const std::function<void(TinyModel&)>& damage) {
      expect_weights_refused(damage, name, shared_expert_model);
    };
    refused([name](TinyModel& m) { m.tensors.erase(name); });
    refused([name](TinyModel& m) { m.tensors.at(name).rows -= 1; });
    refused([name](TinyModel& m) { m.values(name)[3] = NAN; });
  }
  expect_weights_refused([](TinyModel& m) { m.add("layers.1.shared_gate", 24, 1); },
                         "layers.1.shared_gate", shared_expert_model);
  expect_config_refused([](ModelConfig& c) { c.moe.shared_expert = c.moe.beside_mlp = true; },
                        "moe.shared_expert");
}

TEST(a_shared_expert_without_a_gate_has_no_weight_for_it) {
  expect_weights_refused([](TinyModel& m) { m.add("layers.0.shared_gate", 24, 1); },
                         "layers.0.shared_gate", ungated_shared_expert_model);
}

TEST(passes_with_experts_leave_no_trace) {
  for (const TinyModel& model : {moe_model(), oss_model(), beside_model(), shared_expert_model(),
                                 ungated_shared_expert_model(), biased_router_model()}) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
      const auto whole = all_logits(model, dtype, 32);
      for (int chunk : {1, 7}) EXPECT(all_logits(model, dtype, chunk) == whole);
      EXPECT(all_logits(model, dtype, 32, 1) == whole);
    }
  }
}

TEST(every_part_of_a_mixture_matters) {
  for (const auto& make : {moe_model, oss_model, beside_model, shared_expert_model,
                           ungated_shared_expert_model, biased_router_model}) {
    const TinyModel intact = make();
    const auto expected = all_logits(intact, DType::kF32, 32);
    for (const auto& [name, view] : intact.tensors) {
      TinyModel changed = make();
      for (int64_t i = 0; i < view.rows * view.cols; ++i) changed.values(name)[i] *= 1.5f;
      if (all_logits(changed, DType::kF32, 32) == expected) {
        fail(__FILE__, __LINE__, name + " is not used");
      }
    }
    TinyModel other = make();
    other.config.moe.normalised = false;
    EXPECT(all_logits(other, DType::kF32, 32) != expected);
  }
}

TEST(every_number_of_a_bounded_activation_matters) {
  const auto expected = all_logits(oss_model(), DType::kF32, 32);
  TinyModel changed = oss_model();
  changed.config.moe.swiglu_alpha = 1.6f;
  EXPECT(all_logits(changed, DType::kF32, 32) != expected);
  for (const float limit : {0.4f, 0.0f}) {
    TinyModel other = oss_model();
    other.config.moe.swiglu_limit = limit;
    EXPECT(all_logits(other, DType::kF32, 32) != expected);
  }
}

}  // namespace pb::test

PB_TEST_MAIN()
