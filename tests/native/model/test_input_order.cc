// Matrices whose columns lie in an order of their own: the products are those of the matrices
// whose columns lie as inputs do.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "counted_heap.h"
#include "model/forward.h"
#include "model/input_order.h"
#include "model/weights_cache.h"
#include "naive_backend.h"
#include "sampling/rng.h"
#include "tiny_model.h"

namespace pb::test {
namespace {

constexpr int kBlock = 16;
constexpr int kRows = 12;

using Order = std::vector<int32_t>;

Order random_order(int64_t n, uint32_t seed) {
  Order order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, std::mt19937(seed));
  return order;
}

std::shared_ptr<const Order> shared(Order order) {
  return std::make_shared<const Order>(std::move(order));
}

// Puts the columns of a matrix into an order, which its tensor says, or not.
void put_in_order(TinyModel& model, const std::string& name, const Order& order, bool says = true) {
  TensorView& view = model.tensors.at(name);
  float* values = model.values(name);
  for (int64_t row = 0; row < view.rows; ++row) {
    const std::vector<float> before(values + row * view.cols, values + (row + 1) * view.cols);
    for (int64_t c = 0; c < view.cols; ++c) {
      values[row * view.cols + c] = before[static_cast<size_t>(order[static_cast<size_t>(c)])];
    }
  }
  if (says) view.order = shared(order);
}

void put_rows_in_order(TinyModel& model, const std::string& name, const Order& order) {
  const TensorView& view = model.tensors.at(name);
  float* values = model.values(name);
  const std::vector<float> before(values, values + view.rows * view.cols);
  for (int64_t row = 0; row < view.rows; ++row) {
    const int64_t from = order[static_cast<size_t>(row)] * view.cols;
    std::copy_n(before.begin() + from, view.cols, values + row * view.cols);
  }
}

// q, k and v have one order, gate and up have two; so have o, down and the head.
TinyModel ordered(TinyModel model) {
  for (int i = 0; i < model.config.n_layers; ++i) {
    const auto seed = static_cast<uint32_t>(100 * i);
    const std::string layer = "layers." + std::to_string(i) + ".";
    for (const auto& [name, number] :
         {std::pair{"q", 1}, {"k", 1}, {"v", 1}, {"o", 2}, {"gate", 3}, {"up", 4}, {"down", 5}}) {
      const std::string tensor = layer + name + ".weight";
      if (!model.tensors.contains(tensor)) continue;
      put_in_order(model, tensor, random_order(model.tensors.at(tensor).cols, seed + number));
    }
  }
  if (model.tensors.contains("head.weight")) {
    put_in_order(model, "head.weight", random_order(model.config.hidden_size, 77));
  }
  return model;
}

struct Pass {
  Pass(const TinyModel& model, Backend& backend, DType dtype = DType::kF32)
      : c(model.config),
        weights(load_weights(c, model.tensors, dtype, backend)),
        forward(c, weights, backend,
                {.n_ubatch = kRows,
                 .n_positions = kRows,
                 .n_sequences = 1,
                 .storages = one_storage(c)}),
        kv(one_group(
            c, backend.make_kv(1, kBlock, c.n_layers, c.n_kv_heads, c.head_dim, DType::kF32))),
        tokens(kRows),
        positions(kRows) {
    std::iota(positions.begin(), positions.end(), 0);
    for (int i = 0; i < kRows; ++i) tokens[static_cast<size_t>(i)] = (i * 17 + 5) % c.vocab_size;
  }

  const Buffer& run(Backend& backend) {
    backend.plan({.n_rows = kRows,
                  .tokens = tokens.data(),
                  .positions = positions.data(),
                  .sequences = sequences,
                  .logits_rows = positions,
                  .pooled_rows = positions},
                 kv.storages[0]);
    forward.run(kRows, kv);
    return forward.logits(0, kRows);
  }

  const ModelConfig& c;
  Weights weights;
  Forward forward;
  ModelKv kv;
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<int32_t> block_table = {0};
  std::vector<SequenceRows> sequences = {{.n_rows = kRows, .block_tables = {block_table.data()}}};
};

std::vector<float> logits(const TinyModel& model, Backend& backend, DType dtype = DType::kF32) {
  Pass pass(model, backend, dtype);
  std::vector<float> out(static_cast<size_t>(kRows * model.config.vocab_size));
  const Buffer& made = pass.run(backend);
  backend.download(made, std::as_writable_bytes(std::span(out)));
  return out;
}

double greatest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double greatest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    greatest = std::max(greatest, std::abs(double{a[i]} - double{b[i]}));
  }
  return greatest;
}

std::string refusal(const TinyModel& model) {
  const auto backend = make_cpu_backend(1);
  try {
    load_weights(model.config, model.tensors, DType::kF32, *backend);
  } catch (const Error& e) {
    EXPECT(e.code() == ErrorCode::kModelFormat);
    return e.what();
  }
  return "";
}

void expect_refused(const TinyModel& model, const std::string& part) {
  const std::string message = refusal(model);
  if (message.find(part) == std::string::npos) fail(__FILE__, __LINE__, part + ": " + message);
}

}  // namespace

TEST(an_order_changes_no_product) {
  for (const auto& make : {rotary_model, learned_model, gemma_model, olmo_model, varied_model}) {
    NaiveBackend naive;
    const auto cpu = make_cpu_backend(2);
    for (Backend* backend : {static_cast<Backend*>(&naive), cpu.get()}) {
      const std::vector<float> plain = logits(make(), *backend);
      EXPECT(greatest_difference(logits(ordered(make()), *backend), plain) < 1e-4);
    }
  }
}

