// Vectors of four floats by the compiler's vector extension, for any CPU. mul_add rounds twice.
#pragma once

#include <cstdint>

#define PB_INLINE inline __attribute__((always_inline))

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kWidth = 4;
constexpr int kRegisters = 16;
constexpr bool kBf16Products = false;
constexpr bool kByteProducts = false;

typedef float Vec __attribute__((vector_size(16)));
typedef int32_t Bits __attribute__((vector_size(16)));
typedef uint32_t UBits __attribute__((vector_size(16)));

PB_INLINE Vec set1(float x) { return Vec{x, x, x, x}; }
PB_INLINE Vec zero() { return set1(0.0f); }
PB_INLINE Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
PB_INLINE void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof(v)); }
// Loads the first n lanes; the other lanes are zero and their memory is not accessed.
PB_INLINE Vec load_n(const float* p, int n) {
  Vec v = zero();
  for (int i = 0; i < kWidth; ++i) {
    if (i < n) v[i] = p[i];
  }
  return v;
}
PB_INLINE void store_n(float* p, Vec v, int n) {
  for (int i = 0; i < kWidth; ++i) {
    if (i < n) p[i] = v[i];
  }
}

PB_INLINE Vec add(Vec a, Vec b) { return a + b; }
PB_INLINE Vec sub(Vec a, Vec b) { return a - b; }
PB_INLINE Vec mul(Vec a, Vec b) { return a * b; }
PB_INLINE Vec div(Vec a, Vec b) { return a / b; }
PB_INLINE Vec mul_add(Vec a, Vec b, Vec c) { return a * b + c; }      // a b + c
PB_INLINE Vec neg_mul_add(Vec a, Vec b, Vec c) { return c - a * b; }  // c - a b
// Keeps a sum in its register, for targets with few registers, where compilers would spill it.
PB_INLINE void hold(Vec&) {}
PB_INLINE Vec select_less(Vec a, Vec b, Vec yes, Vec no) { return a < b ? yes : no; }
PB_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }  // b if either is NaN
PB_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }
PB_INLINE Vec abs(Vec a) { return (Vec)((Bits)a & 0x7fffffff); }
PB_INLINE Vec sqrt(Vec a) {
  for (int i = 0; i < kWidth; ++i) a[i] = __builtin_sqrtf(a[i]);
  return a;
}
// Returns the lanes [begin, end) of v and the other lanes of `other`.
PB_INLINE Vec keep_lanes(Vec v, int begin, int end, Vec other) {
  const Bits lane = {0, 1, 2, 3};
  return ((lane >= begin) & (lane < end)) ? v : other;
}

PB_INLINE float reduce_add(Vec v) { return (v[0] + v[2]) + (v[1] + v[3]); }
PB_INLINE float reduce_max(Vec v) {
  const float a = v[0] > v[2] ? v[0] : v[2];
  const float b = v[1] > v[3] ? v[1] : v[3];
  return a > b ? a : b;
}

// Returns p * 2^n for whole n in [-160, 130].
PB_INLINE Vec scale_by_power_of_2(Vec p, Vec n) {
  const Bits whole = __builtin_convertvector(n, Bits);
  const Bits half = whole >> 1;
  return p * (Vec)((half + 127) << 23) * (Vec)((whole - half + 127) << 23);
}

// Returns p * 2^n for an n in the lowest bits of a number, if neither p nor the product is
// subnormal.
PB_INLINE Vec add_to_exponent(Vec p, Vec lowest) { return (Vec)((UBits)p + ((UBits)lowest << 23)); }
// Returns false if a lane is NaN.
PB_INLINE bool all_at_least(Vec a, float b) {
  return a[0] >= b && a[1] >= b && a[2] >= b && a[3] >= b;
}

// Stores v rounded to f16, to nearest even; infinite from 65520 on. NaN stays NaN.
PB_INLINE void store_f16(uint16_t* p, Vec v) {
  const UBits u = (UBits)v;
  const UBits magnitude = u & 0x7fffffffu;
  const UBits small = (UBits)((Vec)magnitude * 0x1p24f + 0x1p23f) - 0x4b000000u;  // steps of 2^-24
  const UBits normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const UBits infinite = UBits{} + 0x7c00u;
  const UBits finite = magnitude < 0x38800000u ? small : normal;
  const UBits number = magnitude < 0x477ff000u ? finite : infinite;
  const UBits h = (u >> 16 & 0x8000u) | (magnitude > 0x7f800000u ? UBits{} + 0x7e00u : number);
  for (int i = 0; i < kWidth; ++i) p[i] = static_cast<uint16_t>(h[i]);
}

