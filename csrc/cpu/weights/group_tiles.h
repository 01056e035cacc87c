// The layout of groups of the weight formats (formats/group.h) in a packed tile.
//
// A tile is (blocks of K) of
//   shared numbers (kShared, columns), f16
// followed, for each group of the block, by
//   each factor    (columns) of its bytes
//   codes          (kBits, columns, 4) bytes: kBits rows of four bytes for each column
// A block without shared numbers is one group. The codes of k = 16 h + 4 j + b of a group are split
// into planes of bits, the highest first; a plane of w bits has w rows. Byte b of
//   8 bits  row 4 h + j is the code of k
//   4 bits  row j holds k in its low nibble for h = 0, in its high nibble for h = 1
//   2 bits  row h holds k in bits 2 j and 2 j + 1
//   1 bit   the only row holds k in bit j + 4 h
// 3 bits are planes of 1 and 2, 5 bits of 1 and 4, 6 bits of 2 and 4. A shift and a mask of a plane
// produce a vector of four numbers of k of every column. With TileLayout::lines a plane of 4 bits
// is (columns / 4, 8, 4) words of 16 bits instead: word (i, j, c) holds k = 4 j to 4 j + 3 of
// column 4 i + c, the lowest in the lowest nibble. Everything is in the order in which it is read,
// so that the CPU's prefetchers work. Outputs and elements of k that do not exist are zero.
#pragma once

#include <cstring>

#include "cpu/dispatch/kernels.h"
#include "formats/list.h"

namespace pb::cpu {

namespace planes {

// put() ORs bits [kShift, kShift + kWidth) of the codes into bytes (4 kBits), and take() ORs them
// from the bytes into codes.
template <int kWidth, int kShift>
struct Plane {
  static constexpr uint8_t kMask = (1 << kWidth) - 1;
  static constexpr int byte_of(int k) {
    const int half = k / 16, j = k % 16 / 4;
    const int row = kWidth == 8 ? 4 * half + j : kWidth == 4 ? j : kWidth == 2 ? half : 0;
    return row * 4 + k % 4;
  }
  static constexpr int shift_of(int k) {
    const int half = k / 16, j = k % 16 / 4;
    return kWidth == 8 ? 0 : kWidth == 4 ? 4 * half : kWidth == 2 ? 2 * j : j + 4 * half;
  }
  static void put(const uint8_t* codes, uint8_t* bytes) {
    for (int k = 0; k < kGroup; ++k) {
      const int bits = (codes[k] >> kShift & kMask) << shift_of(k);
      bytes[byte_of(k)] = static_cast<uint8_t>(bytes[byte_of(k)] | bits);
    }
  }
  static void take(const uint8_t* bytes, uint8_t* codes) {
    for (int k = 0; k < kGroup; ++k) {
      const int bits = (bytes[byte_of(k)] >> shift_of(k) & kMask) << kShift;
      codes[k] = static_cast<uint8_t>(codes[k] | bits);
    }
  }
};

// Calls visit(Plane(), offset of the plane in bytes) for each plane of codes of kBits.
template <int kBits, typename Visit>
void for_each(Visit visit) {
  constexpr int kLow = kBits == 8 ? 8 : kBits >= 4 ? 4 : 2;
  constexpr int kHigh = kBits - kLow;
  static_assert(kHigh >= 0 && kHigh <= 2 && (kHigh == 0 || kLow < 8));
  if constexpr (kHigh > 0) visit(Plane<kHigh, kLow>(), 0);
  visit(Plane<kLow, 0>(), 4 * kHigh);
}

}  // namespace planes

template <typename Format>
class GroupTiles {
 public:
  using Parts = typename Format::Parts;
  static constexpr int kCodeBytes = 4 * Format::kBits;  // bytes per column and group
  static constexpr int kGroupBytes = factor_bytes<Format>() + kCodeBytes;
  static constexpr int kGroups = Format::kShared > 0 ? kGroupsOfBlock<Format> : 1;
  static constexpr int kBlockBytes = 2 * Format::kShared + kGroups * kGroupBytes;

