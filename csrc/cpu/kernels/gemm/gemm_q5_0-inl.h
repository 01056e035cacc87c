// y = x W^T for one packed tile of Q5_0 weights (cpu/weights/pack.h) and some rows of quantised
// activations, as in gemm_groups-inl.h. A number is a nibble and a fifth bit, with a zero point of
// 16.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/gemm/gemm_groups-inl.h"
#include "cpu/kernels/gemm/gemm_mxfp4-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

template <>
struct WeightsOf<Q5_0> : F16Scales {
  static constexpr int16_t kZeroPoint = 16;
  static constexpr int kRowsOfQuads = Codes<5>::kRowsOfQuads;
  static constexpr int kMaxRows = kNarrowSums ? 4 : 6;
  using Sum =
      SumsOfNibbles<kNarrowSums>::Type;  // 4 * 2 * 31 * 128 fits 16 bits, twice that does not

  static PB_INLINE Quads numbers(const uint8_t* w, int half, int j) {
    return Codes<5>::numbers(w, half, j);
  }
  template <int kRows>
  static PB_INLINE void step(const uint8_t* w, int j, const int8_t* x, int64_t stride,
                             Sum (&sums)[kRows][kGroupTileVectors]) {
    const uint8_t* first = w - j * kQuadBytes;
    Quads low[kGroupTileVectors], high[kGroupTileVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kGroupTileVectors; ++v) {
      low[v] = numbers(first + v * 4 * kWidth, 0, j);
      high[v] = numbers(first + v * 4 * kWidth, 1, j);
    }
    add_halves(low, high, j, x, stride, sums);
  }
};

template <>
constexpr int kGroupSteps<WeightsOf<Q5_0>> = kStepsOfHalf;

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
