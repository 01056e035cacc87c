#include "mma.h"

#include <bit>
#include <cmath>

#include "cuda_numbers.h"

// Compiled for newer CPUs too, chosen when the program starts: tests spend most of their time here.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CUDA_ON_CPU_CLONES \
  __attribute__((target_clones("default", "arch=x86-64-v3"), optimize("O3")))
#else
#define CUDA_ON_CPU_CLONES
#endif

namespace cuda_on_cpu {
namespace {

constexpr int kRows = 16;
constexpr int kColumns = 8;
constexpr int kDepth = 16;
constexpr int kLeastExponent = -126;     // of f32
constexpr int kNoExponent = -4000;       // of zero: never the greatest
constexpr int kLeastProduct = -3 * 126;  // no exponent of a product that is not zero is as low

// How a format's bits are read: a number is significand * 2^(exponent - fraction_bits).
struct Format {
  int fraction_bits;
  int exponent_mask;
  int least_exponent;  // of subnormal numbers too
};
constexpr Format kBf16 = {7, 0xff, kLeastExponent};
constexpr Format kF16 = {10, 0x1f, -14};

// One number of each column.
using Columns = int __attribute__((vector_size(sizeof(int) * kColumns), may_alias));

inline const Columns& columns_of(const int (&numbers)[kColumns]) {
  return reinterpret_cast<const Columns&>(numbers);
}

// Of numbers as signed significands and exponents.
template <int kR, int kC>
struct Parts {
  alignas(64) int significand[kR][kC];
  alignas(64) int exponent[kR][kC];
};

// False where one is infinite or no number.
template <int kR, int kC>
inline __attribute__((always_inline)) bool take_apart(const uint16_t (&bits)[kR][kC],
                                                      const Format& format, Parts<kR, kC>& parts) {
  int special = 0;
  for (int r = 0; r < kR; ++r) {
    for (int c = 0; c < kC; ++c) {
      const int u = bits[r][c];
      const int biased = u >> format.fraction_bits & format.exponent_mask;
      const int fraction = u & ((1 << format.fraction_bits) - 1);
      const int magnitude = fraction | (biased != 0 ? 1 << format.fraction_bits : 0);
      const int exponent = format.least_exponent + (biased != 0 ? biased - 1 : 0);
      special |= biased == format.exponent_mask ? 1 : 0;
      parts.significand[r][c] = (u & 0x8000) != 0 ? -magnitude : magnitude;
      parts.exponent[r][c] = magnitude != 0 ? exponent : kNoExponent;
    }
  }
  return special == 0;
}

inline __attribute__((always_inline)) double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(1023 + exponent) << 52);
}

// whole * 2^exponent, cut to the 24 bits of f32, and to fewer where it is subnormal. whole: a whole
// number below 2^53.
inline __attribute__((always_inline)) float cut_to_f32(double whole, int exponent) {
  const double exact = whole * power_of_two(exponent);
  const int own = static_cast<int>(std::bit_cast<uint64_t>(exact) >> 52 & 0x7ff) - 1023;
  const int last_bit = (own > kLeastExponent ? own : kLeastExponent) - 23;
  const int kept = static_cast<int>(exact * power_of_two(-last_bit));  // no zero has a sign
  return static_cast<float>(kept * power_of_two(last_bit));
}

// Adds products kFirst..kFirst + kCount - 1 of a row to c: each product and the sum so far are cut
// to kBits below the greatest exponent among them, added exactly and cut to f32.
template <int kFirst, int kCount, int kBits>
inline __attribute__((always_inline)) void add_products(const int* significands,
                                                        const int* exponents,
                                                        const Parts<kDepth, kColumns>& b,
                                                        int fraction_bits, float (&c)[kColumns]) {
  Columns bits;
  __builtin_memcpy(&bits, c, sizeof bits);
  const Columns biased = bits >> 23 & 0xff;
  const Columns c_magnitude = (bits & 0x7fffff) | (biased != 0 ? Columns{} + 0x800000 : Columns{});
  const Columns c_exponent = c_magnitude != 0
                                 ? (biased != 0 ? biased - 127 : Columns{} + kLeastExponent)
                                 : Columns{} + kNoExponent;

  Columns greatest = c_exponent;
  for (int k = kFirst; k < kFirst + kCount; ++k) {
    const Columns e = columns_of(b.exponent[k]) + exponents[k];
    greatest = e > greatest ? e : greatest;
  }
  // Eight products of 27 bits fit into 31.
  static_assert(kCount % 8 == 0 && kBits <= 25);
  Columns sums[kCount / 8] = {};
  const int up = kBits - 2 * fraction_bits;
  for (int k = kFirst; k < kFirst + kCount; ++k) {
    const Columns product = columns_of(b.significand[k]) * significands[k];
    const Columns sign = product >> 31;
    const Columns down = greatest - columns_of(b.exponent[k]) - exponents[k];
    const Columns magnitude = ((product ^ sign) - sign) << up;
    const Columns kept = magnitude >> (down < 31 ? down : Columns{} + 31);
    sums[(k - kFirst) / 8] += (kept ^ sign) - sign;
  }
  const Columns c_down = greatest - c_exponent;
  const Columns c_sign = bits >> 31;
  const Columns c_kept = c_magnitude << (kBits - 23) >> (c_down < 31 ? c_down : Columns{} + 31);
  const Columns c_term = (c_kept ^ c_sign) - c_sign;
  const Columns exponent = greatest > kLeastProduct ? greatest - kBits : Columns{};
  for (int j = 0; j < kColumns; ++j) {
    double sum = c_term[j];
    for (int half = 0; half < kCount / 8; ++half) sum += sums[half][j];
    c[j] = cut_to_f32(sum, exponent[j]);
  }
}

