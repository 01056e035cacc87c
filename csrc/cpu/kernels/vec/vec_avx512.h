// Vectors of sixteen floats: AVX-512 F, BW, DQ and VL, and BF16 if the file is compiled for it.
// vec_scalar.h describes each function.
#pragma once

// gcc 12 warns about the undefined pass-through operand of its own intrinsics.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

#define PB_INLINE inline __attribute__((always_inline))

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kWidth = 16;
constexpr int kRegisters = 32;
#ifdef __AVX512BF16__
constexpr bool kBf16Products = true;
#else
constexpr bool kBf16Products = false;
#endif
#ifdef __AVX512VNNI__
constexpr bool kByteProducts = true;
#else
constexpr bool kByteProducts = false;
#endif

using Vec = __m512;

// Returns the mask of the first n lanes: none for n <= 0, all for n >= 16.
PB_INLINE __mmask16 first_lanes(int n) {
  return static_cast<__mmask16>(n >= kWidth ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u);
}

PB_INLINE Vec set1(float x) { return _mm512_set1_ps(x); }
PB_INLINE Vec zero() { return _mm512_setzero_ps(); }
PB_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
PB_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
PB_INLINE Vec load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
PB_INLINE void store_n(float* p, Vec v, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }

PB_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
PB_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
PB_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
PB_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
PB_INLINE Vec mul_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
PB_INLINE Vec neg_mul_add(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
PB_INLINE void hold(Vec&) {}
PB_INLINE Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
PB_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
PB_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
PB_INLINE Vec abs(Vec a) { return _mm512_abs_ps(a); }
PB_INLINE Vec sqrt(Vec a) { return _mm512_sqrt_ps(a); }
PB_INLINE Vec keep_lanes(Vec v, int begin, int end, Vec other) {
  const unsigned keep = first_lanes(end) & ~static_cast<unsigned>(first_lanes(begin));
  return _mm512_mask_blend_ps(static_cast<__mmask16>(keep), other, v);
}

PB_INLINE float reduce_add(Vec v) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
PB_INLINE float reduce_max(Vec v) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

PB_INLINE Vec scale_by_power_of_2(Vec p, Vec n) { return _mm512_scalef_ps(p, n); }

PB_INLINE void store_f16(uint16_t* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

PB_INLINE Vec load_int8(const int8_t* p) {
  const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(narrow));
}
using Pairs = __m512i;
PB_INLINE Pairs load_pairs(const uint16_t* p) { return _mm512_loadu_si512(p); }
PB_INLINE Vec even(Pairs p) { return _mm512_castsi512_ps(_mm512_slli_epi32(p, 16)); }
PB_INLINE Vec odd(Pairs p) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm512_castsi512_ps(_mm512_and_si512(p, high));
}
#define PB_DECODES_BF16
// The numbers of a run of compressed bf16 (cpu/weights/pack_compressed_bf16.h).
using HighBytes = __m512i;  // by code, in each lane
PB_INLINE HighBytes load_high_bytes(const uint8_t* p) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
PB_INLINE void decode(const uint8_t* run, HighBytes high_bytes, Pairs (&numbers)[4]) {
  const __m512i nibble = _mm512_set1_epi8(0xf);
  const __m512i codes = _mm512_loadu_si512(run);
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m512i low = _mm512_loadu_si512(run + 64 + half * 64);
    const __m512i own = half == 0 ? codes : _mm512_srli_epi16(codes, 4);
    const __m512i high = _mm512_shuffle_epi8(high_bytes, _mm512_and_si512(own, nibble));
    numbers[2 * half] = _mm512_unpacklo_epi8(low, high);
    numbers[2 * half + 1] = _mm512_unpackhi_epi8(low, high);
  }
}
PB_INLINE void store_pairs(uint16_t* to, Pairs pairs) { _mm512_storeu_si512(to, pairs); }
constexpr __mmask32 kOddOfPairs = 0xaaaaaaaau;
// Returns the pairs (first[c], second[c]), truncated to bf16.
PB_INLINE Pairs pairs_of(Vec first, Vec second) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(first), 16);
  return _mm512_mask_blend_epi16(kOddOfPairs, low, _mm512_castps_si512(second));
}
// `to` is a whole cache line.
PB_INLINE void store_pairs(uint16_t* to, Vec first, Vec second) {
  _mm512_store_si512(to, pairs_of(first, second));
}
// Return the pairs of the even numbers of x and y, and of their odd numbers.
PB_INLINE Pairs evens(Pairs x, Pairs y) {
  return _mm512_mask_blend_epi16(kOddOfPairs, x, _mm512_slli_epi32(y, 16));
}
PB_INLINE Pairs odds(Pairs x, Pairs y) {
  return _mm512_mask_blend_epi16(kOddOfPairs, _mm512_srli_epi32(x, 16), y);
}
#ifdef __AVX512BF16__
// Returns a pair in all lanes.
PB_INLINE Pairs broadcast_pair(const uint16_t* pair) {
  int32_t both;
  __builtin_memcpy(&both, pair, sizeof(both));
  return _mm512_set1_epi32(both);
}
// Returns sum + the products of both numbers of each lane, by vdpbf16ps.
PB_INLINE Vec add_dot(Vec sum, Pairs x, Pairs y) {
  return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y);
}
#endif
PB_INLINE Vec load_bf16(const uint16_t* p) {
  const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}
