// How weights lie in device memory: sizes, for kernels and host.
//
// A row is two streams, each on 16 bytes. Its values, k_padded of them: numbers of 32, 16 or 8
// bits, or, of formats with 4 bits, of each group of 32 the 16 bytes whose byte i holds elements i
// (the low nibble) and i + 16; none of formats with fewer bits, whose numbers lie with the scales.
// And its scales: all else that a number is made of, for every kScaleTile numbers some bytes that
// belong to them alone, and then, at the row's end, what is too small for 16 bytes a tile: 16 bytes
// for kTailTiles tiles.
//
//              values    scales in bytes:        tail in bytes:    bits of a number:
//              of 32     of 256                  of how many       here     in a file
//   int8       32        16                      -                 8.5      8.5
//   int4       16        16                      -                 4.5      4.5
//   int4_zp    16        32                      -                 5        5
//   q4_k       16        16                      -                 4.5      4.5
//   q5_k       16        48                      -                 5.5      5.5
//   q6_k       16        80                      16 of 2048        6.5625   6.5625
//   mxfp4      16        -                       16 of 512         4.25     4.25
//   q4_1       16        32                      -                 5        5
//   q5_1       16        64                      -                 6        6
//   iq4_xs     16        -                       16 of 512         4.25     4.25
//   q2_k       -         80                      16 of 1024        2.625    2.625
//   q3_k       -         112                     -                 3.5      3.4375
//
// Scales of a tile:
//   int8, int4  f16 of each group
//   int4_zp     of each group its f16, then the zero point in 16 bits
//   q4_k, q5_k  f16 d and d_min; 12 bytes: of each group scale and min, 6 bits each, the scale's
//               below; then, of q5_k, of each group 32 fifth bits: 4 for each of its PairOfPairs
//   q6_k        16 signed scales, 2 a group; then, of each group, 64 high bits: 8 for each of its
//               PairOfPairs. Tail: f16 d of each tile
//   mxfp4       Tail: the exponent of each group, one byte
//   q4_1, q5_1  of each group f16 d and m; then, of q5_1, 32 fifth bits as of q5_k
//   iq4_xs      Tail: f16 d of the tile, then 6 bits of each group, 32 above its scale
//   q2_k        of each group two bytes, as in files; then 64 bits, 2 of each number, 8 for each of
//               its PairOfPairs. Tail: f16 d and d_min of each tile
//   q3_k        f16 d; 2 bytes of nothing; 12 bytes: both scales of each group, 6 bits each, 31
//               above the scale; then, of each group, 64 bits as of q2_k; then, of each, 32 high
//               bits as the fifth ones of q5_k
// A "pair of pairs" j of a group is elements 2 j, 2 j + 1, 2 j + 16 and 2 j + 17, which bytes 2 j
// and 2 j + 1 of the values hold; bits are in that order, from the lowest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cuda/device_code/shared_bytes.h"
#include "formats/list.h"

namespace pb::cuda {

inline constexpr int kScaleTile = 256;
inline constexpr int kTailChunk = 16;  // bytes

template <int kBitsOfValue, int kScaleBytesOfTile = 0, int kTilesOfTail = 0>
struct WeightFormat {
  static constexpr int kBits = kBitsOfValue;
  static constexpr int kScaleBytes = kScaleBytesOfTile;
  static constexpr int kTailTiles = kTilesOfTail;  // 0: no tail
  // Bytes of scales that a product over one tile needs: its own, and of the tail.
  static constexpr int kTileScaleBytes = kScaleBytes + (kTailTiles == 0 ? 0 : kTailChunk);

