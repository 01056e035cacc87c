// Blocks of random bytes with scales that are finite, as a file holds them.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "formats/super_block.h"
#include "formats/tensor_view.h"
#include "sampling/rng.h"

namespace pb::test {

inline constexpr DType kSuperBlockDTypes[] = {DType::kQ4K, DType::kQ5K, DType::kQ6K};
// All that is_only_kept holds for.
inline constexpr DType kKeptDTypes[] = {DType::kQ4K,    DType::kQ5K,  DType::kQ6K,
                                        DType::kInt4Zp, DType::kQ5_0, DType::kIQ4_NL};

// ... and that GPUs have products of: Q5_0 and IQ4_NL become int8 there.
inline constexpr DType kGpuKeptDTypes[] = {DType::kQ4K, DType::kQ5K, DType::kQ6K, DType::kInt4Zp};

class RandomBlocks {
 public:
  // rows of `cols` elements, whole blocks of a dtype of kKeptDTypes.
  RandomBlocks(int rows, int cols, DType dtype, uint64_t seed)
      : rows_(rows), cols_(cols), dtype_(dtype), bytes_(n_blocks() * block_bytes(dtype)) {
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
  bool has_min() const { return dtype_ == DType::kQ4K || dtype_ == DType::kQ5K; }
  size_t size() const { return bytes_.size(); }
  std::byte* block(size_t i) { return &bytes_[i * block_bytes(dtype_)]; }

  void set_scale(size_t i, uint16_t d) {
    const size_t at = dtype_ == DType::kQ6K ? offsetof(Q6KBlock, d) : 0;
    std::memcpy(block(i) + at, &d, sizeof(d));
  }
  // Where there is one.
  void set_min_scale(size_t i, uint16_t d_min) {
    std::memcpy(block(i) + offsetof(Q4KBlock, d_min), &d_min, sizeof(d_min));
  }

  TensorView view(const std::string& name = "blocks") const {
    return {name, bytes_.data(), dtype_, rows_, cols_, cols_, 1};
  }

  // (rows, cols)
  std::vector<float> values() const {
    std::vector<float> x(static_cast<size_t>(rows_) * cols_);
    for (size_t g = 0; g * kGroup < x.size(); ++g) {
      if (dtype_ == DType::kInt4Zp) {
        group_values<Int4ZpGroup>(g, &x[g * kGroup]);
        continue;
      }
      if (dtype_ == DType::kQ5_0) {
        group_values<Q5_0Group>(g, &x[g * kGroup]);
        continue;
      }
      if (dtype_ == DType::kIQ4_NL) {
        group_values<Iq4NlGroup>(g, &x[g * kGroup]);
        continue;
      }
      const std::byte* from = &bytes_[g / kGroupsOfSuperBlock * block_bytes(dtype_)];
      const auto group = static_cast<int>(g % kGroupsOfSuperBlock);
      dequantise(dtype_, read_super_group(dtype_, from, group), &x[g * kGroup]);
    }
    return x;
  }

 private:
  template <typename Group>
  void group_values(size_t g, float* x) const {
    Group group;
    std::memcpy(&group, &bytes_[g * sizeof(group)], sizeof(group));
    dequantise(group, x);
  }

  int rows_, cols_;
  DType dtype_;
  std::vector<std::byte> bytes_;
};

}  // namespace pb::test
