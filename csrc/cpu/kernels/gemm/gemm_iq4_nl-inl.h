// y = x W^T for one packed tile of IQ4_NL weights (cpu/weights/pack.h) and some rows of quantised
// activations, as in gemm_groups-inl.h. A look-up replaces each code by its whole number of eight
// bits.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/gemm/gemm_groups-inl.h"
#include "cpu/kernels/gemm/gemm_mxfp4-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// The numbers of the codes plus the zero point.
struct Iq4NlBytes {
  alignas(16) uint8_t of_codes[16];

  constexpr Iq4NlBytes() : of_codes() {
    for (int i = 0; i < 16; ++i) {
      of_codes[i] = static_cast<uint8_t>(kIq4NlNumbers[i] + Int8Weights::kZeroPoint);
    }
  }
};
constexpr Iq4NlBytes kIq4NlBytes;

template <>
struct WeightsOf<Iq4Nl> : F16Scales {
  static constexpr int16_t kZeroPoint = Int8Weights::kZeroPoint;
  static constexpr int kRowsOfQuads = 4;
  static constexpr int kMaxRows = kByteProducts ? 6 : 4;
  using Sum = WholeByteSums;

  // Returns the bytes of a vector's columns for four numbers of k, from number 16 half + 4 j of the
  // group on.
  static PB_INLINE Quads numbers(const uint8_t* w, int half, int j) {
    return looked_up(kIq4NlBytes.of_codes, Int4Weights::numbers(w, half, j));
  }
  template <int kRows>
  static PB_INLINE void step(const uint8_t* w, int j, const int8_t* x, int64_t stride,
                             Sum (&sums)[kRows][kGroupTileVectors]) {
    Bytes low[kGroupTileVectors], high[kGroupTileVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kGroupTileVectors; ++v) {
      low[v] = bytes_of(numbers(w + v * 4 * kWidth, 0, 0));
      high[v] = bytes_of(numbers(w + v * 4 * kWidth, 1, 0));
    }
    add_halves(low, high, j, x, stride, sums);
  }
};

// IQ4_XS has one d for all groups of a super-block, and a signed scale for each group.
template <>
struct WeightsOf<Iq4Xs> : WeightsOf<Iq4Nl> {
  static constexpr int kSharedBytes = 2 * kGroupTileColumns;
  static constexpr int kScaleBytes = kGroupTileColumns;

  static PB_INLINE Vec scale(const uint8_t* block, const uint8_t* w, int v) {
    return mul(F16Scales::scale(block, v), to_float(load_signed(w + v * kWidth)));
  }
};

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
