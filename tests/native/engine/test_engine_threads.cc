// Rows that are sampled and scored on several threads: in the order of the entries, with the bits
// of one thread, whichever thread takes which.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "engine_fixture.h"
#include "os/thread_pool.h"

namespace pb::test {
namespace {

constexpr int kThreads = 4;

// Gives every chain of rows to whichever thread comes first, however little there is to do.
class PooledBackend : public NaiveBackend {
 public:
  int n_threads() const override { return kThreads; }
  void prepare(const PassShape& shape) override {
    NaiveBackend::prepare(shape);
    samplers_.assign(kThreads, Sampler(shape.vocab_size));
  }
  void sample(const Buffer& logits, Rows rows, std::span<Sample> samples) override {
    const RowsToSample rows_to_sample = to_sample(logits, rows, samples);
    pool_.parallel_for(rows.n, 1, [&](int64_t begin, int64_t end, int worker) {
      for (auto row = static_cast<size_t>(rows.first + begin);
           row < static_cast<size_t>(rows.first + end); ++row) {
        if (!rows_to_sample.begins_chain(row)) continue;
        ++n_chains;
        rows_to_sample.sample_chain(row, samplers_[static_cast<size_t>(worker)]);
      }
    });
  }

  std::atomic<int> n_chains = 0;

 private:
  ThreadPool pool_{kThreads};
  std::vector<Sampler> samplers_;
};

Sampling penalised(uint64_t seed) {
  Sampling sampling;
  sampling.temperature = 0.9;
  sampling.seed = seed;
  sampling.top_p = 0.95;
  sampling.repetition_penalty = 1.3;
  sampling.presence_penalty = 0.4;
  sampling.logit_bias = {{3, 1.5f}};
  sampling.wants_logprobs = true;
  sampling.top_logprobs = 3;
  return sampling;
}

EngineOptions wide_options(int n_ubatch) {
  EngineOptions options = small_options(n_ubatch);
  options.n_parallel = 48;
  options.n_ctx = 48 * 48;
  return options;
}

struct Outcome {
  std::vector<int> seq_ids;
  std::vector<int32_t> tokens;
  std::vector<float> numbers;
  int64_t n_accepted = 0;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// Several steps: entries that sample, with and without drafts (right and wrong), and that are
// scored.
Outcome outcome_of(std::unique_ptr<Backend> backend, int n_ubatch) {
  const auto engine = make_engine(wide_options(n_ubatch), std::move(backend));
  std::vector<std::vector<int32_t>> next;
  for (int i = 0; i < 48; ++i) {
    engine->seq_new(std::to_string(i));
    if (i % 4 != 0) engine->seq_sampling(i, penalised(static_cast<uint64_t>(i)));
    next.push_back(some_tokens(1 + i % 5, i));
  }
  Outcome outcome;
  for (int round = 0; round < 12; ++round) {
    std::vector<std::vector<float>> logprobs(48);
    std::vector<StepEntry> entries;
    for (int i = 0; i < 48; ++i) {
      const auto index = static_cast<size_t>(i);
      StepEntry entry = {.seq_id = i, .tokens = next[index]};
      if (i % 6 == 5) {
        logprobs[index].resize(next[index].size());
        entry.targets = next[index];
        entry.logprobs = logprobs[index].data();
      } else {
        entry.wants_logits = true;
        entry.n_draft = static_cast<int>(next[index].size()) - 1;
      }
      entries.push_back(entry);
    }
    const auto samples = engine->step(entries);
    for (auto& numbers : logprobs) {
      outcome.numbers.insert(outcome.numbers.end(), numbers.begin(), numbers.end());
    }
    for (const StepSample& sampled : samples) {
      outcome.seq_ids.push_back(sampled.seq_id);
      outcome.tokens.push_back(sampled.sample.token);
      outcome.numbers.push_back(sampled.sample.logprob);
      auto& tokens = next[static_cast<size_t>(sampled.seq_id)];
      tokens = {sampled.sample.token};
      // Likely to be sampled by those that are greedy, and unlikely by the others.
      if (round % 2 == 1) tokens.insert(tokens.end(), {tokens[0], tokens[0], 3});
    }
    for (size_t i = 5; i < 48; i += 6) next[i] = some_tokens(3, round + static_cast<int>(i));
    engine->check_integrity();
  }
  outcome.n_accepted = engine->statistics().accepted_tokens;
  return outcome;
}

}  // namespace

TEST(threads_change_neither_bits_nor_order) {
  const Outcome expected = outcome_of(std::make_unique<NaiveBackend>(), 512);
  EXPECT(expected.tokens.size() > 240);
  EXPECT(expected.n_accepted > 10);
  for (int n_ubatch : {1, 7, 512}) {
    for (int repeat = 0; repeat < 3; ++repeat) {
      EXPECT(outcome_of(std::make_unique<PooledBackend>(), n_ubatch) == expected);
    }
  }
}

TEST(rows_are_tasks_but_draft_tokens_follow_each_other) {
  auto made = std::make_unique<PooledBackend>();
  PooledBackend& backend = *made;
  const TinyModel model = rotary_model();
  // Not on a double, which samples the rows of a draft apart.
  Engine engine(model.config, model.tensors, wide_options(64), std::move(made));
  for (int i = 0; i < 3; ++i) engine.seq_new("");
  const auto prompt = some_tokens(6, 2);
  std::vector<float> logprobs(6);
  const auto tasks_of = [&](std::vector<StepEntry> entries) {
    backend.n_chains = 0;
    engine.step(entries);
    return backend.n_chains.load();
  };
  EXPECT_EQ(tasks_of({{.seq_id = 0, .tokens = prompt, .wants_logits = true, .n_draft = 5},
                      {.seq_id = 1, .tokens = prompt, .wants_logits = true}}),
            2);
  EXPECT_EQ(
      tasks_of({{.seq_id = 2, .tokens = prompt, .targets = prompt, .logprobs = logprobs.data()},
                {.seq_id = 1, .tokens = prompt, .wants_logits = true}}),
      7);
}

}  // namespace pb::test

PB_TEST_MAIN()
