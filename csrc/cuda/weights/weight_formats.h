// How weights lie in device memory: sizes, for kernels and host.
//
// A row is two streams, each on 16 bytes. Its values, k_padded of them: numbers of 32, 16 or 8
// bits, or, of formats with 4 bits, of each group of 32 the 16 bytes whose byte i holds elements i
// (the low nibble) and i + 16. And its scales: all else that a number is made of, for every
// kScaleTile numbers some bytes that belong to them alone, and then, at the row's end, what is too
// small for 16 bytes a tile: 16 bytes for kTailTiles tiles.
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
//
// Scales of a tile:
//   int8, int4  f16 of each group
//   int4_zp     of each group its f16, then the zero point in 16 bits
//   q4_k, q5_k  f16 d and d_min; 12 bytes: of each group scale and min, 6 bits each, the scale's
//               below; then, of q5_k, of each group 32 fifth bits: 4 for each of its PairOfPairs
//   q6_k        16 signed scales, 2 a group; then, of each group, 64 high bits: 8 for each of its
//               PairOfPairs. Tail: f16 d of each tile
//   mxfp4       Tail: the exponent of each group, one byte
// A "pair of pairs" j of a group is elements 2 j, 2 j + 1, 2 j + 16 and 2 j + 17, which bytes 2 j
// and 2 j + 1 of the values hold; bits are in that order, from the lowest.
#pragma once

#include "cuda/device_code/shared_bytes.h"

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
struct Int8Format : WeightFormat<8, 16> {};
struct Int4Format : WeightFormat<4, 16> {};
struct Int4ZpFormat : WeightFormat<4, 32> {};
struct Q4KFormat : WeightFormat<4, 16> {};
struct Q5KFormat : WeightFormat<4, 48> {};
struct Q6KFormat : WeightFormat<4, 80, 8> {};
struct Mxfp4Format : WeightFormat<4, 0, 2> {};

}  // namespace pb::cuda
