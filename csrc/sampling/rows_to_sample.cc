#include "sampling/rows_to_sample.h"

namespace pb {

void RowsToSample::sample_chain(size_t row, Sampler& sampler) const {
  do {
    samples_[row] = sample(row, sampler);
    ++row;
  } while (row < end_ && continues_draft(row));
}

// Samples one row. If the row continues a draft and is the first of this call, an earlier call has
// sampled the row before it.
Sample RowsToSample::sample(size_t row, Sampler& sampler) const {
  if (continues_draft(row) && !confirms_draft(samples_[row - 1], requests_[row - 1])) {
    return {.failure = "the draft token before it was wrong"};
  }
  const SampleRequest& request = requests_[row];
  const std::span<const float> logits(logits_ + (row - first_) * vocab_size_, vocab_size_);
  if (request.sampling != nullptr) {
    return sampler.sample(logits, *request.sampling, request.history, request.appended,
                          request.mask);
  }
  return sampler.scored(logits, request.target, request.n_top);
}

}  // namespace pb
