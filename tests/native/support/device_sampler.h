// Samples rows of logits with the kernels of sampling.cuh.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/sampling/sampling_launch.h"
#include "cuda_fixture.h"

namespace pb::test {

class DeviceSampler {
 public:
  explicit DeviceSampler(int vocab) : vocab_(vocab), planner_(vocab) {}

  // logits (requests.size(), vocab). threads: of a block; 0 = as the launch says.
  std::vector<cuda::SampledRow> sample(const std::vector<float>& logits,
                                       std::span<const cuda::SamplingRequest> requests,
                                       unsigned threads = 0) {
    const size_t n = requests.size();
    rows_.resize(n);
    std::vector<cuda::ScoreChange> changes(n * static_cast<size_t>(vocab_));
    const cuda::PlannedRows planned = planner_.plan(requests, rows_, changes);
    EXPECT_EQ(static_cast<size_t>(planned.n_rows), n);
    changes.resize(planned.n_changes);
    const DeviceArray<float> device_logits(logits);
    const DeviceArray<cuda::RowSampling> device_rows(rows_);
    const DeviceArray<cuda::ScoreChange> device_changes(changes);
    DeviceArray<float> scores(planned.n_changes > 0 ? logits.size() : 0);
    DeviceArray<cuda::SampledRow> sampled(n);
    const cuda::SampleParams params = {.logits = device_logits.get(),
                                       .vocab = vocab_,
                                       .rows = device_rows.get(),
                                       .changes = device_changes.get(),
                                       .scores = scores.get(),
                                       .sampled = sampled.get()};
    const cuda::SamplingLaunches all = cuda::sampling_launches(planned, params);
    for (const auto& l : std::span(all.launches).first(all.n)) {
      launch(l.kernel, dim3(l.grid.x, l.grid.y, l.grid.z), dim3(threads > 0 ? threads : l.threads),
             l.shared_bytes, l.params);
    }
    return sampled.host();
  }

  std::vector<Sample> samples(const std::vector<float>& logits,
                              std::span<const cuda::SamplingRequest> requests) {
    const std::vector<cuda::SampledRow> sampled = sample(logits, requests);
    std::vector<Sample> all;
    for (size_t i = 0; i < sampled.size(); ++i)
      all.push_back(cuda::sample_of(sampled[i], rows_[i]));
    return all;
  }

  Sample sample(const std::vector<float>& logits, const Sampling& sampling,
                std::span<const int32_t> history = {}, std::span<const int32_t> appended = {}) {
    const cuda::SamplingRequest request = {
        .sampling = &sampling, .history = history, .appended = appended};
    return samples(logits, {&request, 1})[0];
  }

 private:
  int vocab_;
  cuda::SamplingPlanner planner_;
  std::vector<cuda::RowSampling> rows_;
};

}  // namespace pb::test
