// Recurrent layers and a gate behind attention: what is refused, that passes and threads leave no
// trace, that every weight counts, that a device without them says so. That the numbers are those
// of the papers is tests/system/models/test_oracle.py's part, and
// tests/native/cpu/test_gated_delta_net.cc's.

#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "engine/engine.h"
#include "tiny_model.h"

namespace pb::test {
namespace {

constexpr int kTokens = 40;

std::string refusal(ErrorCode code, const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& e) {
    EXPECT(e.code() == code);
    return e.what();
  }
  return "(nothing thrown)";
}

void expect_named(const std::string& message, const std::string& name) {
  if (message.find(name) == std::string::npos) fail(__FILE__, __LINE__, name + ": " + message);
}

// That of the first layer.
void remove_attention(TinyModel& model) {
  const std::string prefix = "layers.0.";
  for (const char* name : {"q", "k", "v", "o", "q_norm", "k_norm"}) {
    model.tensors.erase(prefix + name + ".weight");
    model.tensors.erase(prefix + name + ".bias");
  }
}

// rotary_model whose first layer is recurrent, and whose other has a gate.
TinyModel recurrent_model() {
  TinyModel model = rotary_model();
  ModelConfig& c = model.config;
  c.attention_gate = true;
  c.gated_delta_net = {
      .n_key_heads = 2, .n_value_heads = 4, .key_dim = 5, .value_dim = 6, .conv_size = 3};
  c.recurrent_layers.assign(static_cast<size_t>(c.n_layers), false);
  c.recurrent_layers[0] = true;
  c.layer_ropes[0] = -1;
  remove_attention(model);
  const std::string block = "layers.0.gated_delta_net.";
  model.add(block + "qkv.weight", c.gated_delta_net.n_channels(), c.hidden_size);
  model.add(block + "z.weight", c.gated_delta_net.value_size(), c.hidden_size);
  model.add(block + "b.weight", 4, c.hidden_size);
  model.add(block + "a.weight", 4, c.hidden_size);
  model.add(block + "convolution", c.gated_delta_net.n_channels(), 3);
  model.add(block + "decay", 4, 1, -0.5f, 0.1f);
  model.add(block + "decay_bias", 4, 1);
  model.add(block + "norm.weight", 6, 1, 1.0f);
  model.add(block + "o.weight", c.hidden_size, c.gated_delta_net.value_size());
  for (int layer = 1; layer < c.n_layers; ++layer) {
    model.add("layers." + std::to_string(layer) + ".attn_gate.weight", c.q_size(), c.hidden_size);
  }
  return model;
}

// rotary_model whose first layer is a short convolution.
TinyModel short_conv_model() {
  TinyModel model = rotary_model();
  ModelConfig& c = model.config;
  c.short_conv = {.width = c.hidden_size, .conv_size = 3};
  c.recurrent_layers.assign(static_cast<size_t>(c.n_layers), false);
  c.recurrent_layers[0] = true;
  c.layer_ropes[0] = -1;
  remove_attention(model);
  const std::string prefix = "layers.0.short_conv.";
  model.add(prefix + "in.weight", c.short_conv.row_size(), c.hidden_size);
  model.add(prefix + "o.weight", c.hidden_size, c.hidden_size);
  model.add(prefix + "convolution", c.hidden_size, c.short_conv.conv_size, 0.0f, 0.5f);
  return model;
}

std::unique_ptr<Engine> make_engine(const TinyModel& model, DType dtype, int n_threads = 2) {
  EngineOptions options;
  options.dtype = dtype;
  options.kv_dtype = dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
  options.n_ctx = 96;
  options.n_parallel = 2;
  options.n_ubatch = 16;
  options.block_size = 4;
  return std::make_unique<Engine>(model.config, model.tensors, options,
                                  make_cpu_backend(n_threads));
}

// Logits after the last of the tokens, which are computed `chunk` at a time.
std::vector<float> logits_of(Engine& engine, int chunk) {
  const int seq_id = engine.seq_new(std::to_string(chunk));
  std::vector<int32_t> tokens;
  for (int i = 0; i < kTokens; ++i) tokens.push_back((i * 17 + 5) % engine.config().vocab_size);
  std::vector<float> logits(static_cast<size_t>(engine.config().vocab_size));
  for (int at = 0; at < kTokens; at += chunk) {
    const auto n = static_cast<size_t>(std::min(chunk, kTokens - at));
    engine.prefill_chunk(seq_id, std::span(tokens).subspan(size_t(at), n), logits.data());
  }
  engine.check_integrity();
  return logits;
}

// Expects configurations of a model, once damaged, to be refused by the name of a field.
auto configs_of(TinyModel (*make_model)()) {
  return [make_model](const std::function<void(ModelConfig&)>& damage, const char* field) {
    ModelConfig config = make_model().config;
    config.validate();
    damage(config);
    expect_named(refusal(ErrorCode::kModelFormat, [&] { config.validate(); }), field);
  };
}

// Expects a tensor to be refused by name where it is not there, has another shape, or is no number.
void expect_looked_at(TinyModel (*make_model)(), const char* name) {
  const auto expect_refused = [&](const std::function<void(TinyModel&)>& damage) {
    TinyModel model = make_model();
    damage(model);
    expect_named(refusal(ErrorCode::kModelFormat, [&] { make_engine(model, DType::kF32); }), name);
  };
  expect_refused([name](TinyModel& m) { m.tensors.erase(name); });
  expect_refused([name](TinyModel& m) { m.tensors.at(name).rows += 1; });
  expect_refused([name](TinyModel& m) { m.values(name)[0] = NAN; });
}

TEST(config_refuses_what_no_recurrent_layers_are) {
  const auto expect_refused = configs_of(recurrent_model);
  expect_refused([](ModelConfig& c) { c.recurrent_layers.pop_back(); }, "recurrent_layers");
  expect_refused([](ModelConfig& c) { c.recurrent_layers.assign(c.recurrent_layers.size(), true); },
                 "recurrent_layers");
  expect_refused([](ModelConfig& c) { c.recurrent_layers.clear(); },
                 "gated_delta_net.n_value_heads");
  expect_refused([](ModelConfig& c) { c.gated_delta_net.n_key_heads = 0; },
                 "gated_delta_net.n_key_heads");
  expect_refused([](ModelConfig& c) { c.gated_delta_net.n_key_heads = 3; },
                 "gated_delta_net.n_value_heads");
  expect_refused([](ModelConfig& c) { c.gated_delta_net.n_value_heads = -4; },
                 "gated_delta_net.n_value_heads");
  expect_refused([](ModelConfig& c) { c.gated_delta_net.key_dim = 5000; },
                 "gated_delta_net.key_dim");
  expect_refused([](ModelConfig& c) { c.gated_delta_net.value_dim = 0; },
                 "gated_delta_net.value_dim");
  expect_refused([](ModelConfig& c) { c.gated_delta_net.conv_size = 65; },
                 "gated_delta_net.conv_size");
  expect_refused(
      [](ModelConfig& c) {
        c.gated_delta_net.n_key_heads = c.gated_delta_net.n_value_heads = 4096;
        c.gated_delta_net.value_dim = 1024;
      },
      "gated_delta_net");
  expect_refused([](ModelConfig& c) { c.post_norm = true; }, "recurrent_layers");
  expect_refused([](ModelConfig& c) { c.causal = false; }, "recurrent_layers");
  expect_refused(
      [](ModelConfig& c) {
        c.gated_delta_net = {};
        c.recurrent_layers.clear();
        c.layer_ropes[0] = 0;
        c.residual_norms = ResidualNorms::kFirst;
      },
      "attention_gate");
}

// A model has recurrent layers of one kind.
TEST(config_refuses_what_no_short_convolutions_are) {
  const auto expect_refused = configs_of(short_conv_model);
  expect_refused([](ModelConfig& c) { c.recurrent_layers.clear(); }, "short_conv.width");
  expect_refused([](ModelConfig& c) { c.short_conv.width += 1; }, "short_conv.width");
  expect_refused([](ModelConfig& c) { c.short_conv.conv_size = 1; }, "short_conv.conv_size");
  expect_refused([](ModelConfig& c) { c.short_conv.conv_size = 65; }, "short_conv.conv_size");
  expect_refused(
      [](ModelConfig& c) { c.gated_delta_net = recurrent_model().config.gated_delta_net; },
      "gated_delta_net.n_value_heads");
  expect_refused([](ModelConfig& c) { c.recurrent_layers.assign(c.recurrent_layers.size(), true); },
                 "recurrent_layers");
}

TEST(weights_of_short_convolutions_are_looked_for_and_looked_at) {
  for (const char* name : {"layers.0.short_conv.in.weight", "layers.0.short_conv.o.weight",
                           "layers.0.short_conv.convolution"}) {
    expect_looked_at(short_conv_model, name);
  }
}

TEST(weights_are_looked_for_and_looked_at) {
  for (const char* name :
       {"layers.0.gated_delta_net.qkv.weight", "layers.0.gated_delta_net.z.weight",
        "layers.0.gated_delta_net.b.weight", "layers.0.gated_delta_net.a.weight",
        "layers.0.gated_delta_net.convolution", "layers.0.gated_delta_net.decay",
        "layers.0.gated_delta_net.decay_bias", "layers.0.gated_delta_net.norm.weight",
        "layers.0.gated_delta_net.o.weight", "layers.1.attn_gate.weight"}) {
    expect_looked_at(recurrent_model, name);
  }
}

TEST(passes_and_threads_leave_no_trace) {
  for (const TinyModel& model : {recurrent_model(), short_conv_model()}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
      const auto engine = make_engine(model, dtype);
      const auto expected = logits_of(*engine, 1);
      for (const int chunk : {2, 7, 16, 40}) {
        const auto other = make_engine(model, dtype, 1 + chunk % 3);
        EXPECT(logits_of(*other, chunk) == expected);
      }
    }
  }
}

