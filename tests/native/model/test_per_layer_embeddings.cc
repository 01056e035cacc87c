// Layers of unlike shapes, shared keys and values, layers with inputs and scales: what is refused,
// that passes are cut without a trace, that every weight counts, that they take the memory they
// should. That the numbers are those of the papers is tests/system/models/test_oracle.py's part.

#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "counted_heap.h"
#include "engine/engine.h"
#include "model/per_layer_embeddings.h"
#include "naive_backend.h"
#include "tiny_model.h"

namespace pb::test {
namespace {

constexpr int kTokens = 40;  // past the window of 11

std::string refusal(ErrorCode code, const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& e) {
    EXPECT(e.code() == code);
    return e.what();
  }
  return "(nothing thrown)";
}

void expect_named(const std::string& message, const char* name) {
  if (message.find(name) == std::string::npos)
    fail(__FILE__, __LINE__, std::string(name) + ": " + message);
}

void expect_config_refused(const std::function<void(ModelConfig&)>& damage, const char* field) {
  ModelConfig config = varied_model().config;
  config.validate();
  damage(config);
  expect_named(refusal(ErrorCode::kModelFormat, [&] { config.validate(); }), field);
}

void expect_weights_refused(const std::function<void(TinyModel&)>& damage, const char* tensor) {
  NaiveBackend backend;
  TinyModel model = varied_model();
  damage(model);
  const auto load = [&] { load_weights(model.config, model.tensors, DType::kF32, backend); };
  expect_named(refusal(ErrorCode::kModelFormat, load), tensor);
}

std::unique_ptr<Engine> make_engine(const TinyModel& model, DType dtype,
                                    std::unique_ptr<Backend> backend, int n_ctx = 96,
                                    int n_parallel = 2) {
  EngineOptions options;
  options.dtype = dtype;
  options.kv_dtype = dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
  options.n_ctx = n_ctx;
  options.n_parallel = n_parallel;
  options.n_ubatch = 16;
  options.block_size = 4;
  return std::make_unique<Engine>(model.config, model.tensors, options, std::move(backend));
}

std::vector<int32_t> some_tokens(int salt = 5) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < kTokens; ++i) tokens.push_back((i * 17 + salt) % 61);
  return tokens;
}

// Logits after every `chunk` tokens, and after the last: (n, vocab).
std::vector<float> logits_of(Engine& engine, int seq_id, int chunk) {
  const auto tokens = some_tokens();
  const auto vocab = static_cast<size_t>(engine.config().vocab_size);
  std::vector<float> all;
  for (int at = 0; at < kTokens; at += chunk) {
    const auto n = static_cast<size_t>(std::min(chunk, kTokens - at));
    all.resize(all.size() + vocab);
    engine.prefill_chunk(seq_id, std::span(tokens).subspan(size_t(at), n),
                         all.data() + all.size() - vocab);
  }
  return all;
}

std::vector<float> last(const std::vector<float>& rows) { return {rows.end() - 61, rows.end()}; }

TEST(config_refuses_what_no_layers_are) {
  expect_config_refused([](ModelConfig& c) { c.layer_shapes.pop_back(); }, "layer_shapes");
  expect_config_refused([](ModelConfig& c) { c.layer_shapes[1].n_kv_heads = 4; }, "n_kv_heads");
  expect_config_refused([](ModelConfig& c) { c.layer_shapes[1].n_kv_heads = 0; }, "n_kv_heads");
  expect_config_refused([](ModelConfig& c) { c.layer_shapes[1].head_dim = 8; }, "ropes.inv_freq");
  expect_config_refused([](ModelConfig& c) { c.layer_shapes[1].head_dim = 5000; }, "head_dim");
  expect_config_refused([](ModelConfig& c) { c.layer_shapes[0].intermediate_size = 0; },
                        "layer_shapes.intermediate_size");
  expect_config_refused([](ModelConfig& c) { c.layer_shapes[2].kv_layer = 2; }, "kv_layer");
  expect_config_refused([](ModelConfig& c) { c.layer_shapes[2].kv_layer = -2; }, "kv_layer");
  expect_config_refused([](ModelConfig& c) { c.layer_shapes[2].kv_layer = 1; }, "kv_layer");
  expect_config_refused([](ModelConfig& c) { c.sliding_windows[2] = 12; }, "kv_layer");
  expect_config_refused(
      [](ModelConfig& c) {
        c.layer_shapes.assign(4, {2, 8, 40, -1});
        c.layer_shapes[1].kv_layer = 0;
        c.layer_shapes[2].kv_layer = 1;  // which has none of its own
        c.layer_ropes = {0, 0, 0, 0};
        c.sliding_windows = {0, 0, 0, 0};
      },
      "kv_layer");
  expect_config_refused([](ModelConfig& c) { c.per_layer_embedding_size = -1; },
                        "per_layer_embedding_size");
  expect_config_refused([](ModelConfig& c) { c.per_layer_embedding_scale = NAN; },
                        "per_layer_embedding_scale");
  expect_config_refused([](ModelConfig& c) { c.post_norm = false; }, "layer_scales");
  expect_config_refused([](ModelConfig& c) { c.post_norm = c.layer_scales = false; },
                        "per_layer_embedding_size");
  expect_config_refused(
      [](ModelConfig& c) {
        c.norm = NormKind::kLayer;
        c.post_norm = c.layer_scales = false;
        c.per_layer_embedding_size = 0;
      },
      "value_norm");
}