PB_INLINE Vec round_to_bf16(Vec v) {
  const __m512i u = _mm512_castps_si512(v);
  const __m512i lowest = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(u, _mm512_add_epi32(lowest, _mm512_set1_epi32(0x7fff)));
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const Vec rounded = _mm512_castsi512_ps(_mm512_and_si512(up, high));
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), rounded, v);
}
PB_INLINE void store_bf16_n(uint16_t* p, Vec rounded, int n) {
  const __m512i u = _mm512_srli_epi32(_mm512_castps_si512(rounded), 16);
  _mm256_mask_storeu_epi16(p, first_lanes(n), _mm512_cvtepi32_epi16(u));
}

PB_INLINE Vec max_or_nan(Vec a, Vec b) {
  return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
PB_INLINE float reduce_max_or_nan(Vec v) {
  const __m512i u = _mm512_castps_si512(v);
  const __m256i eight =
      _mm256_max_epi32(_mm512_castsi512_si256(u), _mm512_extracti64x4_epi64(u, 1));
  const __m128i four =
      _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  const __m128i one = _mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(one));
}

using Ints = __m512i;
PB_INLINE Ints set1_int(int32_t x) { return _mm512_set1_epi32(x); }
PB_INLINE Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
PB_INLINE int32_t reduce_add_ints(Ints v) {
  const __m256i eight =
      _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
  const __m128i four =
      _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}
PB_INLINE Ints to_nearest(Vec v) { return _mm512_cvtps_epi32(v); }
PB_INLINE Vec to_float(Ints v) { return _mm512_cvtepi32_ps(v); }
PB_INLINE void store_bytes(int8_t* p, Ints v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(v));
}
PB_INLINE Vec load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// Pairs of e4m3 numbers, one pair per lane, multiplied exactly by 1 / kFp8Fraction: this is the
// value of their bits as f16 numbers, also of subnormal ones.
constexpr float kFp8Fraction = 256.0f;
using Fp8Pairs = __m256i;
PB_INLINE Fp8Pairs load_fp8_pairs(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
PB_INLINE Vec odd_of_fp8(Fp8Pairs p) {
  const __m256i sign_and_rest = _mm256_set1_epi16(static_cast<int16_t>(0xbf80));
  return _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(p, 1), sign_and_rest));
}
PB_INLINE Vec even_of_fp8(Fp8Pairs p) { return odd_of_fp8(_mm256_slli_epi16(p, 8)); }

using Quads = __m512i;
PB_INLINE Quads load_quads(const uint8_t* p) { return _mm512_loadu_si512(p); }
PB_INLINE Quads low_nibbles(Quads v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
PB_INLINE Quads high_nibbles(Quads v) {
  return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15));
}
using QuadFactor = __m512i;
PB_INLINE QuadFactor quad_factor(const int8_t* p) {
  int32_t quad;
  __builtin_memcpy(&quad, p, sizeof(quad));
  return _mm512_set1_epi32(quad);
}

