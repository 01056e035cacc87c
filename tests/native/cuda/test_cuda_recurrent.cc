// Recurrent layers on the CUDA backend, on the emulator: operations against the formulas, and
// engines near the CPU's logits, with the same bits under any schedule.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "check.h"
#include "cuda_engine.h"
#include "engine_fixture.h"
#include "gated_delta_net_fixture.h"
#include "short_conv_fixture.h"

namespace pb::test {
namespace {

using cuda_on_cpu::count_calls;

TEST(rows_are_those_of_the_formulas_however_they_are_cut) {
  for (const GatedDeltaNetShape& shape :
       {GatedDeltaNetShape{2, 6, 12, 20, 4}, GatedDeltaNetShape{2, 4, 40, 8, 3, true}}) {
    GatedDeltaNetRig rig(shape, make_emulated_backend());
    const auto x = GatedDeltaNetNumbers::rows(37, shape, 55);
    const auto expected = rig.run_in(37, x, 0);
    EXPECT(distance_of(expected, exact_gated_delta_net(shape, rig.numbers, x)) < 2e-6);
    for (const int n_rows : {1, 5, 8, 17}) EXPECT(rig.run_in(n_rows, x, 6) == expected);
  }
}

TEST(short_convolutions_are_those_of_the_formula_however_rows_are_cut) {
  for (const ShortConvShape& shape : short_conv_shapes()) {
    ShortConvRig rig(shape, make_emulated_backend());
    const auto x = short_conv_rows(37, shape, 55);
    const auto expected = rig.run_in(37, x, 0);
    EXPECT(distance_of(expected, exact_short_conv(shape, x)) < 1e-6);
    for (const int n_rows : {1, 5, 8, 17}) EXPECT(rig.run_in(n_rows, x, 6) == expected);
  }
}

// x: 20 rows. y_size: numbers of a row's result.
template <typename Rig>
void expect_own_blocks(Rig& rig, const std::vector<float>& x, int y_size) {
  const auto expected = rig.run_in(20, x, 0);
  (void)rig.run_in(6, rig.rows_of(x, 0, 6), 4);
  (void)rig.run_in(15, rig.rows_of(x, 0, 15), 5);
  const std::vector<int32_t> tables[] = {{7, 8, 9}, {5, 10, 11}};
  std::vector<SequenceRows> sequences = {
      {.first_row = 0, .n_rows = 11, .first_position = 6, .state_from = 4},
      {.first_row = 11, .n_rows = 3, .first_position = 15, .state_from = 6}};
  for (size_t i = 0; i < 2; ++i) {
    sequences[i].block_tables[0] = sequences[i].block_tables[1] = tables[i].data();
  }
  std::vector<float> rows = rig.rows_of(x, 6, 11);
  const auto others = rig.rows_of(x, 15, 3);
  rows.insert(rows.end(), others.begin(), others.end());
  const auto y = rig.run(sequences, rows);
  const auto width = ptrdiff_t{y_size};
  EXPECT(std::equal(y.begin(), y.begin() + 11 * width, expected.begin() + 6 * width));
  EXPECT(std::equal(y.begin() + 11 * width, y.end(), expected.begin() + 15 * width));
}

TEST(sequences_of_a_pass_go_on_from_blocks_of_their_own) {
  const GatedDeltaNetShape shape{2, 6, 12, 20, 4};
  GatedDeltaNetRig rig(shape, make_emulated_backend());
  expect_own_blocks(rig, GatedDeltaNetNumbers::rows(20, shape, 57), shape.value_size());
  const ShortConvShape of_conv{150, 4};
  ShortConvRig conv(of_conv, make_emulated_backend());
  expect_own_blocks(conv, short_conv_rows(20, of_conv, 57), of_conv.width);
}

// -- in engines

std::unique_ptr<Engine> engine_of(DType dtype, std::unique_ptr<Backend> backend,
                                  int n_ubatch = 64) {
  EngineOptions options = small_options(n_ubatch);
  options.dtype = dtype;
  options.kv_dtype = DType::kF32;
  options.n_ctx = 640;
  options.n_parallel = 8;
  const TinyModel model = recurrent_model();
  return std::make_unique<Engine>(model.config, model.tensors, options, std::move(backend));
}

// The logits after 60 tokens, computed `chunk` a call.
std::vector<float> logits_of(Engine& engine, size_t chunk) {
  const std::vector<int32_t> tokens = some_tokens(60, 3);
  const int seq_id = engine.seq_new(std::to_string(chunk));
  std::vector<float> logits;
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    const size_t n = std::min(chunk, tokens.size() - at);
    logits = prefill(engine, seq_id, std::span(tokens).subspan(at, n));
  }
  engine.check_integrity();
  return logits;
}

TEST(logits_are_near_those_of_the_cpu) {
  const auto expected = logits_of(*engine_of(DType::kF32, make_cpu_backend(1)), 60);
  const auto logits = logits_of(*engine_of(DType::kF32, make_emulated_backend()), 60);
  float worst = 0.0f, largest = 0.0f;
  for (size_t i = 0; i < logits.size(); ++i) {
    worst = std::max(worst, std::abs(logits[i] - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  EXPECT(worst <= 2e-5f * std::max(1.0f, largest));
}

TEST(logits_have_the_same_bits_under_any_schedule) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
    const auto engine = engine_of(dtype, make_emulated_backend());
    const auto expected = logits_of(*engine, 60);
    for (const size_t chunk : {1, 7, 17}) EXPECT(logits_of(*engine, chunk) == expected);
    EXPECT(logits_of(*engine_of(dtype, make_emulated_backend(), 8), 60) == expected);
  }
}

// Sequences of several lengths: tokens sampled in company that changes, then logits.
std::vector<float> decode_some(Engine& engine) {
  std::vector<int> ids;
  std::vector<int32_t> last;
  for (int i = 0; i < 7; ++i) {
    ids.push_back(engine.seq_new(std::to_string(i)));
    engine.prefill_chunk(ids.back(), some_tokens(3 + 7 * i, i), nullptr);
    last.push_back(5 * i);
  }
  std::vector<float> seen;
  for (const size_t n : {1, 7, 3, 2, 5, 6, 7, 3, 1, 4, 7, 5, 3, 7, 6, 3, 7, 7, 5}) {
    std::vector<int32_t> next(n);
    engine.decode_batch(std::span(ids).first(n), std::span(last).first(n), next.data(), nullptr);
    std::copy(next.begin(), next.end(), last.begin());
    seen.insert(seen.end(), next.begin(), next.end());
    engine.check_integrity();
  }
  for (const int id : ids) {
    const auto logits = prefill(engine, id, some_tokens(1, 2));
    seen.insert(seen.end(), logits.begin(), logits.end());
  }
  return seen;
}

// Graphs are padded to 1, 2, 4 and 8 rows: padding has no state, and harms none.
TEST(graphs_change_no_bit_and_a_pass_has_one_upload) {
  const auto expected =
      decode_some(*engine_of(DType::kBF16, make_emulated_backend({.graphs = false})));
  cuda_on_cpu::reset_emulated_driver();
  const auto engine = engine_of(DType::kBF16, make_emulated_backend());
  EXPECT(decode_some(*engine) == expected);
  EXPECT(count_calls("cuGraphLaunch") >= 10);
  engine->seq_remove(0, 0, -1);
  const int id = engine->seq_new("one");
  const int copies = count_calls("cuMemcpyHtoDAsync_v2");
  engine->prefill_chunk(id, some_tokens(20, 1), nullptr);
  EXPECT_EQ(count_calls("cuMemcpyHtoDAsync_v2"), copies + 1);
}

// A pass whose rows are all scored is as a decode pass, but of fewer sequences than rows.
TEST(graphs_of_a_number_of_rows_serve_any_number_of_sequences) {
  std::vector<std::vector<float>> seen;
  for (const bool graphs : {false, true}) {
    const auto engine = engine_of(DType::kF32, make_emulated_backend({.graphs = graphs}));
    std::vector<float> logprobs(4);
    const auto score = [&](const char* name) {
      const std::vector<int32_t> tokens = some_tokens(4, 6), targets = some_tokens(4, 7);
      const std::vector<StepEntry> entries = {{.seq_id = engine->seq_new(name),
                                               .tokens = tokens,
                                               .targets = targets,
                                               .logprobs = logprobs.data()}};
      (void)engine->step(entries);
    };
    std::vector<float>& found = seen.emplace_back();
    score("before");
    found.insert(found.end(), logprobs.begin(), logprobs.end());
    std::vector<int> ids;
    for (int i = 0; i < 4; ++i) {
      ids.push_back(engine->seq_new(std::to_string(i)));
      engine->prefill_chunk(ids.back(), some_tokens(5 + i, i), nullptr);
    }
    std::vector<int32_t> last = {3, 4, 5, 6}, next(4);
    for (int step = 0; step < 3; ++step) {
      engine->decode_batch(ids, last, next.data(), nullptr);
      last = next;
      found.insert(found.end(), next.begin(), next.end());
    }
    for (const int id : ids) {
      const auto logits = prefill(*engine, id, some_tokens(1, 2));
      found.insert(found.end(), logits.begin(), logits.end());
    }
    score("after");
    found.insert(found.end(), logprobs.begin(), logprobs.end());
  }
  EXPECT(seen[1] == seen[0]);
}

TEST(heads_that_are_too_wide_are_refused_by_name) {
  TinyModel model = recurrent_model();
  model.config.gated_delta_net.key_dim = 257;
  try {
    const Engine engine(model.config, model.tensors, small_options(), make_emulated_backend());
    EXPECT(false);
  } catch (const Error& error) {
    EXPECT(error.code() == ErrorCode::kConfig);
    const std::string message = error.what();
    EXPECT(message.find("gated_delta_net.key_dim is 257") != std::string::npos);
    EXPECT(message.find("up to 256: use device='cpu'") != std::string::npos);
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
