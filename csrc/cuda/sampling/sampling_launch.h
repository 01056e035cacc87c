// The host's side of sampling on the device: sampling parameters become parameters of the kernels
// of sampling.cuh, and the kernels' results become samples.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/driver/launch.h"
#include "cuda/sampling/params_sampling.h"
#include "sampling/sample.h"
#include "sampling/sampling.h"

namespace pb::cuda {

// The sampling of one row of logits.
struct SamplingRequest {
  const Sampling* sampling = nullptr;  // of the sequence; null if `target` is set
  // The sequence's tokens are `history` followed by `appended`; the sampled token comes after them.
  std::span<const int32_t> history = {};
  std::span<const int32_t> appended = {};
  const uint32_t* mask = nullptr;  // (mask_words(vocab)): tokens that may be sampled; null: all
  // If not negative, this token's log-probability is computed and none is sampled.
  int32_t target = -1;
  int32_t n_top = 0;  // number of likeliest tokens to return with the target
};

// The bytes of device memory for sampling.
struct SamplingBytes {
  size_t rows = 0;     // RowSampling
  size_t changes = 0;  // ScoreChange
  size_t scores = 0;
  size_t sampled = 0;  // SampledRow
};

SamplingBytes sampling_bytes(int vocab_size, int most_rows, size_t most_changes);

// The leading requests that SamplingPlanner::plan has planned.
struct PlannedRows {
  int n_rows = 0;
  size_t n_changes = 0;
  bool is_random = false;
  bool wants_logprobs = false;
};

class SamplingPlanner {
 public:
  explicit SamplingPlanner(int vocab_size);

  // Fills in `rows` and `changes` for as many leading requests as there is room for; the caller
  // plans the others by another call. There must be room for one: rows.size() >= 1 and
  // changes.size() >= vocab_size. Allocates nothing.
  PlannedRows plan(std::span<const SamplingRequest> requests, std::span<RowSampling> rows,
                   std::span<ScoreChange> changes);

 private:
  ScoreChange& change(int32_t token);
  void list_changes(const SamplingRequest& request);
  void penalise(const SamplingRequest& request);

  std::vector<int32_t> slots_;  // (vocab): 1 + the token's index among the row's changes; else zero
  std::vector<int32_t> counts_;  // (vocab): occurrences in the output; zero between rows
  std::span<ScoreChange> free_changes_;
  size_t n_changes_ = 0;   // changes of the row, which start free_changes_
  bool is_full_ = false;   // free_changes_ has no room for the row
  ScoreChange ignored_{};  // receives changes that do not fit
};

// The kernels of one call, in order.
struct SamplingLaunches {
  std::array<Launch<SampleParams>, 4> launches{};
  size_t n = 0;
};

// Returns the launches that the rows need. A graph of launches for any rows takes a PlannedRows
// with everything set.
SamplingLaunches sampling_launches(const PlannedRows& planned, const SampleParams& params);

// Returns the sample of a row for the engine.
Sample sample_of(const SampledRow& sampled, const RowSampling& row);

}  // namespace pb::cuda