  // Where the tail begins in a row's scales.
  PB_HOST_DEVICE static constexpr int tail_offset(int k_padded) {
    return (k_padded + kScaleTile - 1) / kScaleTile * kScaleBytes;
  }
  // Bytes of a row's scales.
  PB_HOST_DEVICE static constexpr int scale_row_bytes(int k_padded) {
    constexpr int kSpan = kTailTiles * kScaleTile;
    if constexpr (kSpan == 0) {
      return tail_offset(k_padded);
    } else {
      return tail_offset(k_padded) + (k_padded + kSpan - 1) / kSpan * kTailChunk;
    }
  }
};

struct F32Format : WeightFormat<32> {};
struct Bf16Format : WeightFormat<16> {};

// -- what the host writes -------------------------------------------------------------------------

// A row of a weight in host memory, zeros before its groups are written.
struct PackedRow {
  std::byte* values;
  std::byte* scales;
  int n_tiles;  // of kScaleTile numbers; the last one is not always whole

  // `at` bytes from the beginning of a row's values or scales.
  template <typename T>
  static void put(std::byte* to, int64_t at, const T& value) {
    std::memcpy(to + at, &value, sizeof(value));
  }
  // The low 4 bits of the codes of group `index`.
  void put_nibbles(const uint8_t* codes, int64_t index) const {
    for (int i = 0; i < kGroup / 2; ++i) {
      const int pair = (codes[i] & 15) | (codes[i + kGroup / 2] & 15) << 4;
      values[index * (kGroup / 2) + i] = static_cast<std::byte>(pair);
    }
  }
  // kWidth bits of each code from bit kShift on, as T, in the order of pairs of pairs.
  template <typename T, int kWidth, int kShift = 4>
  static T bits_of(const uint8_t* codes) {
    T bits = 0;
    for (int j = 0; j < kGroup / 4; ++j) {
      for (int i = 0; i < 4; ++i) {
        const int element = 2 * j + i % 2 + i / 2 * (kGroup / 2);
        const auto part = static_cast<T>(codes[element] >> kShift & ((1 << kWidth) - 1));
        bits |= part << (4 * j + i) * kWidth;
      }
    }
    return bits;
  }
};

// The layout of each weight format that CUDA has kernels for: NAMEFormat for the struct NAME of
// formats/list.h. write() writes group number `index` of a row.

struct Int8Format : WeightFormat<8, 16> {
  static void write(const Int8::Parts& group, int64_t index, const PackedRow& to) {
    for (int i = 0; i < kGroup; ++i) {
      to.values[index * kGroup + i] = static_cast<std::byte>(Int8::number(group.codes[i]));
    }
    PackedRow::put(to.scales, index * 2, group.factors);
  }
};

struct Int4Format : WeightFormat<4, 16> {
  static void write(const Int4::Parts& group, int64_t index, const PackedRow& to) {
    to.put_nibbles(group.codes, index);
    PackedRow::put(to.scales, index * 2, group.factors);
  }
};

struct Int4ZpFormat : WeightFormat<4, 32> {
  static void write(const Int4Zp::Parts& group, int64_t index, const PackedRow& to) {
    to.put_nibbles(group.codes, index);
    PackedRow::put(to.scales, index * 4, group.factors);  // f16, low byte of the zero point
  }
};

// d and d_min, and then 12 bits for each group: those of two in 3 bytes.
inline void write_scale_and_min(const ScaleAndMinGroups::Parts& group, int in_tile,
                                std::byte* tile) {
  PackedRow::put(tile, 0, group.shared);
  const int is_odd = in_tile % 2;
  const int bits = (group.factors[0] | group.factors[1] << 6) << 4 * is_odd;
  std::byte* const to = tile + 4 + in_tile / 2 * 3 + is_odd;
  to[0] |= static_cast<std::byte>(bits);
  to[1] |= static_cast<std::byte>(bits >> 8);
}

struct Q4KFormat : WeightFormat<4, 16> {
  static void write(const Q4K::Parts& group, int64_t index, const PackedRow& to) {
    to.put_nibbles(group.codes, index);
    write_scale_and_min(group, static_cast<int>(index % 8), to.scales + index / 8 * kScaleBytes);
  }
};

struct Q5KFormat : WeightFormat<4, 48> {
  static void write(const Q5K::Parts& group, int64_t index, const PackedRow& to) {
    std::byte* const tile = to.scales + index / 8 * kScaleBytes;
    to.put_nibbles(group.codes, index);
    write_scale_and_min(group, static_cast<int>(index % 8), tile);
    PackedRow::put(tile, 16 + index % 8 * 4, PackedRow::bits_of<uint32_t, 1>(group.codes));
  }
};

struct Q6KFormat : WeightFormat<4, 80, 8> {
  static void write(const Q6K::Parts& group, int64_t index, const PackedRow& to) {
    std::byte* const tile = to.scales + index / 8 * kScaleBytes;
    to.put_nibbles(group.codes, index);
    PackedRow::put(tile, index % 8 * 2, group.factors);
    PackedRow::put(tile, 16 + index % 8 * 8, PackedRow::bits_of<uint64_t, 2>(group.codes));
    PackedRow::put(to.scales + int64_t{to.n_tiles} * kScaleBytes, index / 8 * 2, group.shared);
  }
};

struct Mxfp4Format : WeightFormat<4, 0, 2> {
  static void write(const Mxfp4::Parts& group, int64_t index, const PackedRow& to) {
    to.put_nibbles(group.codes, index);
    PackedRow::put(to.scales, index, group.factors);
  }
};

struct Q4_1Format : WeightFormat<4, 32> {
  static void write(const Q4_1::Parts& group, int64_t index, const PackedRow& to) {
    to.put_nibbles(group.codes, index);
    PackedRow::put(to.scales, index * 4, group.factors);
  }
};

struct Q5_1Format : WeightFormat<4, 64> {
  static void write(const Q5_1::Parts& group, int64_t index, const PackedRow& to) {
    std::byte* const tile = to.scales + index / 8 * kScaleBytes;
    to.put_nibbles(group.codes, index);
    PackedRow::put(tile, index % 8 * 4, group.factors);
    PackedRow::put(tile, 32 + index % 8 * 4, PackedRow::bits_of<uint32_t, 1>(group.codes));
  }
};

struct Iq4XsFormat : WeightFormat<4, 0, 2> {
  static void write(const Iq4Xs::Parts& group, int64_t index, const PackedRow& to) {
    std::byte* const tile = to.scales + index / 8 * 8;
    to.put_nibbles(group.codes, index);
    uint64_t bits;
    std::memcpy(&bits, tile, sizeof(bits));
    const uint64_t scale = static_cast<uint8_t>(group.factors[0] + 32);
    PackedRow::put(tile, 0, bits | group.shared[0] | scale << (16 + 6 * (index % 8)));
  }
};

struct Q2KFormat : WeightFormat<0, 80, 4> {
  static void write(const Q2K::Parts& group, int64_t index, const PackedRow& to) {
    std::byte* const tile = to.scales + index / 8 * kScaleBytes;
    PackedRow::put(tile, index % 8 * 2, group.factors);
    PackedRow::put(tile, 16 + index % 8 * 8, PackedRow::bits_of<uint64_t, 2, 0>(group.codes));
    PackedRow::put(to.scales + int64_t{to.n_tiles} * kScaleBytes, index / 8 * 4, group.shared);
  }
};

struct Q3KFormat : WeightFormat<0, 112> {
  static void write(const Q3K::Parts& group, int64_t index, const PackedRow& to) {
    std::byte* const tile = to.scales + index / 8 * kScaleBytes;
    const auto above = [](uint8_t scale) { return static_cast<uint8_t>(scale + 31); };
    write_scale_and_min({.shared = {group.shared[0], 0},
                         .factors = {above(group.factors[0]), above(group.factors[1])},
                         .codes = {}},
                        static_cast<int>(index % 8), tile);
    PackedRow::put(tile, 16 + index % 8 * 8, PackedRow::bits_of<uint64_t, 2, 0>(group.codes));
    PackedRow::put(tile, 80 + index % 8 * 4, PackedRow::bits_of<uint32_t, 1, 2>(group.codes));
  }
};

}  // namespace pb::cuda
