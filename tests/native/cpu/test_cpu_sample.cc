// Sampling on the CPU: rows are shared among threads, those of a draft follow each other.
#include <algorithm>
#include <cstring>
#include <string>

#include "cpu_fixture.h"

namespace {

using namespace pb;
using namespace pb::test;

constexpr int kVocab = 3000;
constexpr int kRows = 70;

Heartbeat unused;

struct Pass {
  std::vector<float> logits = numbers(size_t{kRows} * kVocab, 1, 8.0f);
  std::vector<int32_t> tokens = std::vector<int32_t>(12, 3);
  Sampling greedy, random;
  std::vector<int32_t> rows = std::vector<int32_t>(kRows);
  std::vector<SampleRequest> requests;

  Pass() {
    random.temperature = 1.2;
    random.top_p = 0.9;
    random.presence_penalty = 0.5;
    random.wants_logprobs = true;
    random.top_logprobs = 2;
    for (int r = 0; r < kRows; ++r) {
      SampleRequest request;
      if (r % 5 == 4) {
        request.target = r * 7;
        request.n_top = r % 4;
      } else {
        request.sampling = r % 2 == 0 ? &greedy : &random;
        request.history = std::span(tokens).first(5);
        request.appended = std::span(tokens).subspan(5, static_cast<size_t>(r % 7));
      }
      requests.push_back(request);
    }
  }

  std::span<const float> row(int r) const {
    return std::span(logits).subspan(static_cast<size_t>(r) * kVocab, kVocab);
  }

  // The samples, `at_once` rows a call.
  std::vector<Sample> samples(int n_threads, int at_once) {
    const auto backend = make_cpu_backend(n_threads);
    backend->prepare(
        {.max_rows = kRows, .n_heads = 1, .storages = {{.shape = {1, 32}}}, .vocab_size = kVocab});
    plan_rows(*backend, {.n_rows = kRows, .logits_rows = rows, .requests = requests});
    std::vector<Sample> all(kRows);
    for (int first = 0; first < kRows; first += at_once) {
      const int n = std::min(at_once, kRows - first);
      Buffer group(logits.data() + size_t{kVocab} * first, sizeof(float) * kVocab * n, nullptr);
      backend->sample(group, {Rows::Of::kLogitsRows, first, n}, all);
    }
    backend->finish(unused);
    return all;
  }
};

bool same(const Sample& a, const Sample& b) {
  return (a.failure == nullptr) == (b.failure == nullptr) && a.token == b.token &&
         a.has_logprobs == b.has_logprobs && same_bits(&a.logprob, &b.logprob, 1) &&
         a.n_top == b.n_top && a.top[1].token == b.top[1].token;
}

}  // namespace

TEST(a_draw_is_the_samplers_whatever_the_threads_and_groups) {
  Pass pass;
  Sampler sampler(kVocab);
  for (int n_threads : {1, 3}) {
    for (int at_once : {1, 32, kRows}) {
      const auto samples = pass.samples(n_threads, at_once);
      for (int r = 0; r < kRows; ++r) {
        const SampleRequest& request = pass.requests[static_cast<size_t>(r)];
        const Sample expected =
            request.sampling == nullptr
                ? sampler.scored(pass.row(r), request.target, request.n_top)
                : sampler.sample(pass.row(r), *request.sampling, request.history, request.appended);
        EXPECT(expected.failure == nullptr && same(samples[static_cast<size_t>(r)], expected));
      }
    }
  }
}

TEST(a_draft_is_drawn_up_to_its_first_wrong_token) {
  Pass pass;
  for (SampleRequest& request : pass.requests) request = {.sampling = &pass.greedy};
  const auto free = pass.samples(1, kRows);
  // Drafts of four tokens, a row each and one more; the token that is wrong takes turns.
  const auto first_wrong = [](int r) { return r / 5 % 5; };
  for (int r = 0; r < kRows; ++r) {
    if (r % 5 == 4) continue;
    const int32_t sampled = free[static_cast<size_t>(r)].token;
    pass.requests[static_cast<size_t>(r)].draft =
        r % 5 == first_wrong(r) ? (sampled + 1) % kVocab : sampled;
  }
  for (int n_threads : {1, 3}) {
    for (int at_once : {1, 3, 32, kRows}) {  // some cut a draft
      const auto samples = pass.samples(n_threads, at_once);
      for (int r = 0; r < kRows; ++r) {
        const Sample& sample = samples[static_cast<size_t>(r)];
        EXPECT_EQ(sample.failure == nullptr, r % 5 <= first_wrong(r));
        if (sample.failure == nullptr) EXPECT_EQ(sample.token, free[static_cast<size_t>(r)].token);
      }
    }
  }
}

PB_TEST_MAIN()
