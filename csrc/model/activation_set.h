// Activations of one place in the model for weights of any dtype that it has there.
#pragma once

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

}  // namespace pb