PB_INLINE Ints set1_pair(int16_t low, int16_t high) {
  return _mm512_set1_epi32((low & 0xffff) | (int32_t{high} * 65536));
}
PB_INLINE Ints pair_up(Ints low, Ints high, int shift) {
  return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_slli_epi32(low, static_cast<unsigned>(shift)),
                                 _mm512_slli_epi32(high, static_cast<unsigned>(16 + shift)));
}
PB_INLINE Ints pair_products(Ints pairs, const int16_t* x) {
  int32_t both;
  __builtin_memcpy(&both, x, sizeof(both));
  return _mm512_madd_epi16(pairs, _mm512_set1_epi32(both));
}
PB_INLINE Ints sub_ints(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
template <int kBits>
PB_INLINE Ints shift_right(Ints v) {
  return _mm512_srai_epi32(v, kBits);
}
PB_INLINE Ints load_unsigned(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
PB_INLINE Ints load_signed(const uint8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

PB_INLINE Quads masked_shift(Quads v, int by, uint8_t mask) {
  const __m512i shifted = by > 0   ? _mm512_slli_epi16(v, static_cast<unsigned>(by))
                          : by < 0 ? _mm512_srli_epi16(v, static_cast<unsigned>(-by))
                                   : v;
  return _mm512_and_si512(shifted, _mm512_set1_epi8(static_cast<char>(mask)));
}
PB_INLINE Quads or_quads(Quads a, Quads b) { return _mm512_or_si512(a, b); }
PB_INLINE Quads looked_up(const uint8_t* table, Quads v) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), v);
}
PB_INLINE Vec load_powers(const uint8_t* p) {
  const __m512i bits = _mm512_slli_epi32(load_unsigned(p), 23);
  return _mm512_castsi512_ps(_mm512_max_epi32(bits, _mm512_set1_epi32(0x00400000)));
}

#ifdef __AVX512VNNI__
constexpr bool kNarrowSums = false;
using ByteSums = Ints;
PB_INLINE ByteSums no_sums() { return _mm512_setzero_si512(); }
PB_INLINE ByteSums add_products(ByteSums sum, Quads w, QuadFactor x) {
  return _mm512_dpbusd_epi32(sum, w, x);
}
PB_INLINE Ints total(ByteSums sum) { return sum; }
PB_INLINE Ints times(ByteSums sum, Ints factor) { return _mm512_mullo_epi32(sum, factor); }
constexpr bool kSignedBytes = false;
using Bytes = Quads;
PB_INLINE Bytes bytes_of(Quads v) { return v; }
using WholeByteSums = ByteSums;
#else
// Sums of pairs of products have 16 bits. For w below 2^n, 2^(7 - n) products may be added before
// the sums are widened, and vpmaddubsw never saturates.
constexpr bool kNarrowSums = true;
using ByteSums = __m512i;
PB_INLINE ByteSums no_sums() { return _mm512_setzero_si512(); }
PB_INLINE ByteSums add_products(ByteSums sum, Quads w, QuadFactor x) {
  sum = _mm512_add_epi16(sum, _mm512_maddubs_epi16(w, x));
  asm(""
      : "+v"(sum));  // keeps the compiler from adding products in pairs, which needs more registers
  return sum;
}
PB_INLINE Ints total(ByteSums sum) { return _mm512_madd_epi16(sum, _mm512_set1_epi16(1)); }
PB_INLINE Ints times(ByteSums sum, Ints factor) {
  return _mm512_madd_epi16(sum, pair_up(factor, factor, 0));
}
// Bytes of eight bits are multiplied as two numbers of four bits, low + 16 high.
constexpr bool kSignedBytes = false;
struct Bytes {
  Quads low, high;
};
PB_INLINE Bytes bytes_of(Quads v) { return {low_nibbles(v), high_nibbles(v)}; }
struct WholeByteSums {
  ByteSums low = no_sums(), high = no_sums();
};
PB_INLINE WholeByteSums add_products(WholeByteSums sum, const Bytes& w, QuadFactor x) {
  return {add_products(sum.low, w.low, x), add_products(sum.high, w.high, x)};
}
PB_INLINE Ints total(const WholeByteSums& sum) {
  return add_ints(_mm512_madd_epi16(sum.high, _mm512_set1_epi16(16)), total(sum.low));
}
#endif

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