TEST(weights_are_of_each_layers_shape) {
  for (const char* name :
       {"layers.1.k.weight", "layers.1.q_norm.weight", "layers.3.o.weight", "layers.2.up.weight",
        "layers.0.output_scale.weight", "layers.3.input_gate.weight",
        "per_layer_embeddings.embedding", "per_layer_embeddings.proj.weight",
        "per_layer_embeddings.norm.weight"}) {
    expect_weights_refused([name](TinyModel& m) { m.tensors.erase(name); }, name);
    expect_weights_refused([name](TinyModel& m) { m.tensors.at(name).rows += 1; }, name);
    expect_weights_refused([name](TinyModel& m) { m.values(name)[0] = INFINITY; }, name);
  }
  expect_weights_refused([](TinyModel& m) { m.add("layers.2.k.weight", 16, 24); },
                         "layers.2.k.weight");
  expect_weights_refused([](TinyModel& m) { m.add("layers.3.k_norm.weight", 12, 1); },
                         "layers.3.k_norm.weight");
}

TEST(the_cpu_computes_what_the_formulas_say) {
  const TinyModel model = varied_model();
  const auto naive = make_engine(model, DType::kF32, std::make_unique<NaiveBackend>());
  const auto cpu = make_engine(model, DType::kF32, make_cpu_backend(2));
  const auto expected = logits_of(*naive, naive->seq_new(""), 1);
  const auto found = logits_of(*cpu, cpu->seq_new(""), 1);
  double worst = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, double{std::abs(found[i] - expected[i])});
  }
  EXPECT(worst < 1e-4);
}

TEST(passes_leave_no_trace) {
  const TinyModel model = varied_model();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
    const auto engine = make_engine(model, dtype, make_cpu_backend(2));
    const auto expected = logits_of(*engine, engine->seq_new("1"), 1);
    for (const int chunk : {7, 16, 40}) {
      const auto other = make_engine(model, dtype, make_cpu_backend(1));
      EXPECT(last(logits_of(*other, other->seq_new(""), chunk)) == last(expected));
    }
  }
}

// With many sequences windows save nothing: layers of both shapes are in one group then.
TEST(groups_of_layers_leave_no_trace) {
  const TinyModel model = varied_model();
  const auto expected = make_engine(model, DType::kF32, make_cpu_backend(1), 1000, 1);
  const auto one_group = make_engine(model, DType::kF32, make_cpu_backend(1), 96, 9);
  EXPECT_EQ(expected->kv().n_groups(), 2);
  EXPECT_EQ(one_group->kv().n_groups(), 1);
  EXPECT_EQ(one_group->layer_groups().storages.size(), 2u);
  EXPECT(logits_of(*one_group, one_group->seq_new(""), 5) ==
         logits_of(*expected, expected->seq_new(""), 5));
}

