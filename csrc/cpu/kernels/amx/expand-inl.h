// Weights in the layout of AMX: for each step, which is 32 numbers of k of a tile of 32 columns,
// bf16 in pairs of k, (16, 32, 2). Quantised weights become whole number * scale, rounded to bf16,
// in scratch memory that stays in the nearest cache; compressed weights become their exact bf16.
//
// Rounding consists of a slightly enlarged scale and a truncation. Together, for f = m * 2^e, they
// change a number by at most 2/3 of a unit, and by zero on average over m in [1, 2). Truncation
// costs nothing, while adding half a unit first would be a quarter of all work. The error is 6 %
// larger than that of the nearest bf16; a number that bf16 holds exactly is not changed.
//
// A step is expanded unit by unit, a unit being some numbers of k of 16 columns, so that tile
// products and expansion can alternate. int4 can also be expanded to lines, each with the 32
// numbers of k of one column: this is the layout of a product's first operand, and takes two thirds
// of the time.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/gemm/compressed_runs-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kStepK = kGroupSize;                  // numbers of k per tile product
constexpr int kAmxColumns = 2 * kWidth;             // columns per weight tile
constexpr int kStepNumbers = kStepK * kAmxColumns;  // numbers per step
constexpr int kAmxScales = kAmxColumns * 2;         // bytes of a step's f16 scales

// Returns the slightly enlarged scales of 16 columns. The factor 1 + c has the least squared error
// for mantissas that are spread evenly over a logarithmic scale. The scales have 14 significant
// bits, so that their products with the 10 bits of an offset (below) are exact, and zero stays
// zero.
PB_INLINE Vec cut_scales(const uint8_t* step, int v) {
  constexpr float kCutScale = 1.0f + 2.0f / 3.0f / 256.0f;
  constexpr int kMost14Bits = -(1 << 10);
  const Vec scale = load_f16(reinterpret_cast<const uint16_t*>(step) + v * kWidth);
  const __m512i bits = _mm512_castps_si512(mul(scale, set1(kCutScale)));
  return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(kMost14Bits)));
}

// Returns 2^exponent + the whole number in the bits of `field`, whose lowest bit is 23 - exponent.
PB_INLINE Vec above_power(__m512i bits, int field, int exponent) {
  constexpr int kAAndBOrC = 0xea;
  const __m512i power = _mm512_set1_epi32((127 + exponent) << 23);
  return _mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(bits, _mm512_set1_epi32(field), power, kAAndBOrC));
}

// Steps of kBytes, contiguous through all tiles.
template <int kBytes>
struct EvenSteps {
  static constexpr int kStepBytes = kBytes;

  struct Cursor {
    const uint8_t* from;
  };
  static PB_INLINE Cursor begin(const GemmArgs& args, int tile, int step) {
    const int n_steps = (args.n_in + kStepK - 1) / kStepK;
    return {static_cast<const uint8_t*>(args.weights) +
            (static_cast<size_t>(tile) * n_steps + step) * kBytes};
  }

  // Advances to the next step.
  static PB_INLINE void finish(Cursor& at, uint16_t* /*expanded*/) { at.from += kBytes; }
};

struct NoExpansion : EvenSteps<kStepNumbers * 2> {
  static constexpr int kUnits = 0;  // nothing to expand
  static constexpr bool kLines = false;
};

// Compressed bf16 (cpu/weights/pack_compressed_bf16.h).
struct CompressedExpansion {
  static constexpr int kUnits = kStepNumbers / kCompressedRun;  // runs
  static constexpr int kUnitBytes = kCompressedBytes;
  static constexpr int kStepBytes = kUnits * kUnitBytes;
  static constexpr bool kLines = false;

  using Cursor = CompressedCursor;
  static PB_INLINE Cursor begin(const GemmArgs& args, int tile, int step) {
    Cursor at = begin_compressed(args, tile);
    at.run = step * kUnits;
    at.from += static_cast<size_t>(step) * kStepBytes;
    while (at.patch->run < at.run) ++at.patch;
    return at;
  }

  using Scales = HighBytes;
  static PB_INLINE Scales scales(const Cursor& at, int /*v*/) {
    return load_high_bytes(at.high_bytes);
  }

  static PB_INLINE void expand(const uint8_t* step, int unit, const Scales& high_bytes,
                               uint16_t* to) {
    Pairs run[kRunVectors];
    decode(step + unit * kUnitBytes, high_bytes, run);
    store_run(run, to + unit * kCompressedRun);
  }

  static PB_INLINE void finish(Cursor& at, uint16_t* expanded) {
    patch_runs<kUnits>(at, expanded);
    at.run += kUnits;
    at.from += kStepBytes;
  }
};

// int8 weights in the layout of pack.h: 8 rows of four numbers of k of every column, one byte each,
// with a zero point of 128.
struct Int8Expansion : EvenSteps<kAmxScales + kStepNumbers> {
  static constexpr int kUnits = 16;
  static constexpr int kUnitBytes = 64;
  static constexpr bool kLines = false;

  // The factors of columns 16 v to 16 v + 15: a number is (2^15 + byte) * scale + offset.
  struct Scales {
    Vec scale, offset;
  };
  static PB_INLINE Scales scales(const Cursor& at, int v) {
    const Vec scale = cut_scales(at.from, v);
    return {scale, mul(scale, set1(-(32768.0f + 128.0f)))};
  }

