// Quantised weights as bytes for AMX: the bytes that multiply rows of int8 for a group of 32
// numbers of k of a tile of 32 columns, and the factors of their sums. kLeastRows is the measured
// number of rows from which on this method is faster.
//
// Bytes are in fours of k as in memory, (8, 16 columns, 4), which is the layout of tdpbssd's second
// operand. They are signed, so that no zero point has to be subtracted later, and every sum of a
// group is the whole number that the products of vectors compute (gemm_groups-inl.h,
// gemm_super_blocks-inl.h).
#pragma once

#include <cstdint>

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/gemm/gemm_groups-inl.h"
#include "cpu/kernels/gemm/gemm_iq4_nl-inl.h"
#include "cpu/kernels/gemm/gemm_mxfp4-inl.h"
#include "cpu/kernels/gemm/gemm_q5_0-inl.h"
#include "cpu/kernels/gemm/gemm_super_blocks-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kQuadsOfGroup = 2 * kStepsOfHalf;
constexpr int kLineBytes = 64;

// A group of a weight tile, for products of kProducts bytes each.
template <int kProducts>
struct alignas(kLineBytes) ByteGroup {
  uint8_t numbers[2][kProducts][kQuadsOfGroup][kLineBytes];  // for 16 columns each
  float scale[kGroupTileColumns];
  float min[kGroupTileColumns];  // per group; d_min if halves have mins
  uint8_t rest[2][kLineBytes];   // added to every four for int4_zp, or the mins of both halves
  bool has_rest[2];

  // Returns tile number i of all.
  PB_INLINE const uint8_t* tile(int i) const { return numbers[i / kProducts][i % kProducts][0]; }
};

PB_INLINE void store_quads(uint8_t* to, Quads quads) { _mm512_store_si512(to, quads); }

// Returns the block that contains a group of a tile.
template <typename Weights>
PB_INLINE const uint8_t* super_of_group(const uint8_t* tile, int group) {
  return tile + static_cast<int64_t>(group / Weights::kGroups) * kSuperBytes<Weights>;
}

// The code of the number 0.
template <typename Weights>
constexpr int16_t kZeroOfCodes = 0;
template <typename Weights>
  requires(!Weights::kHasMin)
constexpr int16_t kZeroOfCodes<Weights> = 1 << Weights::kZeroShift;

// Formats with a min use their codes unchanged.
template <typename Weights>
struct MinBytes {
  using Product = SuperBlockProduct<Weights>;
  static constexpr bool kHasMin = true;
  static constexpr bool kHasHalfMins = false;
  static constexpr bool kHasRest = false;
  static constexpr int kLeastRows = 32;
  static constexpr int kProducts = 1;

  static PB_INLINE void expand(const uint8_t* tile, int group, ByteGroup<1>& to) {
    const uint8_t* super = super_of_group<Weights>(tile, group);
    const uint8_t* factors = super_group<Weights>(super, group % Weights::kGroups);
    const uint8_t* numbers = factors + Weights::kFactors;
    const SuperScales scales = load_super_scales<Weights>(super);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
#pragma GCC unroll 8
      for (int i = 0; i < kQuadsOfGroup; ++i) {
        store_quads(to.numbers[v][0][i],
                    Weights::numbers(numbers + v * kLineBytes, i / kStepsOfHalf, i % kStepsOfHalf));
      }
      store(to.scale + v * kWidth, Weights::scale(scales.d[v], factors, v));
      store(to.min + v * kWidth, Weights::min(scales.d_min[v], factors, v));
    }
  }
};

// Formats with a scale for each half of a group use (code - zero point) * scale. If these products
// have more than 8 bits, they are split into 2^kShift times one byte plus another.
template <typename Weights>
struct HalfBytes {
  using Product = SuperBlockProduct<Weights>;
  static constexpr bool kHasMin = false;
  static constexpr bool kHasHalfMins = Weights::kHasMin;
  static constexpr bool kHasRest = false;
  static constexpr int kLeastRows = 32;
  static constexpr int kProducts = Weights::kRowsOfQuads > 3 ? 2 : 1;
  static constexpr int kShift = 6;  // shift of the first byte

