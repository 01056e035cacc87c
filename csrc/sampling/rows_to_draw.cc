#include "sampling/rows_to_draw.h"

namespace pb {

void RowsToDraw::draw_chain(size_t row, Sampler& sampler) const {
  do {
    draws_[row] = draw(row, sampler);
    ++row;
  } while (row < end_ && continues_draft(row));
}

// The row before may lie before first_: then it was drawn by an earlier call.
Draw RowsToDraw::draw(size_t row, Sampler& sampler) const {
  if (continues_draft(row) && !confirms_draft(draws_[row - 1], requests_[row - 1])) {
    return {.failure = "the draft token before it was wrong"};
  }
  const DrawRequest& request = requests_[row];
  const std::span<const float> logits(logits_ + (row - first_) * vocab_size_, vocab_size_);
  if (request.sampling != nullptr) {
    return sampler.draw(logits, *request.sampling, request.history, request.appended, request.mask);
  }
  return sampler.scored(logits, request.target, request.n_top);
}

}  // namespace pb
