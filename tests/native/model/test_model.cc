// ModelConfig::validate, load_weights and Forward over the naive backend: what is refused, and that
// the passes are cut without a trace. That the numbers are those of the papers is
// tests/test_oracle.py's part.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "check.h"
#include "counted_heap.h"
#include "model/forward.h"
#include "naive_backend.h"
#include "tiny_model.h"

namespace pb::test {
namespace {

constexpr int kBlock = 16;
constexpr int kPositions = 64;

void expect_config_refused(const std::function<void(ModelConfig&)>& damage, const char* field) {
  ModelConfig config = rotary_model().config;
  config.validate();
  damage(config);
  std::string message;
  try {
    config.validate();
  } catch (const Error& e) {
    EXPECT(e.code() == ErrorCode::kModelFormat);
    message = e.what();
  }
  if (message.find(field) == std::string::npos)
    fail(__FILE__, __LINE__, std::string(field) + ": " + message);
}

void expect_weights_refused(const std::function<void(TinyModel&)>& damage, const char* tensor) {
  NaiveBackend backend;
  TinyModel model = rotary_model();
  damage(model);
  std::string message;
  try {
    load_weights(model.config, model.tensors, DType::kF32, backend);
  } catch (const Error& e) {
    EXPECT(e.code() == ErrorCode::kModelFormat);
    message = e.what();
  }
  if (message.find(tensor) == std::string::npos)
    fail(__FILE__, __LINE__, std::string(tensor) + ": " + message);
}

// The logits of every position, (tokens.size(), vocab), computed `chunk` rows a pass.
std::vector<float> all_logits(const TinyModel& model, const std::vector<int32_t>& tokens,
                              int chunk) {
  NaiveBackend backend;
  const Weights weights = load_weights(model.config, model.tensors, DType::kF32, backend);
  Forward forward(model.config, weights, backend,
                  {.n_ubatch = chunk,
                   .n_positions = kPositions,
                   .n_sequences = 1,
                   .storages = one_storage(model.config)});
  const ModelConfig& c = model.config;
  ModelKv kv = one_group(c, backend.make_kv(kPositions / kBlock, kBlock, c.n_layers, c.n_kv_heads,
                                            c.head_dim, DType::kF32));
  const std::vector<int32_t> block_table = {2, 0, 3, 1};
  std::vector<float> logits;
  const int n = static_cast<int>(tokens.size());
  for (int begin = 0; begin < n; begin += chunk) {
    const int rows = std::min(chunk, n - begin);
    std::vector<int32_t> positions(static_cast<size_t>(rows));
    std::iota(positions.begin(), positions.end(), begin);
    const std::vector<SequenceRows> sequences = {
        {.n_rows = rows, .first_position = begin, .block_tables = {block_table.data()}}};
    std::vector<int32_t> all(static_cast<size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    backend.plan({.n_rows = rows,
                  .tokens = tokens.data() + begin,
                  .positions = positions.data(),
                  .sequences = sequences,
                  .logits_rows = all},
                 kv.storages[0]);
    forward.run(rows, kv);
    std::vector<float> out(static_cast<size_t>(rows * c.vocab_size));
    backend.download(forward.logits(0, rows), std::as_writable_bytes(std::span(out)));
    logits.insert(logits.end(), out.begin(), out.end());
  }
  return logits;
}

std::vector<int32_t> some_tokens(int n, int vocab) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back((i * 17 + 5) % vocab);
  return tokens;
}

}  // namespace

TEST(config_refuses_what_no_model_has) {
  expect_config_refused([](ModelConfig& c) { c.vocab_size = 0; }, "vocab_size");
  expect_config_refused([](ModelConfig& c) { c.hidden_size = -1; }, "hidden_size");
  expect_config_refused([](ModelConfig& c) { c.n_layers = 0; }, "n_layers");
  expect_config_refused([](ModelConfig& c) { c.n_kv_heads = 4; }, "n_kv_heads");
  expect_config_refused([](ModelConfig& c) { c.n_kv_heads = 12; }, "n_kv_heads");
  expect_config_refused([](ModelConfig& c) { c.head_dim = 7; }, "head_dim");
  expect_config_refused([](ModelConfig& c) { c.intermediate_size = 1 << 30; }, "intermediate_size");
  expect_config_refused([](ModelConfig& c) { c.max_position_embeddings = 0; }, "max_position");
  expect_config_refused([](ModelConfig& c) { c.norm_eps = std::nanf(""); }, "norm_eps");
  expect_config_refused([](ModelConfig& c) { c.attention_scale = 0.0f; }, "attention_scale");
  expect_config_refused([](ModelConfig& c) { c.embedding_scale = 0.0f; }, "embedding_scale");
  expect_config_refused([](ModelConfig& c) { c.logit_scale = INFINITY; }, "logit_scale");
  expect_config_refused([](ModelConfig& c) { c.attention_softcap = -1.0f; }, "attention_softcap");
  expect_config_refused([](ModelConfig& c) { c.logit_softcap = std::nanf(""); }, "logit_softcap");
  const auto of_layer_norm = [](auto damage) {
    return [damage](ModelConfig& c) {
      c.norm = NormKind::kLayer;
      damage(c);
    };
  };
  expect_config_refused(of_layer_norm([](ModelConfig& c) { c.post_norm = true; }), "post_norm");
  expect_config_refused(of_layer_norm([](ModelConfig& c) { c.whole_qk_norm = true; }), "whole_qk");
  expect_config_refused([](ModelConfig& c) { c.ropes[0].inv_freq.pop_back(); }, "ropes.inv_freq");
  expect_config_refused([](ModelConfig& c) { c.ropes[0].inv_freq[1] = INFINITY; }, "inv_freq");
  expect_config_refused([](ModelConfig& c) { c.position = PositionKind::kLearned; }, "ropes");
  expect_config_refused([](ModelConfig& c) { c.ropes[0].attention_factor = -1; }, "ropes.att");
  expect_config_refused([](ModelConfig& c) { c.ropes[0].long_inv_freq = {1.0f}; }, "long_inv_freq");
  expect_config_refused([](ModelConfig& c) { c.ropes[0].long_inv_freq = {1, 1, 1, 1}; },
                        "ropes.original_positions");
  expect_config_refused([](ModelConfig& c) { c.ropes[0].query_beta = 0.1f; }, "original_positions");
  expect_config_refused([](ModelConfig& c) { c.ropes[0].query_beta = -1.0f; }, "ropes.query_beta");
  expect_config_refused([](ModelConfig& c) { c.activation = Activation::kXielu; }, "activation");
  expect_config_refused([](ModelConfig& c) { c.qk_norm_after_rope = c.whole_qk_norm = true; },
                        "qk_norm_after_rope");
  expect_config_refused([](ModelConfig& c) { c.layer_ropes.pop_back(); }, "layer_ropes");
  expect_config_refused([](ModelConfig& c) { c.layer_ropes[0] = 1; }, "layer_ropes");
  expect_config_refused([](ModelConfig& c) { c.layer_ropes[0] = -2; }, "layer_ropes");
  expect_config_refused([](ModelConfig& c) { c.sliding_windows.pop_back(); }, "sliding_windows");
  expect_config_refused([](ModelConfig& c) { c.sliding_windows[0] = -3; }, "sliding_windows");
}

TEST(weights_are_checked_where_they_are_used) {
  const auto wrong_shape = [](const char* name) {
    return [name](TinyModel& m) { m.tensors.at(name).rows -= 1; };
  };
  for (const char* name : {"token_embedding", "layers.1.k.weight", "layers.0.q.bias",
                           "layers.1.k_norm.weight", "layers.0.down.weight", "head.weight"}) {
    expect_weights_refused(wrong_shape(name), name);
  }
  for (const char* name : {"token_embedding", "layers.1.v.weight", "layers.0.q_norm.weight",
                           "layers.0.mlp_norm.weight", "final_norm.weight"}) {
    expect_weights_refused([name](TinyModel& m) { m.tensors.erase(name); }, name);
  }
  expect_weights_refused([](TinyModel& m) { m.add("layers.2.q.weight", 48, 24); },
                         "layers.2.q.weight");
  expect_weights_refused([](TinyModel& m) { m.add("position_embedding", 96, 24); },
                         "position_embedding");
  expect_weights_refused([](TinyModel& m) { m.values("layers.1.up.weight")[7] = NAN; },
                         "layers.1.up.weight");
  expect_weights_refused([](TinyModel& m) { m.values("layers.1.attn_norm.weight")[7] = INFINITY; },
                         "layers.1.attn_norm.weight");
}

TEST(a_head_that_is_not_there_is_the_embedding) {
  TinyModel tied = rotary_model();
  tied.tensors.erase("head.weight");
  TinyModel copied = rotary_model();
  copied.tensors["head.weight"] = copied.tensors["token_embedding"];
  const auto tokens = some_tokens(9, tied.config.vocab_size);
  EXPECT(all_logits(tied, tokens, 4) == all_logits(copied, tokens, 4));
  EXPECT(all_logits(tied, tokens, 4) != all_logits(rotary_model(), tokens, 4));
}

TEST(passes_leave_no_trace) {
  for (const TinyModel& model : {rotary_model(), learned_model(), gemma_model(), olmo_model(),
                                 parallel_model(), xielu_model(), squared_model()}) {
    const auto tokens = some_tokens(30, model.config.vocab_size);
    const auto whole = all_logits(model, tokens, 32);
    for (int chunk : {1, 7, 16}) EXPECT(all_logits(model, tokens, chunk) == whole);
  }
}

TEST(every_part_of_the_model_matters) {
  for (const auto& make : {rotary_model, learned_model, gemma_model, olmo_model, parallel_model,
                           xielu_model, squared_model}) {
    const TinyModel intact = make();
    const auto tokens = some_tokens(20, intact.config.vocab_size);
    const auto expected = all_logits(intact, tokens, 32);
    for (const auto& [name, view] : intact.tensors) {
      TinyModel changed = make();
      for (int64_t i = 0; i < view.rows * view.cols; ++i) changed.values(name)[i] *= 1.5f;
      if (all_logits(changed, tokens, 32) == expected)
        fail(__FILE__, __LINE__, name + " is not used");
    }
  }
}

TEST(long_contexts_have_frequencies_of_their_own) {
  const auto tokens = some_tokens(20, rotary_model().config.vocab_size);
  const std::vector<float> others = {0.9f, 0.2f, 0.05f, 0.0f};
  TinyModel expected = rotary_model();
  expected.config.ropes[0].inv_freq = others;
  // It is the most positions of a sequence that decides, not how many it has.
  TinyModel model = rotary_model();
  model.config.ropes[0].long_inv_freq = others;
  model.config.ropes[0].original_positions = kPositions;
  EXPECT(all_logits(model, tokens, 32) == all_logits(rotary_model(), tokens, 32));
  model.config.ropes[0].original_positions = kPositions - 1;
  EXPECT(all_logits(model, tokens, 32) == all_logits(expected, tokens, 32));
}

TEST(queries_are_scaled_by_the_contexts_before_them) {
  TinyModel model = rotary_model();
  model.config.ropes[0].query_beta = 0.5f;
  model.config.ropes[0].original_positions = 7;
  const auto tokens = some_tokens(20, model.config.vocab_size);
  const auto vocab = static_cast<size_t>(model.config.vocab_size);
  const auto plain = all_logits(rotary_model(), tokens, 32);
  const auto scaled = all_logits(model, tokens, 32);
  const auto first = scaled.begin() + static_cast<std::ptrdiff_t>(7 * vocab);
  EXPECT(std::equal(scaled.begin(), first, plain.begin()));
  for (size_t p = 7; p < tokens.size(); ++p) {
    const auto row = scaled.begin() + static_cast<std::ptrdiff_t>(p * vocab);
    EXPECT(!std::equal(row, row + static_cast<std::ptrdiff_t>(vocab),
                       plain.begin() + static_cast<std::ptrdiff_t>(p * vocab)));
  }
}

TEST(every_number_of_the_configuration_matters) {
  for (const auto& make : {gemma_model, olmo_model}) {
    const TinyModel intact = make();
    const auto tokens = some_tokens(20, intact.config.vocab_size);
    const auto expected = all_logits(intact, tokens, 32);
    const std::vector<std::function<void(ModelConfig&)>> changes = {
        [](ModelConfig& c) { c.embedding_scale = 1.0f; },
        [](ModelConfig& c) { c.attention_softcap = 0.0f; },
        [](ModelConfig& c) { c.logit_scale = 1.0f; },
        [](ModelConfig& c) { c.logit_softcap = 0.0f; },
        [](ModelConfig& c) { c.layer_ropes = {0, 0}; },
        [](ModelConfig& c) { c.layer_ropes = {0, -1}; },
    };
    for (size_t i = 0; i < changes.size(); ++i) {
      TinyModel changed = make();
      changes[i](changed.config);
      if (all_logits(changed, tokens, 32) == expected)
        fail(__FILE__, __LINE__, "change " + std::to_string(i) + " changes nothing");
    }
  }
}

TEST(a_sliding_window_hides_what_is_behind_it) {
  TinyModel model = rotary_model();
  model.config.sliding_windows = {4, 4};  // two layers see 3 + 3 positions back
  auto tokens = some_tokens(20, model.config.vocab_size);
  const auto vocab = static_cast<size_t>(model.config.vocab_size);
  const auto before = all_logits(model, tokens, 32);
  tokens[3] = (tokens[3] + 1) % model.config.vocab_size;
  const auto after = all_logits(model, tokens, 32);
  const auto row = [&](const std::vector<float>& logits, size_t position) {
    return std::vector<float>(logits.begin() + static_cast<std::ptrdiff_t>(position * vocab),
                              logits.begin() + static_cast<std::ptrdiff_t>((position + 1) * vocab));
  };
  for (size_t p = 0; p < tokens.size(); ++p) {
    EXPECT_EQ(row(before, p) != row(after, p), p >= 3 && p <= 9);
  }
}

TEST(a_pass_allocates_nothing) {
  for (const auto& make : {rotary_model, learned_model, gemma_model, olmo_model, xielu_model}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const TinyModel model = make();
      const ModelConfig& c = model.config;
      const auto backend = make_cpu_backend(2);
      const Weights weights = load_weights(c, model.tensors, dtype, *backend);
      Forward forward(c, weights, *backend,
                      {.n_ubatch = 16,
                       .n_positions = kPositions,
                       .n_sequences = 1,
                       .storages = one_storage(c)});
      ModelKv kv =
          one_group(c, backend->make_kv(4, kBlock, c.n_layers, c.n_kv_heads, c.head_dim, dtype));
      const auto tokens = some_tokens(16, c.vocab_size);
      std::vector<int32_t> positions(16);
      std::iota(positions.begin(), positions.end(), 0);
      const std::vector<int32_t> block_table = {2};
      const std::vector<SequenceRows> sequences = {
          {.n_rows = 16, .block_tables = {block_table.data()}}};
      const int64_t before = n_allocations;
      backend->plan({.n_rows = 16,
                     .tokens = tokens.data(),
                     .positions = positions.data(),
                     .sequences = sequences,
                     .logits_rows = positions,
                     .pooled_rows = positions},
                    kv.storages[0]);
      forward.run(16, kv);
      forward.logits(0, 16);
      forward.hidden(0, 16);
      EXPECT_EQ(n_allocations - before, 0);
    }
  }
}

}  // namespace pb::test

PB_TEST_MAIN()
