// Blocks of random bytes with scales that are finite, as a file holds them.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "block_numbers.h"
#include "dtype_lists.h"
#include "formats/tensors/tensor_view.h"
#include "sampling/rng.h"

namespace pb::test {

// Where the f16 numbers of a block lie, in bytes: where a NaN makes numbers of a block of zeros
// that are not finite.
inline std::vector<size_t> f16_places(DType dtype) {
  std::vector<size_t> places;
  for (size_t at = 0; at + 2 <= block_bytes(dtype); at += 2) {
    std::vector<std::byte> block(block_bytes(dtype));
    block[at + 1] = std::byte{0x7e};
    std::vector<float> x(static_cast<size_t>(block_elements(dtype)));
    dequantise_bytes(dtype, block.data(), x.data());
    if (std::isnan(x[0])) places.push_back(at);
  }
  return places;
}

class RandomBlocks {
 public:
  // rows of `cols` elements, whole blocks of a dtype of kF16NativeDTypes.
  RandomBlocks(int rows, int cols, DType dtype, uint64_t seed)
      : rows_(rows),
        cols_(cols),
        dtype_(dtype),
        places_(f16_places(dtype)),
        bytes_(n_blocks() * block_bytes(dtype)) {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      bytes_[i] = static_cast<std::byte>(uniform(seed, i) * 256);
    }
    for (size_t i = 0; i < n_blocks(); ++i) {
      set_scale(i, f32_to_f16(static_cast<float>(uniform(seed + 1, i) - 0.5) / 64));
      if (has_min()) {
        set_min_scale(i, f32_to_f16(static_cast<float>(uniform(seed + 2, i) - 0.5) / 16));
      }
    }
  }

  size_t n_blocks() const { return static_cast<size_t>(rows_) * cols_ / block_elements(dtype_); }
  // Whether blocks have a second f16 number, which multiplies minimums or is one.
  bool has_min() const { return places_.size() > 1; }
  size_t size() const { return bytes_.size(); }
  std::byte* block(size_t i) { return &bytes_[i * block_bytes(dtype_)]; }

  void set_scale(size_t i, uint16_t d) { std::memcpy(block(i) + places_[0], &d, sizeof(d)); }
  // Where there is one.
  void set_min_scale(size_t i, uint16_t d_min) {
    std::memcpy(block(i) + places_[1], &d_min, sizeof(d_min));
  }

  TensorView view(const std::string& name = "blocks") const {
    return {name, bytes_.data(), dtype_, rows_, cols_, cols_, 1};
  }

  // (rows, cols)
  std::vector<float> values() const {
    std::vector<float> x(static_cast<size_t>(rows_) * cols_);
    const auto n = static_cast<size_t>(block_elements(dtype_));
    for (size_t i = 0; i < n_blocks(); ++i) {
      dequantise_bytes(dtype_, &bytes_[i * block_bytes(dtype_)], &x[i * n]);
    }
    return x;
  }

 private:
  int rows_, cols_;
  DType dtype_;
  std::vector<size_t> places_;
  std::vector<std::byte> bytes_;
};

}  // namespace pb::test