  // The columns are those of v = unit % 2.
  static PB_INLINE void expand(const uint8_t* step, int unit, const Scales& s, uint16_t* to) {
    const __m512i quads = _mm512_loadu_si512(step + kAmxScales + unit * 64);
    const auto number = [&](__m512i second_byte) {
      return mul_add(above_power(second_byte, 0xff00, 15), s.scale, s.offset);
    };
    uint16_t* pairs = to + unit / 2 * 4 * kAmxColumns + unit % 2 * 2 * kWidth;
    store_pairs(pairs, number(_mm512_slli_epi32(quads, 8)), number(quads));
    store_pairs(pairs + 2 * kAmxColumns, number(_mm512_srli_epi32(quads, 8)),
                number(_mm512_srli_epi32(quads, 16)));
  }
};

// int4 weights in the layout of pack.h for lines: 64 bytes for 4 columns, (8, 4) words of four
// numbers of k, with a zero point of 8.
struct Int4Expansion : EvenSteps<kAmxScales + kStepNumbers / 2> {
  static constexpr int kUnits = 8;
  static constexpr int kUnitBytes = 64;
  static constexpr bool kLines = true;  // with few rows, Int4Lines expands them

  // A number is (2^(12 - 4 i) + nibble) * scale + offsets[i].
  struct Scales {
    Vec scale;
    Vec offsets[3];
  };
  static PB_INLINE Scales scales(const Cursor& at, int v) {
    const Vec scale = cut_scales(at.from, v);
    return {scale,
            {mul(scale, set1(-(4096.0f + 8.0f))), mul(scale, set1(-(256.0f + 8.0f))),
             mul(scale, set1(-(16.0f + 8.0f)))}};
  }

  static PB_INLINE void expand(const uint8_t* step, int unit, const Scales& s, uint16_t* to) {
    const __m512i octets = load_octets(step + kAmxScales + unit % 2 * 4 * 64 + unit / 2 * 16);
    // Returns the number of the nibble that starts at bit 11 + 4 i.
    const auto number = [&](__m512i bits, int i) {
      return mul_add(above_power(bits, 0xf << (11 + 4 * i), 12 - 4 * i), s.scale, s.offsets[i]);
    };
    const __m512i first = _mm512_slli_epi32(octets, 11);  // nibbles 0, 1, 2
    const __m512i second = _mm512_srli_epi32(octets, 1);  // 3, 4, 5
    const __m512i third = _mm512_srli_epi32(octets, 13);  // 6, 7
    uint16_t* pairs = to + unit / 2 * 8 * kAmxColumns + unit % 2 * 2 * kWidth;
    store_pairs(pairs, number(first, 0), number(first, 1));
    store_pairs(pairs + 2 * kAmxColumns, number(first, 2), number(second, 0));
    store_pairs(pairs + 4 * kAmxColumns, number(second, 1), number(second, 2));
    store_pairs(pairs + 6 * kAmxColumns, number(third, 0), number(third, 1));
  }

  // Returns eight numbers of k of each of 16 columns, from 16 bytes for 4 columns each.
  static PB_INLINE __m512i load_octets(const uint8_t* from) {
    const auto part = [from](int i) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * 64));
    };
    __m512i words = _mm512_castsi128_si512(part(0));  // (4, 2, 4): parts, fours of k, columns
    words = _mm512_inserti32x4(words, part(1), 1);
    words = _mm512_inserti32x4(words, part(2), 2);
    words = _mm512_inserti32x4(words, part(3), 3);
    return _mm512_shuffle_epi8(words,
                               _mm512_set4_epi32(0x0f0e0706, 0x0d0c0504, 0x0b0a0302, 0x09080100));
  }
};

// For each of the 4 columns that share 64 bytes: the bit of 8 neighbouring bytes at which a byte of
// a look-up's index starts, two bits below the nibble.
struct LineControls {
  alignas(64) uint8_t bit[4][64];
  constexpr LineControls() : bit() {
    for (int column = 0; column < 4; ++column) {
      for (int i = 0; i < 64; ++i) {
        bit[column][i] = static_cast<uint8_t>((16 * column + i % 8 / 2 * 4 - 2) & 63);
      }
    }
  }
};
constexpr LineControls kLineControls;

// int4 weights as lines of bf16, (32 columns, 32 numbers of k). A group has only 16 different
// numbers, which are multiplied and truncated once, and looked up 32 times.
struct Int4Lines {
  static constexpr int kUnits = kAmxColumns / 4;

  // Loads scales (32). Called one step ahead, because a load directly after the store would wait.
  static PB_INLINE void load_scales(const uint8_t* step, float* scales) {
    store(scales, cut_scales(step, 0));
    store(scales + kWidth, cut_scales(step, 1));
  }

  // Expands the columns of a unit.
  static PB_INLINE void expand(const uint8_t* step, int unit, const float* scales, uint16_t* to) {
    const __m512i packed = _mm512_loadu_si512(step + kAmxScales + unit * 64);
    const Vec values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const int column = unit * 4 + c;
      // Bytes 4 i + 2 and 4 i + 3 of the table are number i.
      const __m512i table = _mm512_castps_si512(mul(values, set1(scales[column])));
      const __m512i bits =
          _mm512_multishift_epi64_epi8(_mm512_load_si512(kLineControls.bit[c]), packed);
      constexpr int kAAndBOrC = 0xea;
      const __m512i bytes = _mm512_ternarylogic_epi32(bits, _mm512_set1_epi8(0xf << 2),
                                                      _mm512_set1_epi16(0x0302), kAAndBOrC);
      _mm512_store_si512(to + column * kStepK, _mm512_permutexvar_epi8(bytes, table));
    }
  }
};

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
