// Encoders: what is refused, what rows see, that texts are kept whole and leave no trace in each
// other. That the numbers are those of the papers is tests/system/models/test_oracle_encoders.py's
// part.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "engine/engine.h"
#include "tiny_model.h"

namespace pb::test {
namespace {

using Floats = std::vector<float>;
using Tokens = std::vector<int32_t>;

// Learned positions, LayerNorm in the stream, no windows.
TinyModel bert() {
  TinyModel model = learned_model();
  model.config.architecture = "bert";
  model.config.causal = false;
  model.config.residual_norms = ResidualNorms::kAll;
  return model;
}

// Rotary positions, the first norm in the stream, a window of 3 on each side in both layers.
TinyModel windowed() {
  TinyModel model = rotary_model();
  model.config.causal = false;
  model.config.residual_norms = ResidualNorms::kFirst;
  model.config.sliding_windows = {3, 3};
  return model;
}

Tokens some_tokens(int n) {
  Tokens tokens;
  for (int i = 0; i < n; ++i) tokens.push_back((i * 7 + 3) % 50);
  return tokens;
}

std::unique_ptr<Engine> make_engine(const TinyModel& model, int n_ubatch = 32,
                                    DType dtype = DType::kF32) {
  EngineOptions options;
  options.dtype = dtype;
  options.n_ctx = 128;
  options.n_parallel = 4;
  options.n_ubatch = n_ubatch;
  options.block_size = 16;
  return std::make_unique<Engine>(model.config, model.tensors, options, make_cpu_backend(2));
}

Floats embedded(const TinyModel& model, const Tokens& tokens, Pooling pooling,
                DType dtype = DType::kF32) {
  const auto engine = make_engine(model, 32, dtype);
  Floats made(static_cast<size_t>(model.config.hidden_size));
  engine->embed(engine->seq_new(""), tokens, pooling, made.data());
  return made;
}

Floats with_token(const TinyModel& model, Tokens tokens, size_t at, Pooling pooling) {
  tokens[at] = (tokens[at] + 1) % 50;
  return embedded(model, tokens, pooling);
}

std::string refusal(ErrorCode code, const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& e) {
    EXPECT(e.code() == code);
    return e.what();
  }
  return "(nothing thrown)";
}

}  // namespace

TEST(config_refuses_norms_in_the_stream_where_there_are_none) {
  ModelConfig config = olmo_model().config;
  config.residual_norms = ResidualNorms::kFirst;
  const auto says = [&](const ModelConfig& c) {
    return refusal(ErrorCode::kModelFormat, [&] { c.validate(); }).find("residual_norms") !=
           std::string::npos;
  };
  EXPECT(says(config));
  config = moe_model().config;
  config.residual_norms = ResidualNorms::kAll;
  EXPECT(says(config));
  bert().config.validate();
  windowed().config.validate();
}

TEST(rows_see_what_follows_them) {
  const Tokens tokens = some_tokens(20);
  TinyModel model = bert();
  const Floats first = embedded(model, tokens, Pooling::kFirst);
  EXPECT(with_token(model, tokens, 19, Pooling::kFirst) != first);
  model.config.causal = true;
  EXPECT(with_token(model, tokens, 19, Pooling::kFirst) ==
         embedded(model, tokens, Pooling::kFirst));
}

TEST(windows_bound_both_sides) {
  const TinyModel model = windowed();
  const Tokens tokens = some_tokens(20);  // each of two layers sees two tokens further
  const Floats first = embedded(model, tokens, Pooling::kFirst);
  EXPECT(with_token(model, tokens, 4, Pooling::kFirst) != first);
  EXPECT(with_token(model, tokens, 5, Pooling::kFirst) == first);
  const Floats last = embedded(model, tokens, Pooling::kLast);
  EXPECT(with_token(model, tokens, 15, Pooling::kLast) != last);
  EXPECT(with_token(model, tokens, 14, Pooling::kLast) == last);
}

