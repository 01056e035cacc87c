// Checkpoint gives access to the tensors of a checkpoint by name.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "base/error.h"
#include "model/weights.h"

namespace pb {

// Looks tensors up by name, checks their shapes, and records which of them have been used.
class Checkpoint {
 public:
  explicit Checkpoint(const TensorMap& tensors) : tensors_(tensors) {}

  bool has(const std::string& name) const { return tensors_.contains(name); }

  const TensorView& get(const std::string& name, int64_t rows, int64_t cols) {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) {
      throw Error(
          ErrorCode::kModelFormat,
          "tensor '" + name + "' is missing; expected one of shape " + shape_text(rows, cols));
    }
    const TensorView& view = it->second;
    if (view.rows != rows || view.cols != cols) {
      throw Error(ErrorCode::kModelFormat, "tensor '" + name + "' has shape " +
                                               shape_text(view.rows, view.cols) + "; expected " +
                                               shape_text(rows, cols));
    }
    used_.insert(name);
    return view;
  }

  // Returns an optional bias: a view without data if the checkpoint has no such tensor.
  TensorView bias(const std::string& name, int64_t rows) {
    return has(name) ? get(name, rows, 1) : TensorView{};
  }

  void expect_all_used() const {
    for (const auto& [name, view] : tensors_) {
      if (!used_.contains(name)) {
        throw Error(ErrorCode::kModelFormat,
                    "tensor '" + name +
                        "' has no place in this model; expected only tensors that the "
                        "configuration calls for");
      }
    }
  }

 private:
  static std::string shape_text(int64_t rows, int64_t cols) {
    std::string text = "(";
    text += std::to_string(rows);
    if (cols != 1) text += ", " + std::to_string(cols);
    return text += ")";
  }

  const TensorMap& tensors_;
  std::set<std::string> used_;
};

}  // namespace pb