  static PB_INLINE void expand(const uint8_t* tile, int group, ByteGroup<kProducts>& to) {
    const uint8_t* super = super_of_group<Weights>(tile, group);
    const uint8_t* factors = super_group<Weights>(super, group % Weights::kGroups);
    const uint8_t* numbers = factors + Weights::kFactors;
    const SuperScales scales = load_super_scales<Weights>(super);
    const __m512i zero_point = _mm512_set1_epi16(kZeroOfCodes<Weights>);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
#pragma GCC unroll 8
      for (int i = 0; i < kQuadsOfGroup; ++i) {
        const int half = i / kStepsOfHalf;
        const Ints one = Weights::half_scale(factors, half, v);
        const __m512i factor = pair_up(one, one, 0);
        const Quads quads = Weights::numbers(numbers + v * kLineBytes, half, i % kStepsOfHalf);
        const __m512i even = _mm512_and_si512(quads, _mm512_set1_epi16(0xff));
        const __m512i odd = _mm512_srli_epi16(quads, 8);
        const __m512i first = _mm512_mullo_epi16(_mm512_sub_epi16(even, zero_point), factor);
        const __m512i second = _mm512_mullo_epi16(_mm512_sub_epi16(odd, zero_point), factor);
        constexpr __mmask64 kOdd = 0xaaaaaaaaaaaaaaaau;
        const __m512i low_bytes = _mm512_mask_blend_epi8(kOdd, first, _mm512_slli_epi16(second, 8));
        if constexpr (kProducts == 1) {
          store_quads(to.numbers[v][0][i], low_bytes);
        } else {
          store_quads(to.numbers[v][0][i],
                      _mm512_mask_blend_epi8(kOdd, _mm512_srli_epi16(first, kShift),
                                             _mm512_slli_epi16(second, 8 - kShift)));
          store_quads(to.numbers[v][1][i],
                      _mm512_and_si512(low_bytes, _mm512_set1_epi8((1 << kShift) - 1)));
        }
      }
      store(to.scale + v * kWidth, scales.d[v]);
      if constexpr (kHasHalfMins) {
        store(to.min + v * kWidth, scales.d_min[v]);
        store_quads(to.rest[v],
                    pair_up(Weights::half_min(factors, 0, v), Weights::half_min(factors, 1, v), 0));
      }
    }
  }
};

// Formats with one scale for each group use numbers without the zero point.
template <typename Weights>
struct GroupBytes {
  using Product = GroupProduct<Weights>;
  static constexpr bool kHasMin = false;
  static constexpr bool kHasHalfMins = false;
  static constexpr bool kHasRest = false;
  static constexpr int kLeastRows = 24;
  static constexpr int kProducts = 1;

  static PB_INLINE void expand(const uint8_t* tile, int group, ByteGroup<1>& to) {
    const uint8_t* block = block_of_group<Weights>(tile, group);
    const uint8_t* w = group_at<Weights>(tile, group);
    const uint8_t* numbers = w + kFactorBytes<Weights>;
    const __m512i zero_point = _mm512_set1_epi8(Weights::kZeroPoint);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
#pragma GCC unroll 8
      for (int i = 0; i < kQuadsOfGroup; ++i) {
        const Quads above =
            Weights::numbers(numbers + v * kLineBytes, i / kStepsOfHalf, i % kStepsOfHalf);
        store_quads(to.numbers[v][0][i], _mm512_sub_epi8(above, zero_point));
      }
      store(to.scale + v * kWidth, group_scale<Weights>(block, w, v));
    }
  }
};

// Formats with a zero point for each group. A signed byte holds at most 128 of the zero point; the
// part above is `rest`.
template <typename Weights>
struct ZeroPointBytes {
  using Product = GroupProduct<Weights>;
  static constexpr bool kHasMin = false;
  static constexpr bool kHasHalfMins = false;
  static constexpr bool kHasRest = true;
  static constexpr int kLeastRows = 32;
  static constexpr int kProducts = 1;

  static PB_INLINE void expand(const uint8_t* tile, int group, ByteGroup<1>& to) {
    const uint8_t* w = tile + static_cast<int64_t>(group) * Product::kBytes;
    const uint8_t* numbers = w + kFactorBytes<Weights>;
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const Ints zero = load_unsigned(w + Weights::kScaleBytes + v * kWidth);
      const __m512i all = _mm512_shuffle_epi8(
          zero, _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0x00000000));
      const __m512i zeros = _mm512_min_epu8(all, _mm512_set1_epi8(static_cast<char>(128)));
      const __m512i minus_rest = _mm512_sub_epi8(zeros, all);
      store_quads(to.rest[v], minus_rest);
      to.has_rest[v] = _mm512_test_epi8_mask(minus_rest, minus_rest) != 0;
#pragma GCC unroll 8
      for (int i = 0; i < kQuadsOfGroup; ++i) {
        const Quads above =
            Weights::numbers(numbers + v * kLineBytes, i / kStepsOfHalf, i % kStepsOfHalf);
        store_quads(to.numbers[v][0][i], _mm512_sub_epi8(above, zeros));
      }
      store(to.scale + v * kWidth, Weights::scale(w, v));
    }
  }
};

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
