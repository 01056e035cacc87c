// Activations of one place in the model for weights of any dtype that it has there.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "ops/backend.h"

namespace pb {

class ActivationSet {
 public:
  ActivationSet() = default;
  // Of max_rows rows of `cols`. `backend` must outlive this.
  ActivationSet(Backend& backend, int max_rows, int cols)
      : backend_(&backend), max_rows_(max_rows), cols_(cols) {
    which_.fill(kNone);
  }

  // Makes those for weights of `dtype`, where those of another one do not serve. To be called for
  // every dtype before of() is.
  void add(DType dtype) {
    size_t& which = which_[static_cast<size_t>(dtype)];
    if (which != kNone) return;
    for (which = 0; which < all_.size(); ++which) {
      if (backend_->shares_activations(all_[which].dtype, dtype)) return;
    }
    all_.push_back(backend_->make_activations(max_rows_, cols_, dtype));
  }

  // Those for weights of `dtype`, which has been added.
  Activations& of(DType dtype) { return all_[which_[static_cast<size_t>(dtype)]]; }

 private:
  static constexpr size_t kNone = ~size_t{0};

  Backend* backend_ = nullptr;
  int max_rows_ = 0;
  int cols_ = 0;
  std::vector<Activations> all_;
  std::array<size_t, std::size(kAllDTypes)> which_{};
};

// The same for rows as wide as the layers have them there.
class ActivationsByWidth {
 public:
  ActivationsByWidth() = default;
  // Of max_rows rows. `backend` must outlive this.
  ActivationsByWidth(Backend& backend, int max_rows) : backend_(&backend), max_rows_(max_rows) {}

  // Makes those of `cols` numbers for weights of `dtype`. To be called for every pair before of().
  void add(int cols, DType dtype) {
    if (std::ranges::find(widths_, cols) == widths_.end()) {
      widths_.push_back(cols);
      sets_.emplace_back(*backend_, max_rows_, cols);
    }
    at(cols).add(dtype);
  }

  // Those of a pair that has been added.
  Activations& of(int cols, DType dtype) { return at(cols).of(dtype); }

 private:
  ActivationSet& at(int cols) {
    return sets_[static_cast<size_t>(std::ranges::find(widths_, cols) - widths_.begin())];
  }

  Backend* backend_ = nullptr;
  int max_rows_ = 0;
  std::vector<int> widths_;
  std::vector<ActivationSet> sets_;  // by width
};

}  // namespace pb