// An order of down is the order of the rows of gate and up, bit for bit.
TEST(an_order_of_down_is_that_of_what_comes_in) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
    TinyModel says = rotary_model();
    TinyModel moved = rotary_model();
    for (const std::string layer : {"layers.0.", "layers.1."}) {
      const Order order = random_order(says.config.intermediate_size, 9);
      put_in_order(says, layer + "down.weight", order);
      put_in_order(moved, layer + "down.weight", order, false);
      put_rows_in_order(moved, layer + "gate.weight", order);
      put_rows_in_order(moved, layer + "up.weight", order);
    }
    const auto backend = make_cpu_backend(2);
    const std::vector<float> made = logits(says, *backend, dtype);
    EXPECT(made == logits(moved, *backend, dtype));
    for (auto& [name, view] : says.tensors) view.order = nullptr;
    EXPECT(greatest_difference(logits(says, *backend, dtype), made) > 0.01);
  }
}

TEST(matrices_of_one_order_are_one_product) {
  // The CPU's tiles are padded: two products of few outputs may take more bytes than one of all.
  NaiveBackend backend;
  const TinyModel model = ordered(rotary_model());
  const Weights weights = load_weights(model.config, model.tensors, DType::kF32, backend);
  const LayerWeights& layer = weights.layers[0];
  EXPECT_EQ(layer.qkv.size(), 1u);
  EXPECT_EQ(layer.gate_up.size(), 2u);
  EXPECT_EQ(layer.gate_up[1].first_out, model.config.intermediate_size);
  EXPECT_EQ(layer.down.order.bytes(), 4u * static_cast<size_t>(model.config.intermediate_size));

  const TinyModel plain = rotary_model();
  const size_t before = load_weights(plain.config, plain.tensors, DType::kF32, backend).bytes();
  const auto hidden = static_cast<size_t>(model.config.hidden_size);
  const auto q_size = static_cast<size_t>(model.config.q_size());
  const auto inner = static_cast<size_t>(model.config.intermediate_size);
  // Of qkv, gate and up, of o and of down in each layer; of the head.
  EXPECT_EQ(weights.bytes() - before, 4 * (2 * (3 * hidden + q_size + inner) + hidden));
}

TEST(orders_that_do_not_name_every_input_once_are_refused) {
  const auto with = [](const std::string& name, Order order) {
    TinyModel model = rotary_model();
    model.tensors.at(name).order = shared(std::move(order));
    return model;
  };
  Order twice = random_order(24, 1);
  twice[3] = twice[4];
  Order beyond = random_order(24, 1);
  std::ranges::replace(beyond, 7, 24);
  Order below = random_order(24, 1);
  std::ranges::replace(below, 7, -1);
  expect_refused(with("layers.1.k.weight", random_order(23, 1)),
                 "'layers.1.k.weight' has an order of 23 inputs; expected one of 24");
  expect_refused(with("layers.1.k.weight", {}), "has an order of 0 inputs");
  expect_refused(with("layers.0.up.weight", twice), "'layers.0.up.weight' has an order of its inp");
  expect_refused(with("layers.0.up.weight", beyond), "with 24; expected every number from 0 to 23");
  expect_refused(with("layers.0.up.weight", below), "with -1; expected every number");
}

TEST(what_takes_inputs_as_they_come_has_no_order) {
  const auto with = [](TinyModel model, const std::string& name) {
    TensorView& view = model.tensors.at(name);
    view.order = shared(random_order(view.cols, 1));
    return model;
  };
  expect_refused(with(rotary_model(), "token_embedding"), "'token_embedding' has an order");
  expect_refused(with(learned_model(), "position_embedding"), "'position_embedding' has an order");
  expect_refused(with(moe_model(), "layers.0.router.weight"), "'layers.0.router.weight' has an");
  for (const char* name : {"gate", "up", "down"}) {
    const std::string expert = std::string("layers.0.experts.3.") + name + ".weight";
    expect_refused(with(moe_model(), expert), "'" + expert + "' has an order");
  }
}

TEST(a_pass_with_orders_allocates_nothing) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt4}) {
    const TinyModel model = ordered(gemma_model());
    const auto backend = make_cpu_backend(2);
    Pass pass(model, *backend, dtype);
    const int64_t before = n_allocations;
    pass.run(*backend);
    pass.forward.hidden(0, kRows);
    EXPECT_EQ(n_allocations - before, 0);
  }
}

TEST(packed_weights_of_another_order_are_others) {
  const auto backend = make_cpu_backend(1);
  const auto key_with = [&](const std::vector<Order>& orders) {
    TinyModel model = rotary_model();
    for (const Order& order : orders) model.tensors.at("layers.0.q.weight").order = shared(order);
    return cache_key({.directory = "", .name = "", .key = "k"}, model.tensors, DType::kF32,
                     *backend);
  };
  EXPECT(key_with({}) != key_with({random_order(24, 1)}));
  EXPECT(key_with({random_order(24, 2)}) != key_with({random_order(24, 1)}));
  EXPECT_EQ(key_with({random_order(24, 1)}), key_with({random_order(24, 1)}));
}

}  // namespace pb::test

PB_TEST_MAIN()
