// Samples many rows on the host, with one Sampler per thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sampling/sample.h"
#include "sampling/sampler.h"

namespace pb {

// The rows [first, first + n) of the requests of a pass, with their logits.
//
// The unit of work is a chain: a row followed by the rows that continue its draft. Chains may be
// sampled in any order and concurrently, each with its own Sampler, because no chain writes data
// that another chain reads.
class RowsToSample {
 public:
  // `requests` and `samples` cover all rows of the pass, and the rows before `first` must already
  // be sampled. logits: (n, vocab_size)
  RowsToSample(std::span<const SampleRequest> requests, std::span<Sample> samples, size_t first,
               size_t n, const float* logits, size_t vocab_size)
      : requests_(requests),
        samples_(samples),
        first_(first),
        end_(first + n),
        logits_(logits),
        vocab_size_(vocab_size) {}

  bool begins_chain(size_t row) const { return row == first_ || !continues_draft(row); }

  // Samples all rows of the chain that begins with `row`. After a rejected draft token, the
  // remaining samples of the chain are set to failures without being computed.
  void sample_chain(size_t row, Sampler& sampler) const;

 private:
  bool continues_draft(size_t row) const { return row > 0 && requests_[row - 1].draft != kNoToken; }
  Sample sample(size_t row, Sampler& sampler) const;

  std::span<const SampleRequest> requests_;
  std::span<Sample> samples_;
  size_t first_;
  size_t end_;
  const float* logits_;
  size_t vocab_size_;
};

}  // namespace pb
