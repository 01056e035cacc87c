// Activations of one place in the model for weights of any dtype, and in any order of their inputs,
// that it has there.
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
  // Makes an empty set, for max_rows rows of `cols` columns. `backend` must outlive this.
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

  // Makes those for products with w, likewise.
  void add(const Matrix& w) {
    add(w.dtype);
    if (w.order && !plain_.data) {
      plain_ = backend_->make_activations(max_rows_, cols_, DType::kF32);
    }
  }

  // The activations for weights of `dtype`, which has been added.
  Activations& of(DType dtype) { return all_[which_[static_cast<size_t>(dtype)]]; }

  // The activations in their original order, before permute(). They exist if a matrix with an order
  // was added.
  Activations& plain() { return plain_; }

  // Calls make(activations) for n_rows rows and returns them as products with w, which has been
  // added, take them.
  template <typename Make>
  Activations& made_for(const Matrix& w, int n_rows, Make&& make) {
    Activations& out = of(w.dtype);
    make(w.order ? plain_ : out);
    if (w.order) backend_->permute(plain_, n_rows, w.order, out);
    return out;
  }

 private:
  static constexpr size_t kNone = ~size_t{0};

  Backend* backend_ = nullptr;
  int max_rows_ = 0;
  int cols_ = 0;
  std::vector<Activations> all_;
  Activations plain_;  // f32, not rounded
  std::array<size_t, std::size(kAllDTypes)> which_{};
};

// The same for rows as wide as the layers have them there.
class ActivationsByWidth {
 public:
  ActivationsByWidth() = default;
  // Makes an empty set, for max_rows rows. `backend` must outlive this.
  ActivationsByWidth(Backend& backend, int max_rows) : backend_(&backend), max_rows_(max_rows) {}

  // Makes those for products with w. To be called for every matrix before made_for().
  void add(const Matrix& w) {
    if (std::ranges::find(widths_, w.n_in) == widths_.end()) {
      widths_.push_back(w.n_in);
      sets_.emplace_back(*backend_, max_rows_, w.n_in);
    }
    at(w.n_in).add(w);
  }

  // As of ActivationSet.
  template <typename Make>
  Activations& made_for(const Matrix& w, int n_rows, Make&& make) {
    return at(w.n_in).made_for(w, n_rows, make);
  }

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