  static size_t tile_bytes(int n_in, int columns) {
    constexpr int kLength = kGroups * kGroup;
    const auto n_blocks = static_cast<size_t>((n_in + kLength - 1) / kLength);
    return n_blocks * static_cast<size_t>(columns) * kBlockBytes;
  }

  // Writes group `index` of k in a column.
  static void write(const Parts& parts, int64_t index, const TileLayout& layout, int column,
                    std::byte* tile) {
    uint8_t bytes[kCodeBytes] = {};
    if (layout.lines) {
      put_lines(parts.codes, bytes);
    } else {
      planes::for_each<Format::kBits>(
          [&](auto plane, int at) { plane.put(parts.codes, bytes + at); });
    }
    for_each_piece(index, layout, column, [&](int64_t at, auto piece, int first, int n) {
      const void* from = piece == Piece::kShared   ? static_cast<const void*>(parts.shared + first)
                         : piece == Piece::kFactor ? parts.factors + first
                                                   : bytes + first;
      std::memcpy(tile + at, from, static_cast<size_t>(n));
    });
  }

  static Parts read(const std::byte* tile, int64_t index, const TileLayout& layout, int column) {
    Parts parts;
    uint8_t bytes[kCodeBytes];
    for_each_piece(index, layout, column, [&](int64_t at, auto piece, int first, int n) {
      void* to = piece == Piece::kShared   ? static_cast<void*>(parts.shared + first)
                 : piece == Piece::kFactor ? parts.factors + first
                                           : bytes + first;
      std::memcpy(to, tile + at, static_cast<size_t>(n));
    });
    if (layout.lines) {
      take_lines(bytes, parts.codes);
    } else {
      planes::for_each<Format::kBits>(
          [&](auto plane, int at) { plane.take(bytes + at, parts.codes); });
    }
    return parts;
  }

 private:
  enum class Piece { kShared, kFactor, kCodes };

  // Calls visit(offset in the tile, piece, index of its first element, bytes) for each contiguous
  // piece of a group.
  template <typename Visit>
  static void for_each_piece(int64_t index, const TileLayout& layout, int column, Visit visit) {
    const int64_t columns = layout.columns;
    const int64_t block = index / kGroups * columns * kBlockBytes;
    for (int i = 0; i < Format::kShared; ++i) {
      visit(block + (i * columns + column) * 2, Piece::kShared, i, 2);
    }
    int64_t at = block + (2 * Format::kShared + index % kGroups * kGroupBytes) * columns;
    int first = 0;
    for (const int size : Format::kFactorSizes) {
      visit(at + column * size, Piece::kFactor, first, size);
      at += size * columns;
      first += size;
    }
    if (layout.lines) {
      for (int i = 0; i < kCodeBytes; i += 2) {
        visit(at + column / 4 * 64 + column % 4 * 2 + i / 2 * 8, Piece::kCodes, i, 2);
      }
    } else {
      for (int i = 0; i < kCodeBytes; i += 4) {
        visit(at + (i / 4 * columns + column) * 4, Piece::kCodes, i, 4);
      }
    }
  }

  // Writes 4-bit codes in the layout with lines.
  static void put_lines(const uint8_t* codes, uint8_t* bytes) {
    if constexpr (Format::kBits == 4) {
      for (int i = 0; i < kGroup / 2; ++i) {
        bytes[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
      }
    }
  }
  static void take_lines(const uint8_t* bytes, uint8_t* codes) {
    if constexpr (Format::kBits == 4) {
      for (int i = 0; i < kGroup / 2; ++i) {
        codes[2 * i] = bytes[i] & 15;
        codes[2 * i + 1] = bytes[i] >> 4;
      }
    }
  }
};

}  // namespace pb::cpu
