// Vectors of eight floats: AVX2 and FMA, and the byte dot product of AVX-VNNI if the file is
// compiled for it. vec_scalar.h describes each function.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define PB_INLINE inline __attribute__((always_inline))

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kWidth = 8;
constexpr int kRegisters = 16;
constexpr bool kBf16Products = false;
#ifdef __AVXVNNI__
constexpr bool kByteProducts = true;
#else
constexpr bool kByteProducts = false;
#endif

using Vec = __m256;

PB_INLINE __m256i lane_numbers() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
PB_INLINE __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane_numbers());
}

PB_INLINE Vec set1(float x) { return _mm256_set1_ps(x); }
PB_INLINE Vec zero() { return _mm256_setzero_ps(); }
PB_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
PB_INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
PB_INLINE Vec load_n(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
PB_INLINE void store_n(float* p, Vec v, int n) { _mm256_maskstore_ps(p, first_lanes(n), v); }

PB_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
PB_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
PB_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
PB_INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
PB_INLINE Vec mul_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
PB_INLINE Vec neg_mul_add(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
PB_INLINE void hold(Vec& sum) { asm("" : "+x"(sum)); }
PB_INLINE Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
PB_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
PB_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
PB_INLINE Vec abs(Vec a) {
  return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
}
PB_INLINE Vec sqrt(Vec a) { return _mm256_sqrt_ps(a); }
PB_INLINE Vec keep_lanes(Vec v, int begin, int end, Vec other) {
  const __m256i keep = _mm256_andnot_si256(first_lanes(begin), first_lanes(end));
  return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(keep));
}

PB_INLINE float reduce_add(Vec v) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
PB_INLINE float reduce_max(Vec v) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

PB_INLINE Vec scale_by_power_of_2(Vec p, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i rest = _mm256_sub_epi32(whole, half);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}

PB_INLINE Vec add_to_exponent(Vec p, Vec lowest) {
  const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(lowest), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), n));
}
PB_INLINE bool all_at_least(Vec a, float b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, _mm256_set1_ps(b), _CMP_NGE_UQ)) == 0;
}

PB_INLINE void store_f16(uint16_t* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

PB_INLINE Vec load_int8(const int8_t* p) {
  const __m128i narrow = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(narrow));
}
using Pairs = __m256i;
PB_INLINE Pairs load_pairs(const uint16_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
PB_INLINE Vec even(Pairs p) { return _mm256_castsi256_ps(_mm256_slli_epi32(p, 16)); }
// The mask comes from memory, because registers are scarce, and shifts compete with vfmadd for its
// units.
alignas(32) constexpr uint32_t kOddOfPairs[kWidth] = {
    0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};
PB_INLINE Vec odd(Pairs p) {
  Vec v;
  asm("vandps %2, %1, %0" : "=x"(v) : "x"(p), "m"(kOddOfPairs));
  return v;
}
#define PB_DECODES_BF16
// The numbers of a run of compressed bf16 (cpu/weights/pack_compressed_bf16.h).
using HighBytes = __m256i;  // by code, in each lane
PB_INLINE HighBytes load_high_bytes(const uint8_t* p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
PB_INLINE void decode(const uint8_t* run, HighBytes high_bytes, Pairs (&numbers)[4]) {
  const auto load_bytes = [](const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  };
  const __m256i nibble = _mm256_set1_epi8(0xf);
  const __m256i codes = load_bytes(run);
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m256i low = load_bytes(run + 32 + half * 32);
    const __m256i own = half == 0 ? codes : _mm256_srli_epi16(codes, 4);
    const __m256i high = _mm256_shuffle_epi8(high_bytes, _mm256_and_si256(own, nibble));
    numbers[2 * half] = _mm256_unpacklo_epi8(low, high);
    numbers[2 * half + 1] = _mm256_unpackhi_epi8(low, high);
  }
}
PB_INLINE void store_pairs(uint16_t* to, Pairs pairs) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), pairs);
}
PB_INLINE Vec load_bf16(const uint16_t* p) {
  const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}
PB_INLINE Vec round_to_bf16(Vec v) {
  const __m256i u = _mm256_castps_si256(v);
  const __m256i lowest = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(lowest, _mm256_set1_epi32(0x7fff)));
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const Vec rounded = _mm256_castsi256_ps(_mm256_and_si256(up, high));
  return _mm256_blendv_ps(rounded, v, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}
