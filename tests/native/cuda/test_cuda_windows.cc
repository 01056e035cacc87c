// Layers in several groups on the CUDA backend: windows that give back KV blocks change no bit, and
// one upload a pass plans attention for all groups.
#include <algorithm>
#include <string>
#include <vector>

#include "check.h"
#include "cuda_engine.h"
#include "engine_fixture.h"

namespace pb::test {
namespace {

using cuda_on_cpu::count_calls;

constexpr int kLong = 560;  // positions: past two segments of attention

// Four layers: one sees all, two see little, one sees more than a segment.
TinyModel windowed_model() {
  TinyModel model = rotary_model();
  model.config.n_layers = 4;
  model.config.max_position_embeddings = 1024;
  model.config.sliding_windows = {0, 11, 270, 11};
  model.config.layer_ropes = {0, 0, 0, 0};
  for (const auto& [name, view] : TensorMap(model.tensors)) {
    for (int layer = 0; layer < 2; ++layer) {
      const std::string own = "layers." + std::to_string(layer) + ".";
      if (!name.starts_with(own)) continue;
      model.add("layers." + std::to_string(layer + 2) + name.substr(own.size() - 1),
                static_cast<int>(view.rows), static_cast<int>(view.cols),
                view.cols == 1 && name.find("norm") != std::string::npos ? 1.0f : 0.0f);
    }
  }
  return model;
}

// keeps_all: with room for so many sequences that no window would save anything.
std::unique_ptr<Engine> engine_of(DType dtype, bool keeps_all = false, bool graphs = true,
                                  int n_sequences = 2, int n_ubatch = 64) {
  EngineOptions options = small_options(n_ubatch);
  options.dtype = dtype;
  options.kv_dtype = dtype == DType::kF32 ? DType::kF32 : DType::kInt8;
  options.n_ctx = 4096;
  options.n_parallel = keeps_all ? 300 : n_sequences;
  options.block_size = 4;
  const TinyModel model = windowed_model();
  auto engine = std::make_unique<Engine>(model.config, model.tensors, options,
                                         make_emulated_backend({.graphs = graphs}));
  EXPECT_EQ(engine->kv().n_groups(), keeps_all ? 1 : 3);
  return engine;
}

// Logits after each chunk of a text of kLong tokens.
std::vector<std::vector<float>> logits_of(Engine& engine, int seq_id, int chunk, int first = 0) {
  const auto tokens = some_tokens(kLong, 3);
  std::vector<std::vector<float>> rows;
  for (int at = first; at < kLong; at += chunk) {
    const auto n = static_cast<size_t>(std::min(chunk, kLong - at));
    rows.push_back(prefill(engine, seq_id, std::span(tokens).subspan(static_cast<size_t>(at), n)));
  }
  return rows;
}

TEST(what_is_given_back_changes_no_bit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto whole = engine_of(dtype, true);
    const auto expected = logits_of(*whole, whole->seq_new(""), 40);
    const auto engine = engine_of(dtype, false, true, 2, 29);
    const int b = engine->seq_new("b");
    prefill(*engine, b, some_tokens(30, 8));
    const int a = engine->seq_new("");
    for (int at = 0; at < kLong; at += 40) {
      const auto tokens = some_tokens(kLong, 3);
      EXPECT(prefill(*engine, a, std::span(tokens).subspan(static_cast<size_t>(at), 40)) ==
             expected[static_cast<size_t>(at / 40)]);
      prefill(*engine, b, some_tokens(3, at));  // takes what was given back
      engine->check_integrity();
    }
    EXPECT_EQ(engine->kv().first_block(a, 2), (kLong + 1 - 11) / 4);
    EXPECT_EQ(engine->kv().first_block(a, 1), (kLong + 1 - 270) / 4);
    EXPECT(engine->kv_bytes() < whole->kv_bytes() / 2);
  }
}

TEST(copies_and_hits_go_on_as_if_computed) {
  const auto engine = engine_of(DType::kBF16, false, true, 4);
  const int a = engine->seq_new("");
  const auto expected = logits_of(*engine, a, 40).back();
  const auto tokens = some_tokens(kLong, 3);
  const int b = engine->seq_new("");
  const int n = engine->seq_copyable(a, kLong - 5);
  EXPECT(n >= kLong - 8);
  engine->seq_copy(a, b, n);
  EXPECT(prefill(*engine, b, std::span(tokens).subspan(static_cast<size_t>(n))) == expected);
  engine->seq_remove(a, 0, -1);
  engine->seq_remove(b, 0, -1);
  const int c = engine->seq_new("");
  const int matched = engine->seq_match(c, tokens);
  EXPECT(matched > kLong - 12);
  EXPECT(prefill(*engine, c, std::span(tokens).subspan(static_cast<size_t>(matched))) == expected);
  engine->check_integrity();
}

// Sequences of several lengths, past segments and short: tokens sampled, then logits.
std::vector<float> decode_some(Engine& engine) {
  std::vector<int> ids;
  std::vector<int32_t> last;
  for (const int length : {5, kLong, 300, 257}) {
    ids.push_back(engine.seq_new(std::to_string(length)));
    engine.prefill_chunk(ids.back(), some_tokens(length, length), nullptr);
    last.push_back(length % 60);
  }
  std::vector<float> seen;
  for (const size_t n : {1, 4, 2, 3, 4, 4, 1, 2}) {
    std::vector<int32_t> next(n);
    engine.decode_batch(std::span(ids).first(n), std::span(last).first(n), next.data(), nullptr);
    std::copy(next.begin(), next.end(), last.begin());
    seen.insert(seen.end(), next.begin(), next.end());
  }
  for (const size_t i : {1, 0, 1, 0}) {  // a row whose attention is split, and one whose is not
    int32_t next = 0;
    engine.decode_batch(std::span(ids).subspan(i, 1), std::span(last).subspan(i, 1), &next,
                        nullptr);
    last[i] = next;
    seen.push_back(static_cast<float>(next));
  }
  for (const int id : ids) {
    const auto logits = prefill(engine, id, some_tokens(1, 2));
    seen.insert(seen.end(), logits.begin(), logits.end());
  }
  engine.check_integrity();
  return seen;
}

TEST(graphs_change_no_bit_and_a_pass_has_one_upload) {
  const auto plain = engine_of(DType::kBF16, false, false, 4);
  const auto expected = decode_some(*plain);
  const auto whole = engine_of(DType::kBF16, true);
  EXPECT(decode_some(*whole) == expected);
  cuda_on_cpu::reset_emulated_driver();
  const auto engine = engine_of(DType::kBF16, false, true, 5);
  EXPECT(decode_some(*engine) == expected);
  EXPECT(count_calls("cuGraphLaunch") >= 3);

  const int id = engine->seq_new("one");
  const int copies = count_calls("cuMemcpyHtoDAsync_v2");
  engine->prefill_chunk(id, some_tokens(20, 1), nullptr);
  EXPECT_EQ(count_calls("cuMemcpyHtoDAsync_v2"), copies + 1);
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