TEST(a_copy_has_every_shape_of_its_last_block) {
  const TinyModel model = varied_model();
  const auto engine = make_engine(model, DType::kF32, make_cpu_backend(1), 200, 9);
  const auto tokens = some_tokens();
  const int a = engine->seq_new(""), b = engine->seq_new(""), c = engine->seq_new("c");
  std::vector<float> copied(61), computed(61);
  engine->prefill_chunk(a, std::span(tokens).first(22), nullptr);
  engine->seq_copy(a, b, 22);  // the sixth block half full
  engine->prefill_chunk(a, std::span(tokens).subspan(3, 2), nullptr);
  engine->prefill_chunk(b, std::span(tokens).subspan(22, 3), copied.data());
  engine->prefill_chunk(c, std::span(tokens).first(25), computed.data());
  EXPECT(copied == computed);
  engine->check_integrity();
}

TEST(shared_keys_and_values_take_no_memory) {
  const TinyModel model = varied_model();
  const auto engine = make_engine(model, DType::kF32, make_cpu_backend(1), 96, 9);
  const auto backend = make_cpu_backend(1);
  const auto block_of = [&](int n_heads, int head_dim) {
    return backend->make_kv(1, 4, 1, n_heads, head_dim, DType::kF32).block_bytes;
  };
  const auto n_blocks = static_cast<size_t>(engine->kv().total_blocks());
  EXPECT_EQ(engine->kv_bytes(), n_blocks * (block_of(2, 8) + block_of(1, 12)));
  TinyModel unshared = varied_model();
  for (const char* layer : {"layers.2.", "layers.3."}) {
    const LayerShape shape = unshared.config.shape(layer[7] - '0');
    unshared.add(std::string(layer) + "k.weight", shape.kv_size(), 24);
    unshared.add(std::string(layer) + "v.weight", shape.kv_size(), 24);
    unshared.add(std::string(layer) + "k_norm.weight", shape.head_dim, 1);
  }
  for (LayerShape& shape : unshared.config.layer_shapes) shape.kv_layer = -1;
  const auto twice = make_engine(unshared, DType::kF32, make_cpu_backend(1), 96, 9);
  EXPECT_EQ(twice->kv_bytes(), 2 * engine->kv_bytes());
}

TEST(every_part_matters) {
  const TinyModel model = varied_model();
  const auto logits = [](const TinyModel& of) {
    const auto engine = make_engine(of, DType::kF32, std::make_unique<NaiveBackend>());
    return last(logits_of(*engine, engine->seq_new(""), 16));
  };
  const auto expected = logits(model);
  for (const auto& [name, view] : model.tensors) {
    TinyModel changed = varied_model();
    const auto n = static_cast<size_t>(view.rows * view.cols);
    for (size_t i = 0; i < n; ++i) changed.values(name)[i] *= -0.5f;
    if (logits(changed) == expected) fail(__FILE__, __LINE__, name);
  }
  TinyModel changed = varied_model();
  changed.config.value_norm = false;
  EXPECT(logits(changed) != expected);
  changed.config.value_norm = true;
  changed.config.per_layer_embedding_scale = 1.0f;
  EXPECT(logits(changed) != expected);
}

TEST(a_step_allocates_nothing_in_its_pass) {
  const TinyModel model = varied_model();
  const auto backend = make_cpu_backend(2);
  const Weights weights = load_weights(model.config, model.tensors, DType::kF32, *backend);
  ActivationSet rounded(*backend, 4, model.config.hidden_size);
  rounded.add(DType::kF32);
  PerLayerEmbeddings inputs(model.config, weights, *backend, 4);
  backend->prepare(
      {.max_rows = 4, .n_heads = 6, .storages = {{.shape = {2, 8}}}, .vocab_size = 61});
  Buffer x = backend->make_buffer(4 * 24 * sizeof(float));
  Buffer out = backend->make_buffer(4 * 24 * sizeof(float));
  const std::vector<int32_t> tokens = {3, 1, 4, 1}, positions = {0, 1, 2, 3}, blocks = {0};
  const SequenceRows sequence{.n_rows = 4, .block_tables = {blocks.data()}};
  KvStorage kv;
  kv.block_size = 4;
  const int64_t before = n_allocations;
  backend->plan({.n_rows = 4,
                 .tokens = tokens.data(),
                 .positions = positions.data(),
                 .sequences = {&sequence, 1}},
                kv);
  inputs.make(4, x, rounded);
  inputs.add(4, 1, x, rounded, out);
  EXPECT_EQ(n_allocations - before, 0);
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