PB_INLINE void store_bf16_n(uint16_t* p, Vec rounded, int n) {
  const __m256i u = _mm256_srli_epi32(_mm256_castps_si256(rounded), 16);
  const __m128i narrow =
      _mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1));
  if (n >= kWidth) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow);
    return;
  }
  alignas(16) uint16_t lanes[kWidth];
  _mm_store_si128(reinterpret_cast<__m128i*>(lanes), narrow);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

PB_INLINE Vec max_or_nan(Vec a, Vec b) {
  return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
PB_INLINE float reduce_max_or_nan(Vec v) {
  const __m256i u = _mm256_castps_si256(v);
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  const __m128i one = _mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(one));
}

using Ints = __m256i;
PB_INLINE Ints set1_int(int32_t x) { return _mm256_set1_epi32(x); }
PB_INLINE Ints add_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
PB_INLINE int32_t reduce_add_ints(Ints v) {
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}
PB_INLINE Ints to_nearest(Vec v) { return _mm256_cvtps_epi32(v); }
PB_INLINE Vec to_float(Ints v) { return _mm256_cvtepi32_ps(v); }
PB_INLINE void store_bytes(int8_t* p, Ints v) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
PB_INLINE Vec load_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Pairs of e4m3 numbers, one pair per lane, multiplied exactly by 1 / kFp8Fraction: this is the
// value of their bits as f16 numbers, also of subnormal ones.
constexpr float kFp8Fraction = 256.0f;
using Fp8Pairs = __m128i;
PB_INLINE Fp8Pairs load_fp8_pairs(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
PB_INLINE Vec odd_of_fp8(Fp8Pairs p) {
  const __m128i sign_and_rest = _mm_set1_epi16(static_cast<int16_t>(0xbf80));
  return _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(p, 1), sign_and_rest));
}
PB_INLINE Vec even_of_fp8(Fp8Pairs p) { return odd_of_fp8(_mm_slli_epi16(p, 8)); }