void expect_every_part_to_matter(const std::function<TinyModel()>& make_model) {
  const TinyModel model = make_model();
  const auto expected = logits_of(*make_engine(model, DType::kF32), 16);
  for (const auto& [name, view] : model.tensors) {
    TinyModel changed = make_model();
    const auto n = static_cast<size_t>(view.rows * view.cols);
    for (size_t i = 0; i < n; ++i) changed.values(name)[i] *= -0.5f;
    if (logits_of(*make_engine(changed, DType::kF32), 16) == expected) {
      fail(__FILE__, __LINE__, name);
    }
  }
}

TEST(every_part_matters) {
  expect_every_part_to_matter(recurrent_model);
  expect_every_part_to_matter(short_conv_model);
  TinyModel changed = recurrent_model();
  changed.config.gated_delta_net.in_turn = true;
  EXPECT(logits_of(*make_engine(changed, DType::kF32), 16) !=
         logits_of(*make_engine(recurrent_model(), DType::kF32), 16));
}

TEST(states_take_the_memory_that_they_should) {
  const TinyModel model = recurrent_model();
  const auto engine = make_engine(model, DType::kF32);
  const LayerGroup& states = engine->layer_groups().groups.back();
  EXPECT(states.is_state);
  EXPECT_EQ(states.n_blocks, 2 * 2 + kStepRows / 4);
  EXPECT_EQ(states.n_layers, 1);
  TinyModel plain = rotary_model();
  plain.config.layer_ropes[0] = -1;
  const size_t state_bytes =
      sizeof(float) * static_cast<size_t>(model.config.gated_delta_net.state_size());
  const size_t kv_of_layer =
      make_engine(plain, DType::kF32)->kv_bytes() / static_cast<size_t>(plain.config.n_layers);
  const auto n_attending = static_cast<size_t>(model.config.n_layers - 1);
  EXPECT_EQ(engine->kv_bytes(),
            n_attending * kv_of_layer + static_cast<size_t>(states.n_blocks) * state_bytes);
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