PB_INLINE Vec load_int8(const int8_t* p) {
  return Vec{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]),
             static_cast<float>(p[3])};
}
// Pairs of bf16 numbers, one pair per lane.
typedef UBits Pairs;
PB_INLINE Pairs load_pairs(const uint16_t* p) {
  Pairs v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
PB_INLINE Vec even(Pairs p) { return (Vec)(p << 16); }
PB_INLINE Vec odd(Pairs p) { return (Vec)(p & 0xffff0000u); }
#define PB_DECODES_BF16
// The numbers of a run of compressed bf16 (cpu/weights/pack_compressed_bf16.h).
typedef const uint8_t* HighBytes;  // by code
PB_INLINE HighBytes load_high_bytes(const uint8_t* p) { return p; }
PB_INLINE void decode(const uint8_t* run, HighBytes high_bytes, Pairs (&numbers)[4]) {
  for (int v = 0; v < 4; ++v) {
    uint16_t of_vector[2 * kWidth];
    for (int i = 0; i < 2 * kWidth; ++i) {
      const int at = v % 2 * 8 + i;
      const uint8_t low = run[16 + v / 2 * 16 + at];
      of_vector[i] = static_cast<uint16_t>(high_bytes[run[at] >> v / 2 * 4 & 0xf] << 8 | low);
    }
    numbers[v] = load_pairs(of_vector);
  }
}
PB_INLINE void store_pairs(uint16_t* to, Pairs pairs) {
  __builtin_memcpy(to, &pairs, sizeof(pairs));
}
PB_INLINE Vec load_bf16(const uint16_t* p) {
  const UBits wide = {p[0], p[1], p[2], p[3]};
  return (Vec)(wide << 16);
}
// Returns v rounded to bf16, to nearest even; NaN stays NaN.
PB_INLINE Vec round_to_bf16(Vec v) {
  const UBits u = (UBits)v;
  const UBits rounded = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  return v == v ? (Vec)rounded : v;
}
PB_INLINE void store_bf16_n(uint16_t* p, Vec rounded, int n) {
  const UBits u = (UBits)rounded;
  for (int i = 0; i < kWidth; ++i) {
    if (i < n) p[i] = static_cast<uint16_t>(u[i] >> 16);
  }
}

// Pairs of e4m3 numbers, one pair per lane, multiplied exactly by 1 / kFp8Fraction.
constexpr float kFp8Fraction = 256.0f;
typedef UBits Fp8Pairs;
PB_INLINE Fp8Pairs load_fp8_pairs(const uint8_t* p) {
  Fp8Pairs v;
  for (int i = 0; i < kWidth; ++i) v[i] = p[2 * i] | uint32_t{p[2 * i + 1]} << 8;
  return v;
}
PB_INLINE Vec fraction_of_fp8(UBits byte) {  // the bits as f32 are 2^-120 times the number
  return (Vec)((byte & 0x80u) << 24 | (byte & 0x7fu) << 20) * 0x1p112f;
}
PB_INLINE Vec even_of_fp8(Fp8Pairs p) { return fraction_of_fp8(p & 0xffu); }
PB_INLINE Vec odd_of_fp8(Fp8Pairs p) { return fraction_of_fp8(p >> 8); }

// Returns the greater of two numbers that are not negative; NaN if either is NaN.
PB_INLINE Vec max_or_nan(Vec a, Vec b) { return (Bits)a > (Bits)b ? a : b; }
PB_INLINE float reduce_max_or_nan(Vec v) {
  const Vec pairs = max_or_nan(v, Vec{v[2], v[3], v[0], v[1]});
  return max_or_nan(pairs, Vec{pairs[1], pairs[0], pairs[1], pairs[0]})[0];
}

// Whole numbers, one per lane, with wrap-around.
typedef UBits Ints;
PB_INLINE Ints set1_int(int32_t x) {
  const auto u = static_cast<uint32_t>(x);
  return Ints{u, u, u, u};
}
PB_INLINE Ints add_ints(Ints a, Ints b) { return a + b; }
PB_INLINE int32_t reduce_add_ints(Ints v) {
  return static_cast<int32_t>((v[0] + v[2]) + (v[1] + v[3]));
}
// Returns the nearest whole numbers, ties to even, for |v| < 2^22; any number for other v.
PB_INLINE Ints to_nearest(Vec v) { return (Ints)(v + set1(12582912.0f)) - 0x4b400000u; }
PB_INLINE Vec to_float(Ints v) { return __builtin_convertvector((Bits)v, Vec); }
// Stores the lowest byte of each lane.
PB_INLINE void store_bytes(int8_t* p, Ints v) {
  for (int i = 0; i < kWidth; ++i) p[i] = static_cast<int8_t>(v[i]);
}
PB_INLINE Vec load_f16(const uint16_t* p) {
  Vec v;
  for (int i = 0; i < kWidth; ++i) {  // exact, for subnormal and for other numbers
    const uint32_t magnitude = p[i] & 0x7fffu;
    const uint32_t shifted = (magnitude << 13) + (magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u);
    float f;
    __builtin_memcpy(&f, &shifted, sizeof(f));
    if (magnitude < 0x400u) f = static_cast<float>(magnitude) * 0x1p-24f;
    v[i] = p[i] & 0x8000u ? -f : f;
  }
  return v;
}

// Four unsigned bytes per lane.
typedef UBits Quads;
PB_INLINE Quads load_quads(const uint8_t* p) {
  Quads v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
PB_INLINE Quads low_nibbles(Quads v) { return v & 0x0f0f0f0fu; }
PB_INLINE Quads high_nibbles(Quads v) { return (v >> 4) & 0x0f0f0f0fu; }
// Four signed bytes, the same for every lane.
struct QuadFactor {
  uint32_t x[4];
};
PB_INLINE QuadFactor quad_factor(const int8_t* p) {
  return {{static_cast<uint32_t>(p[0]), static_cast<uint32_t>(p[1]), static_cast<uint32_t>(p[2]),
           static_cast<uint32_t>(p[3])}};
}

// Pairs of whole numbers of 16 bits, one pair per lane: (low, high).
PB_INLINE Ints set1_pair(int16_t low, int16_t high) {
  return set1_int((low & 0xffff) | (int32_t{high} * 65536));
}
// Combines whole numbers of 16 bits to pairs of low and high numbers, times 2^shift.
PB_INLINE Ints pair_up(Ints low, Ints high, int shift) {
  return ((low << shift) & 0xffffu) | (high << (16 + shift));
}
// Returns low x[0] + high x[1], exactly.
PB_INLINE Ints pair_products(Ints pairs, const int16_t* x) {
  const Bits low = (Bits)(pairs << 16) >> 16, high = (Bits)pairs >> 16;
  return (Ints)(low * int32_t{x[0]} + high * int32_t{x[1]});
}
PB_INLINE Ints sub_ints(Ints a, Ints b) { return a - b; }
// Returns signed numbers divided by 2^kBits.
template <int kBits>
PB_INLINE Ints shift_right(Ints v) {
  return (Ints)((Bits)v >> kBits);
}
// Loads bytes as whole numbers, one per lane.
PB_INLINE Ints load_unsigned(const uint8_t* p) { return Ints{p[0], p[1], p[2], p[3]}; }
PB_INLINE Ints load_signed(const uint8_t* p) {
  const auto number = [p](int i) { return static_cast<uint32_t>(static_cast<int8_t>(p[i])); };
  return Ints{number(0), number(1), number(2), number(3)};
}

// Returns bytes shifted by `by` bits (to the left if by > 0), of which only the bits of `mask` are
// valid and kept.
PB_INLINE Quads masked_shift(Quads v, int by, uint8_t mask) {
  return (by > 0 ? v << by : v >> -by) & (0x01010101u * mask);
}
PB_INLINE Quads or_quads(Quads a, Quads b) { return a | b; }
// Returns the entries of table (16) for the nibbles in v, one in each byte.
PB_INLINE Quads looked_up(const uint8_t* table, Quads v) {
  Quads out = {};
  for (int i = 0; i < kWidth; ++i) {
    for (int shift = 0; shift < 32; shift += 8) {
      out[i] |= uint32_t{table[v[i] >> shift & 15]} << shift;
    }
  }
  return out;
}
// Returns 2^(p[i] - 127), one per lane; infinity for 255.
PB_INLINE Vec load_powers(const uint8_t* p) {
  Vec v;
  for (int i = 0; i < kWidth; ++i) {
    const uint32_t bits = p[i] == 0 ? 0x00400000u : uint32_t{p[i]} << 23;
    float f;
    __builtin_memcpy(&f, &bits, sizeof(f));
    v[i] = f;
  }
  return v;
}

// Sums of products of unsigned bytes of few bits (w) with signed bytes (x). If the sums are narrow,
// 2^(7 - n) products may be added for w below 2^n before the sums are widened.
constexpr bool kNarrowSums = false;
using ByteSums = Ints;
PB_INLINE ByteSums no_sums() { return set1_int(0); }
// Returns sum + the products of a lane's bytes and the factor's, exactly.
PB_INLINE ByteSums add_products(ByteSums sum, Quads w, QuadFactor f) {
  return sum + (w & 0xffu) * f.x[0] + ((w >> 8) & 0xffu) * f.x[1] + ((w >> 16) & 0xffu) * f.x[2] +
         (w >> 24) * f.x[3];
}
PB_INLINE Ints total(ByteSums sum) { return sum; }
// Returns the total times a factor of 8 bits for each lane.
PB_INLINE Ints times(ByteSums sum, Ints factor) { return sum * factor; }
// WholeByteSums are ByteSums of arbitrary bytes, of up to eight Quads. With kSignedBytes,
// bytes_of() subtracts a zero point of 128 first.
constexpr bool kSignedBytes = false;
using Bytes = Quads;
PB_INLINE Bytes bytes_of(Quads v) { return v; }
using WholeByteSums = ByteSums;

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
