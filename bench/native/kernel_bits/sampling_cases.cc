// Samples of tokens: greedy, at random, with penalties and log-probabilities.
#include "cases.h"
#include "device_sampler.h"

namespace pb::bench {
namespace {

using namespace pb::test;

constexpr size_t kRows = 6;

// Every option that changes a sample, in turn.
Sampling sampling_of(size_t row, int vocab) {
  Sampling s;
  s.seed = row;
  s.temperature = row % 3 == 0 ? 0.0 : 0.7;
  s.n_prompt = 20;
  if (row & 1) s.top_k = 40;
  if (row & 2) s.top_p = 0.83;
  if (row & 4) s.min_p = 0.07;
  if (row >= 3) {
    s.repetition_penalty = 1.3;
    s.frequency_penalty = 0.25;
    s.logit_bias = {{0, 2.5f}, {vocab - 1, -3.0f}};
    s.min_tokens = 60;
    s.stop_token_ids = {vocab / 3};
  }
  s.wants_logprobs = row % 2 == 0;
  s.top_logprobs = s.wants_logprobs ? 5 : 0;
  return s;
}

std::vector<cuda::SampledRow> sample(int vocab, size_t first, size_t n) {
  std::vector<float> logits = Numbers(1).floats(kRows * static_cast<size_t>(vocab), 3.0f);
  std::vector<int32_t> history;
  for (int i = 0; i < 40; ++i) history.push_back(i * i % 23 * 7 % vocab);
  std::vector<Sampling> samplings;
  for (size_t row = first; row < first + n; ++row) samplings.push_back(sampling_of(row, vocab));
  std::vector<cuda::SamplingRequest> requests;
  for (const Sampling& s : samplings) requests.push_back({.sampling = &s, .history = history});
  const auto from = logits.begin() + static_cast<ptrdiff_t>(first * static_cast<size_t>(vocab));
  const std::vector<float> own(from, from + static_cast<ptrdiff_t>(n * static_cast<size_t>(vocab)));
  return DeviceSampler(vocab).sample(own, requests);
}

}  // namespace

void run_sampling_cases(Cases& cases) {
  for (const int vocab : {31, 5000, cases.is_small() ? 257 : 128256}) {
    const std::string group = "sampling of " + std::to_string(vocab) + " tokens";
    cases.run<cuda::SampledRow>({group + ", together", group, false},
                                [&] { return sample(vocab, 0, kRows); });
    cases.run<cuda::SampledRow>({group + ", alone", group, false}, [&] {
      std::vector<cuda::SampledRow> rows;
      for (size_t row = 0; row < kRows; ++row) rows.push_back(sample(vocab, row, 1)[0]);
      return rows;
    });
  }
}

}  // namespace pb::bench