TEST(texts_are_kept_whole_and_leave_no_trace) {
  const std::vector<Tokens> texts = {some_tokens(16), some_tokens(9), some_tokens(7),
                                     some_tokens(15)};
  for (const TinyModel& model : {bert(), windowed()}) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
      for (int n_ubatch : {16, 20, 64}) {
        const auto engine = make_engine(model, n_ubatch, dtype);
        std::vector<Floats> made(texts.size(),
                                 Floats(static_cast<size_t>(model.config.hidden_size)));
        std::vector<StepEntry> entries;
        for (size_t i = 0; i < texts.size(); ++i) {
          entries.push_back({.seq_id = engine->seq_new(""),
                             .tokens = texts[i],
                             .pooling = Pooling::kMean,
                             .embedding = made[i].data()});
        }
        EXPECT(engine->step(entries).empty());
        for (size_t i = 0; i < texts.size(); ++i) {
          EXPECT(made[i] == embedded(model, texts[i], Pooling::kMean, dtype));
          engine->seq_remove(entries[i].seq_id, 0, -1);
        }
        engine->check_integrity();
      }
    }
  }
}

TEST(no_prefix_is_found_again) {
  const Tokens tokens = some_tokens(40);  // two blocks and a half
  for (bool causal : {true, false}) {
    TinyModel model = bert();
    model.config.causal = causal;
    const auto engine = make_engine(model, 64);
    Floats made(static_cast<size_t>(model.config.hidden_size));
    const int id = engine->seq_new("");
    engine->embed(id, tokens, Pooling::kMean, made.data());
    engine->seq_remove(id, 0, -1);
    EXPECT_EQ(engine->seq_match(engine->seq_new(""), tokens), causal ? 32 : 0);
  }
}

TEST(a_text_has_to_fit_into_a_pass) {
  const auto engine = make_engine(bert(), 12);
  EXPECT_EQ(engine->max_sequence_length(), 12);
  Floats made(20);
  const int id = engine->seq_new("");
  EXPECT_THROWS(ErrorCode::kRequestTooLong,
                engine->embed(id, some_tokens(13), Pooling::kMean, made.data()));
  EXPECT_THROWS(ErrorCode::kInvalidRequest, engine->prefill_chunk(id, some_tokens(3), nullptr));
  engine->embed(id, some_tokens(3), Pooling::kMean, made.data());
  EXPECT_THROWS(ErrorCode::kInvalidRequest,
                engine->embed(id, some_tokens(3), Pooling::kMean, made.data()));
  EXPECT_EQ(engine->seq_length(id), 3);
}

TEST(norms_without_a_bias_have_one_of_zeros) {
  TinyModel zeros = bert();
  TinyModel without = bert();
  without.config.norm_bias = false;
  for (const auto& [name, view] : zeros.tensors) {
    if (!name.ends_with("norm.bias")) continue;
    for (int64_t i = 0; i < view.rows; ++i) zeros.values(name)[i] = 0.0f;
    without.tensors.erase(name);
  }
  const Tokens tokens = some_tokens(20);
  EXPECT(embedded(without, tokens, Pooling::kMean) == embedded(zeros, tokens, Pooling::kMean));
}

TEST(every_weight_matters) {
  const Tokens tokens = some_tokens(20);
  for (const auto& make : {bert, windowed}) {
    const TinyModel intact = make();
    const Floats expected = embedded(intact, tokens, Pooling::kMean);
    for (const auto& [name, view] : intact.tensors) {
      if (name == "head.weight") continue;
      if (name.ends_with(".k.bias")) continue;  // adds the same to all scores of a query
      TinyModel changed = make();
      for (int64_t i = 0; i < view.rows * view.cols; ++i) changed.values(name)[i] *= 1.5f;
      if (embedded(changed, tokens, Pooling::kMean) == expected) {
        fail(__FILE__, __LINE__, name + " is not used");
      }
    }
  }
}

}  // namespace pb::test

PB_TEST_MAIN()
