// ActivationSet holds the activation buffers of one place in the model, one for each kind of input
// that the matrices there need: weights of different dtypes may need differently rounded
// activations, and a matrix may need its inputs in a permuted order.
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

  // Allocates activations for weights of `dtype`, unless activations that were allocated for
  // another dtype serve both. Must be called for every dtype before of() is called.
  void add(DType dtype) {
    size_t& which = which_[static_cast<size_t>(dtype)];
    if (which != kNone) return;
    for (which = 0; which < all_.size(); ++which) {
      if (backend_->shares_activations(all_[which].dtype, dtype)) return;
    }
    all_.push_back(backend_->make_activations(max_rows_, cols_, dtype));
  }

  // Allocates activations for products with w, unless they exist. Must be called for every matrix
  // before made_for() is called.
  void add(const Matrix& w) {
    add(w.dtype);
    if (w.order && !plain_.data) {
      plain_ = backend_->make_activations(max_rows_, cols_, DType::kF32);
    }
  }

  // Returns the activations for weights of `dtype`, which must have been added.
  Activations& of(DType dtype) { return all_[which_[static_cast<size_t>(dtype)]]; }

  // Returns the activations in their original order, which are the input of permute(). They exist
  // only if a matrix with an input order was added.
  Activations& plain() { return plain_; }

  // Calls make(activations) to compute n_rows rows, permutes them if w has an input order, and
  // returns the activations to multiply by w. w must have been added.
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

// ActivationsByWidth holds one ActivationSet per row width, for places in the model where the
// layers have rows of different widths.
class ActivationsByWidth {
 public:
  ActivationsByWidth() = default;
  // Makes an empty set, for max_rows rows. `backend` must outlive this.
  ActivationsByWidth(Backend& backend, int max_rows) : backend_(&backend), max_rows_(max_rows) {}

  // Allocates activations for products with w, unless they exist. Must be called for every matrix
  // before made_for() is called.
  void add(const Matrix& w) {
    if (std::ranges::find(widths_, w.n_in) == widths_.end()) {
      widths_.push_back(w.n_in);
      sets_.emplace_back(*backend_, max_rows_, w.n_in);
    }
    at(w.n_in).add(w);
  }

  // See ActivationSet::made_for().
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
  std::vector<ActivationSet> sets_;  // parallel to widths_
};

}  // namespace pb
