// The layout of weights in device memory: sizes, for kernels and host.
//
// A row consists of two streams, each aligned to 16 bytes: its k_padded values and its scales.
//   values  numbers of 32, 16 or 8 bits. Formats with 4 bits have 16 bytes for each group of 32,
//           whose byte i holds the elements i (in the low nibble) and i + 16. Formats with fewer
//           bits have no values: their numbers are in the scales.
//   scales  everything else that a number depends on: some bytes for every kScaleTile numbers, and
//           at the row's end the tail, for data of less than 16 bytes per tile: 16 bytes for every
//           kTailTiles tiles.
//
//              values    scales in bytes:        tail in bytes:    bits of a number:
//              of 32     of 256                  of n numbers      here     in a file
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
// The scales of a tile contain:
//   int8, int4  for each group an f16
//   int4_zp     for each group an f16, and the zero point in 16 bits
//   q4_k, q5_k  f16 d and d_min; 12 bytes: for each group scale and min with 6 bits each, the scale
//               in the low bits; then, for q5_k, for each group 32 fifth bits: 4 for each
//               PairOfPairs
//   q6_k        16 signed scales, 2 for each group; then, for each group, 64 high bits: 8 for each
//               PairOfPairs. The tail has the f16 d of each tile.
//   mxfp4       nothing. The tail has the exponent of each group in one byte.
//   q4_1, q5_1  for each group f16 d and m; then, for q5_1, 32 fifth bits as in q5_k
//   iq4_xs      nothing. The tail has the f16 d of the tile, and 6 bits for each group: its scale
//               plus 32.
//   q2_k        for each group two bytes, as in files; then 64 bits, 2 for each number and 8 for
//               each PairOfPairs. The tail has the f16 d and d_min of each tile.
//   q3_k        f16 d; 2 bytes of padding; 12 bytes: both scales of each group plus 31, with 6 bits
//               each; then, for each group, 64 bits as in q2_k; then, for each group, 32 high bits
//               like the fifth bits of q5_k
// A "pair of pairs" j of a group is the elements 2 j, 2 j + 1, 2 j + 16 and 2 j + 17, which are in
// bytes 2 j and 2 j + 1 of the values; bits have the same order, from the lowest on.
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
  // The bytes of scales that a product over one tile needs: the tile's own, and those of the tail.
  static constexpr int kTileScaleBytes = kScaleBytes + (kTailTiles == 0 ? 0 : kTailChunk);

  // Returns the offset of the tail in a row's scales.
  PB_HOST_DEVICE static constexpr int tail_offset(int k_padded) {
    return (k_padded + kScaleTile - 1) / kScaleTile * kScaleBytes;
  }
  // Returns the bytes of a row's scales.
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

// -- host code ------------------------------------------------------------------------------------

// A row of a weight in host memory, initially zero.
struct PackedRow {
  std::byte* values;
  std::byte* scales;
  int n_tiles;  // tiles of kScaleTile numbers; the last one may be partial

  // Stores a value `at` bytes after the start of a row's values or scales.
  template <typename T>
  static void put(std::byte* to, int64_t at, const T& value) {
    std::memcpy(to + at, &value, sizeof(value));
  }
  // Stores the low 4 bits of the codes of group `index`.
  void put_nibbles(const uint8_t* codes, int64_t index) const {
    for (int i = 0; i < kGroup / 2; ++i) {
      const int pair = (codes[i] & 15) | (codes[i + kGroup / 2] & 15) << 4;
      values[index * (kGroup / 2) + i] = static_cast<std::byte>(pair);
    }
  }
  // Returns kWidth bits of each code from bit kShift on, as T, in the order of pairs of pairs.
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

// The layout of each weight format with CUDA kernels: NAMEFormat for the struct NAME of
// formats/list.h. write() stores group number `index` of a row.

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

// Stores d and d_min, and then 12 bits for each group: those of two groups in 3 bytes.
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