using Quads = __m256i;
PB_INLINE Quads load_quads(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
PB_INLINE Quads low_nibbles(Quads v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
PB_INLINE Quads high_nibbles(Quads v) {
  return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
}
using QuadFactor = __m256i;
PB_INLINE QuadFactor quad_factor(const int8_t* p) {
  int32_t quad;
  __builtin_memcpy(&quad, p, sizeof(quad));
  return _mm256_set1_epi32(quad);
}

PB_INLINE Ints set1_pair(int16_t low, int16_t high) {
  return _mm256_set1_epi32((low & 0xffff) | (int32_t{high} * 65536));
}
PB_INLINE Ints pair_up(Ints low, Ints high, int shift) {
  return _mm256_blend_epi16(_mm256_slli_epi32(low, shift), _mm256_slli_epi32(high, 16 + shift),
                            0xaa);
}
PB_INLINE Ints pair_products(Ints pairs, const int16_t* x) {
  int32_t both;
  __builtin_memcpy(&both, x, sizeof(both));
  return _mm256_madd_epi16(pairs, _mm256_set1_epi32(both));
}
PB_INLINE Ints sub_ints(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
template <int kBits>
PB_INLINE Ints shift_right(Ints v) {
  return _mm256_srai_epi32(v, kBits);
}
PB_INLINE Ints load_unsigned(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
PB_INLINE Ints load_signed(const uint8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

PB_INLINE Quads masked_shift(Quads v, int by, uint8_t mask) {
  const __m256i shifted = by > 0   ? _mm256_slli_epi16(v, by)
                          : by < 0 ? _mm256_srli_epi16(v, -by)
                                   : v;
  return _mm256_and_si256(shifted, _mm256_set1_epi8(static_cast<char>(mask)));
}
PB_INLINE Quads or_quads(Quads a, Quads b) { return _mm256_or_si256(a, b); }
PB_INLINE Quads looked_up(const uint8_t* table, Quads v) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), v);
}
PB_INLINE Vec load_powers(const uint8_t* p) {
  const __m256i bits = _mm256_slli_epi32(load_unsigned(p), 23);
  return _mm256_castsi256_ps(_mm256_max_epi32(bits, _mm256_set1_epi32(0x00400000)));
}

#ifdef __AVXVNNI__
constexpr bool kNarrowSums = false;
using ByteSums = Ints;
PB_INLINE ByteSums no_sums() { return _mm256_setzero_si256(); }
PB_INLINE ByteSums add_products(ByteSums sum, Quads w, QuadFactor x) {
  return _mm256_dpbusd_avx_epi32(sum, w, x);
}
PB_INLINE Ints total(ByteSums sum) { return sum; }
PB_INLINE Ints times(ByteSums sum, Ints factor) { return _mm256_mullo_epi32(sum, factor); }
constexpr bool kSignedBytes = false;
using Bytes = Quads;
PB_INLINE Bytes bytes_of(Quads v) { return v; }
using WholeByteSums = ByteSums;
#else
// Sums of pairs of products have 16 bits. For w below 2^n, 2^(7 - n) products may be added before
// the sums are widened, and vpmaddubsw never saturates.
constexpr bool kNarrowSums = true;
using ByteSums = __m256i;
PB_INLINE ByteSums no_sums() { return _mm256_setzero_si256(); }
PB_INLINE ByteSums add_products(ByteSums sum, Quads w, QuadFactor x) {
  sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x));
  asm(""
      : "+x"(sum));  // keeps the compiler from adding products in pairs, which needs more registers
  return sum;
}
PB_INLINE Ints total(ByteSums sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
PB_INLINE Ints times(ByteSums sum, Ints factor) {
  return _mm256_madd_epi16(sum, _mm256_blend_epi16(factor, _mm256_slli_epi32(factor, 16), 0xaa));
}
// A zero point of 128 is subtracted from bytes of eight bits: their magnitudes are multiplied, and
// their signs are moved to the activations. 2 * 128 * 127 fits 16 bits, twice that does not.
constexpr bool kSignedBytes = true;
struct Bytes {
  Quads magnitudes, numbers;
};
PB_INLINE Bytes bytes_of(Quads v) {
  const Quads numbers = _mm256_xor_si256(v, _mm256_set1_epi8(-128));
  return {_mm256_abs_epi8(numbers), numbers};
}
struct WholeByteSums {
  Ints sum = _mm256_setzero_si256();
};
PB_INLINE WholeByteSums add_products(WholeByteSums sum, const Bytes& w, QuadFactor x) {
  const __m256i pairs = _mm256_maddubs_epi16(w.magnitudes, _mm256_sign_epi8(x, w.numbers));
  sum.sum = add_ints(sum.sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  asm("" : "+x"(sum.sum));  // keeps the compiler from adding products in pairs
  return sum;
}
PB_INLINE Ints total(const WholeByteSums& sum) { return sum.sum; }

// Words of 16 bits (gemm_words-inl.h), one pair per lane.
#define PB_WORD_PRODUCTS
using Words = __m256i;
PB_INLINE Words load_words(const int16_t* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}
// Returns a pair in all lanes.
PB_INLINE Words broadcast_words(const int16_t* pair) {
  int32_t both;
  __builtin_memcpy(&both, pair, sizeof(both));
  return _mm256_set1_epi32(both);
}
// Returns sum + the products of both words of each lane.
PB_INLINE Ints add_word_products(Ints sum, Words x, Words y) {
  sum = add_ints(sum, _mm256_madd_epi16(x, y));
  asm("" : "+x"(sum));  // keeps the compiler from adding products in pairs
  return sum;
}
// Stores the first and the second pairs of the lanes' quads, minus the zero point.
PB_INLINE void store_words(int16_t* first, int16_t* second, Quads v, int16_t zero_point) {
  const __m256i low = _mm256_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1,  //
                                       0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1);
  const __m256i high = _mm256_add_epi8(low, _mm256_set1_epi16(2));
  const __m256i zeros = _mm256_set1_epi16(zero_point);
  _mm256_store_si256(reinterpret_cast<__m256i*>(first),
                     _mm256_sub_epi16(_mm256_shuffle_epi8(v, low), zeros));
  _mm256_store_si256(reinterpret_cast<__m256i*>(second),
                     _mm256_sub_epi16(_mm256_shuffle_epi8(v, high), zeros));
}
// Widens a group of signed bytes.
PB_INLINE void widen_bytes(int16_t* to, const int8_t* from) {
#pragma GCC unroll 2
  for (int i = 0; i < 32; i += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + i), _mm256_cvtepi8_epi16(bytes));
  }
}
#endif

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
