// Invariant 8: once an engine is warm, its steps allocate nothing.
//
// Counted is what the whole process asks of the heap, by operator new and by malloc and its kin,
// from all threads of it.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "counted_heap.h"
#include "cpu_fixture.h"
#include "engine/engine.h"
#include "tiny_model.h"

namespace pb::test {
namespace {

// Allocations while f runs.
template <typename F>
int64_t allocations_of(F f) {
  const int64_t before = n_allocations;
  f();
  return n_allocations - before;
}

}  // namespace

TEST(allocations_are_counted) {
  EXPECT_EQ(allocations_of([] {}), 0);
  EXPECT(allocations_of([] { std::vector<int> made(100); }) > 0);
  const auto one_more = allocations_of([] { std::free(std::malloc(100)); });
  EXPECT(one_more == 1 || allocations_of([] { delete new int; }) == 1);
}

// Not counted against a step are two short lists, whose length the caller chooses: the samples that
// step() returns and the entries that decode_batch() makes of its arguments.
constexpr int64_t kLists = 1;

TEST(steps_allocate_nothing_but_their_result) {
  for (const TinyModel& model :
       {rotary_model(), learned_model(), gemma_model(), olmo_model(), xielu_model()}) {
    for (const cpu::Kernels* target : runnable_targets()) {
      for (DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
        Engine engine(
            model.config, model.tensors,
            {.dtype = dtype, .n_ctx = 256, .n_parallel = 4, .n_ubatch = 8, .block_size = 16},
            make_cpu_backend(2, target->name));
        const std::vector<int32_t> ids = {engine.seq_new(""), engine.seq_new("")};
        Sampling sampling;
        sampling.temperature = 0.8;
        sampling.top_k = 20;
        sampling.top_p = 0.9;
        sampling.repetition_penalty = 1.1;
        engine.seq_sampling(ids[1], sampling);
        std::vector<int32_t> prompt(12);  // two ubatches
        for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 3 % 50);
        std::vector<float> logits(2 * static_cast<size_t>(model.config.vocab_size));
        std::vector<int32_t> next = {3, 4};
        const std::vector<StepEntry> entries = {
            {.seq_id = ids[0], .tokens = prompt, .wants_logits = true, .n_draft = 2},
            {.seq_id = ids[1], .tokens = {next.data(), 1}, .wants_logits = true}};
        std::vector<float> embedding(static_cast<size_t>(model.config.hidden_size));
        const std::vector<StepEntry> questions = {{.seq_id = ids[0],
                                                   .tokens = {next.data(), 2},
                                                   .targets = next,
                                                   .logprobs = logits.data(),
                                                   .pooling = Pooling::kMean,
                                                   .embedding = embedding.data()},
                                                  entries[1]};

        EXPECT_EQ(allocations_of([&] { engine.prefill_chunk(ids[0], prompt, logits.data()); }), 0);
        EXPECT_EQ(allocations_of([&] { engine.prefill_chunk(ids[1], prompt, nullptr); }), 0);
        engine.step(entries);  // the sampler's first sample
        EXPECT(allocations_of([&] { engine.step(entries); }) <= kLists);
        EXPECT(allocations_of([&] { engine.step(questions); }) <= kLists);
        for (int i = 0; i < 14; ++i) {  // past a KV block
          const auto allocations = allocations_of([&] {
            engine.decode_batch(ids, next, next.data(), i % 2 ? logits.data() : nullptr);
          });
          EXPECT(allocations <= kLists);
        }
      }
    }
  }
}

}  // namespace pb::test

PB_TEST_MAIN()
