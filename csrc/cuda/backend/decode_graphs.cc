#include "cuda/backend/decode_graphs.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

namespace pb::cuda {
namespace {

// Returns the index of n_rows in the list 1, 2, 4, ...
int size_index(int n_rows) { return std::bit_width(static_cast<unsigned>(n_rows - 1)); }

}  // namespace

DecodeGraphs::DecodeGraphs(Device& device, int max_rows, bool enabled)
    : device_(device),
      most_rows_(std::min(max_rows, kMostDecodeRows)),
      wanted_(enabled),
      enabled_(enabled) {
  static_assert(kMostDecodeRows == 1 << (kSizes - 1));
}

int DecodeGraphs::padded_rows(int n_rows) const {
  return std::min(1 << size_index(n_rows), most_rows_);
}

std::vector<DecodeGraphs::Captured>& DecodeGraphs::captured_of(int n_rows) {
  return graphs_[static_cast<size_t>(size_index(n_rows))];
}

bool DecodeGraphs::launch(const DecodePass& pass) {
  const std::vector<Captured>& captured = captured_of(pass.n_rows);
  const auto found = std::ranges::find_if(
      captured, [&](const Captured& one) { return std::ranges::equal(one.lists, pass.lists); });
  if (!enabled_ || found == captured.end()) return false;
  try {
    device_.launch(found->graph);
    return true;
  } catch (const std::exception& error) {
    give_up(error.what());
    return false;
  }
}

void DecodeGraphs::capture(const DecodePass& pass, FunctionRef<void()> give_work) noexcept {
  try {
    Captured captured{{pass.lists.begin(), pass.lists.end()}, device_.capture(give_work)};
    captured_of(pass.n_rows).push_back(std::move(captured));
  } catch (const std::exception& error) {
    give_up(error.what());
  }
}

void DecodeGraphs::clear() {
  graphs_ = {};
  problem_.clear();
  enabled_ = wanted_;
}

// Existing graphs are not destroyed, because one of them may be running.
void DecodeGraphs::give_up(const char* problem) {
  enabled_ = false;
  problem_ = problem;
}

}  // namespace pb::cuda