float number(uint16_t bits, MmaInput input) {
  return input == MmaInput::kF16 ? __half2float({bits}) : __bfloat162float({bits});
}

// Where an input or the sum is infinite or no number, that decides: the order of additions does
// not.
void multiply_special(MmaTile& tile, MmaInput input) {
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      double sum = double{tile.c[i][j]};
      for (int k = 0; k < kDepth; ++k) {
        sum += double{number(tile.a[i][k], input)} * double{number(tile.b[k][j], input)};
      }
      if (!std::isfinite(sum)) {
        tile.c[i][j] = std::isnan(sum) ? __builtin_nanf("") : static_cast<float>(sum);
      }
    }
  }
}

// In f32, k ascending, each product and addition rounded once.
CUDA_ON_CPU_CLONES void multiply_in_sequence(MmaTile& tile, MmaInput input) {
  alignas(64) float a[kRows][kDepth];
  alignas(64) float b[kDepth][kColumns];
  if (input == MmaInput::kBf16) {
    for (int i = 0; i < kRows; ++i) {
      for (int k = 0; k < kDepth; ++k) a[i][k] = std::bit_cast<float>(tile.a[i][k] << 16);
    }
    for (int k = 0; k < kDepth; ++k) {
      for (int j = 0; j < kColumns; ++j) b[k][j] = std::bit_cast<float>(tile.b[k][j] << 16);
    }
  } else {
    for (int i = 0; i < kRows; ++i) {
      for (int k = 0; k < kDepth; ++k) a[i][k] = number(tile.a[i][k], input);
    }
    for (int k = 0; k < kDepth; ++k) {
      for (int j = 0; j < kColumns; ++j) b[k][j] = number(tile.b[k][j], input);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int k = 0; k < kDepth; ++k) {
      for (int j = 0; j < kColumns; ++j) {
        tile.c[i][j] = __builtin_fmaf(a[i][k], b[k][j], tile.c[i][j]);
      }
    }
  }
}

CUDA_ON_CPU_CLONES void multiply_cutting(MmaTile& tile, MmaInput input, bool at_once) {
  const Format& format = input == MmaInput::kF16 ? kF16 : kBf16;
  Parts<kRows, kDepth> a;
  Parts<kDepth, kColumns> b;
  bool plain = take_apart(tile.a, format, a);
  plain = take_apart(tile.b, format, b) && plain;
  for (const auto& row : tile.c) {
    for (const float c : row) plain = plain && (std::bit_cast<int>(c) & 0x7f800000) != 0x7f800000;
  }
  const MmaTile before = tile;
  for (int i = 0; i < kRows; ++i) {
    const int* const s = a.significand[i];
    const int* const e = a.exponent[i];
    if (at_once) {
      add_products<0, 16, 25>(s, e, b, format.fraction_bits, tile.c[i]);
    } else {
      add_products<0, 8, 24>(s, e, b, format.fraction_bits, tile.c[i]);
      add_products<8, 8, 24>(s, e, b, format.fraction_bits, tile.c[i]);
    }
  }
  if (plain) return;
  MmaTile special = before;
  multiply_special(special, input);
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      if (!std::isfinite(special.c[i][j])) tile.c[i][j] = special.c[i][j];
    }
  }
}

}  // namespace

void multiply(MmaTile& tile, MmaInput input, MmaModel model) {
  switch (model) {
    case MmaModel::kSequential:
      return multiply_in_sequence(tile, input);
    case MmaModel::kAmpere:
      return multiply_cutting(tile, input, false);
    case MmaModel::kHopper:
      return multiply_cutting(tile, input, true);
  }
}

}  // namespace cuda_on_cpu
