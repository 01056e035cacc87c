// Exact sums of a group's products for two rows at a time, by usmmla: two columns' bytes of eight
// numbers of k times two rows' bytes of the same. If there is no second row, the first one is used
// twice.
//
// Such sums are exact whole numbers, so that they equal those of a single row (add_products) for
// any rows.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// Weights with a function numbers(w, half, step) that returns the bytes of one of the four steps,
// of four numbers of k each, of a half of a group.
template <typename Weights>
concept HasNumbers = requires(const uint8_t* w) { Weights::numbers(w, 0, 0); };

template <int kRows, int kVectors>
class PairSums {
 public:
  PB_INLINE PairSums() {
#pragma GCC unroll 3
    for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums_[p][v][0] = sums_[p][v][1] = set1_int(0);
    }
  }
  PB_INLINE explicit PairSums(const Ints (&start)[kRows][kVectors]) {
#pragma GCC unroll 3
    for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sums_[p][v][0] = vzip1q_s32(start[2 * p][v], start[second(p)][v]);
        sums_[p][v][1] = vzip2q_s32(start[2 * p][v], start[second(p)][v]);
      }
    }
  }

  // Adds a half of the group. `numbers` points to the group, and x to the first row at the group.
  template <HasNumbers Weights>
  PB_INLINE void add(const uint8_t* numbers, int half, const int8_t* x, int64_t stride) {
#pragma GCC unroll 2
    for (int step = 0; step < kStepsOfHalf; step += 2) {
      int8x16_t rows[kPairs];
#pragma GCC unroll 3
      for (int p = 0; p < kPairs; ++p) {
        const int8_t* at = x + half * (kGroupSize / 2) + 4 * step;
        rows[p] = vcombine_s8(vld1_s8(at + 2 * p * stride), vld1_s8(at + second(p) * stride));
      }
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const uint8_t* w = numbers + v * 4 * kWidth;
        const uint32x4_t first = vreinterpretq_u32_u8(Weights::numbers(w, half, step));
        const uint32x4_t next = vreinterpretq_u32_u8(Weights::numbers(w, half, step + 1));
        const Quads low = vreinterpretq_u8_u32(vzip1q_u32(first, next));   // columns 0 and 1
        const Quads high = vreinterpretq_u8_u32(vzip2q_u32(first, next));  // columns 2 and 3
#pragma GCC unroll 3
        for (int p = 0; p < kPairs; ++p) {
          sums_[p][v][0] = vusmmlaq_s32(sums_[p][v][0], low, rows[p]);
          sums_[p][v][1] = vusmmlaq_s32(sums_[p][v][1], high, rows[p]);
        }
      }
    }
  }

  // Returns the sums of row r and the columns of vector v.
  PB_INLINE Ints of(int r, int v) const {
    const Ints* pair = sums_[r / 2][v];
    return r % 2 == 0 ? vuzp1q_s32(pair[0], pair[1]) : vuzp2q_s32(pair[0], pair[1]);
  }

 private:
  static constexpr int kPairs = (kRows + 1) / 2;
  static constexpr int kStepsOfHalf = kGroupSize / 2 / 4;
  static constexpr int second(int p) { return 2 * p + 1 < kRows ? 2 * p + 1 : 2 * p; }

  Ints sums_[kPairs][kVectors][2];  // for each two columns: (column, row of the pair)
};

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
