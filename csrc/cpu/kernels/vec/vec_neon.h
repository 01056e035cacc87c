// Vectors of four floats: NEON of 64-bit ARM with the dot product of bytes (sdot), and with i8mm
// and bf16 if the file is compiled for them. vec_scalar.h describes each function.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#define PB_INLINE inline __attribute__((always_inline))

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kWidth = 4;
constexpr int kRegisters = 32;
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
constexpr bool kBf16Products = true;
#else
constexpr bool kBf16Products = false;
#endif
constexpr bool kByteProducts = true;

using Vec = float32x4_t;

PB_INLINE int32x4_t lane_numbers() {
  const int32_t numbers[kWidth] = {0, 1, 2, 3};
  return vld1q_s32(numbers);
}
PB_INLINE uint32x4_t first_lanes(int n) { return vcltq_s32(lane_numbers(), vdupq_n_s32(n)); }

PB_INLINE Vec set1(float x) { return vdupq_n_f32(x); }
PB_INLINE Vec zero() { return vdupq_n_f32(0.0f); }
PB_INLINE Vec load(const float* p) { return vld1q_f32(p); }
PB_INLINE void store(float* p, Vec v) { vst1q_f32(p, v); }
PB_INLINE Vec load_n(const float* p, int n) {
  float lanes[kWidth] = {};
  for (int i = 0; i < kWidth; ++i) {
    if (i < n) lanes[i] = p[i];
  }
  return load(lanes);
}
PB_INLINE void store_n(float* p, Vec v, int n) {
  float lanes[kWidth];
  store(lanes, v);
  for (int i = 0; i < kWidth; ++i) {
    if (i < n) p[i] = lanes[i];
  }
}

PB_INLINE Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
PB_INLINE Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
PB_INLINE Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
PB_INLINE Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
PB_INLINE Vec mul_add(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
PB_INLINE Vec neg_mul_add(Vec a, Vec b, Vec c) { return vfmsq_f32(c, a, b); }
PB_INLINE void hold(Vec&) {}
PB_INLINE Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
  return vbslq_f32(vcltq_f32(a, b), yes, no);
}
// max and min do not use fmax and fmin, which return NaN if either operand is NaN.
PB_INLINE Vec max(Vec a, Vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
PB_INLINE Vec min(Vec a, Vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
PB_INLINE Vec abs(Vec a) { return vabsq_f32(a); }
PB_INLINE Vec sqrt(Vec a) { return vsqrtq_f32(a); }
PB_INLINE Vec keep_lanes(Vec v, int begin, int end, Vec other) {
  return vbslq_f32(vbicq_u32(first_lanes(end), first_lanes(begin)), v, other);
}

PB_INLINE float reduce_add(Vec v) {
  const float32x2_t two = vadd_f32(vget_low_f32(v), vget_high_f32(v));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
PB_INLINE float reduce_max(Vec v) {
  const Vec two = max(v, vextq_f32(v, v, 2));
  return vgetq_lane_f32(max(two, vextq_f32(two, two, 1)), 0);
}

PB_INLINE Vec scale_by_power_of_2(Vec p, Vec n) {
  const int32x4_t whole = vcvtnq_s32_f32(n);
  const int32x4_t half = vshrq_n_s32(whole, 1);
  const int32x4_t bias = vdupq_n_s32(127);
  const int32x4_t first = vshlq_n_s32(vaddq_s32(half, bias), 23);
  const int32x4_t second = vshlq_n_s32(vaddq_s32(vsubq_s32(whole, half), bias), 23);
  return mul(mul(p, vreinterpretq_f32_s32(first)), vreinterpretq_f32_s32(second));
}

PB_INLINE Vec add_to_exponent(Vec p, Vec lowest) {
  const uint32x4_t n = vshlq_n_u32(vreinterpretq_u32_f32(lowest), 23);
  return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(p), n));
}
PB_INLINE bool all_at_least(Vec a, float b) {
  return vminvq_u32(vcgeq_f32(a, vdupq_n_f32(b))) != 0;
}

PB_INLINE void store_f16(uint16_t* p, Vec v) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
PB_INLINE Vec load_f16(const uint16_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

// Pairs of e4m3 numbers, one pair per lane, multiplied exactly by 1 / kFp8Fraction: this is the
// value of their bits as f16 numbers, also of subnormal ones.
constexpr float kFp8Fraction = 256.0f;
using Fp8Pairs = int16x4_t;
PB_INLINE Fp8Pairs load_fp8_pairs(const uint8_t* p) { return vreinterpret_s16_u8(vld1_u8(p)); }
PB_INLINE Vec odd_of_fp8(Fp8Pairs p) {
  const int16x4_t sign_and_rest = vdup_n_s16(static_cast<int16_t>(0xbf80));
  return vcvt_f32_f16(vreinterpret_f16_s16(vand_s16(vshr_n_s16(p, 1), sign_and_rest)));
}
PB_INLINE Vec even_of_fp8(Fp8Pairs p) { return odd_of_fp8(vshl_n_s16(p, 8)); }

// Loads four bytes into the low half.
PB_INLINE uint8x8_t load_four(const void* p) {
  uint32_t four;
  __builtin_memcpy(&four, p, sizeof(four));
  return vreinterpret_u8_u32(vdup_n_u32(four));
}
PB_INLINE Vec load_int8(const int8_t* p) {
  const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(load_four(p)));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
using Pairs = uint32x4_t;
PB_INLINE Pairs load_pairs(const uint16_t* p) { return vreinterpretq_u32_u16(vld1q_u16(p)); }
PB_INLINE Vec even(Pairs p) { return vreinterpretq_f32_u32(vshlq_n_u32(p, 16)); }
PB_INLINE Vec odd(Pairs p) { return vreinterpretq_f32_u32(vandq_u32(p, vdupq_n_u32(0xffff0000u))); }
PB_INLINE Vec load_bf16(const uint16_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
PB_INLINE Vec round_to_bf16(Vec v) {
  const uint32x4_t u = vreinterpretq_u32_f32(v);
  const uint32x4_t lowest = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint32x4_t up = vaddq_u32(u, vaddq_u32(lowest, vdupq_n_u32(0x7fff)));
  const Vec rounded = vreinterpretq_f32_u32(vandq_u32(up, vdupq_n_u32(0xffff0000u)));
  return vbslq_f32(vceqq_f32(v, v), rounded, v);
}
PB_INLINE void store_bf16_n(uint16_t* p, Vec rounded, int n) {
  const uint16x4_t narrow = vshrn_n_u32(vreinterpretq_u32_f32(rounded), 16);
  if (n >= kWidth) {
    vst1_u16(p, narrow);
    return;
  }
  uint16_t lanes[kWidth];
  vst1_u16(lanes, narrow);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

PB_INLINE Vec max_or_nan(Vec a, Vec b) {
  return vreinterpretq_f32_s32(vmaxq_s32(vreinterpretq_s32_f32(a), vreinterpretq_s32_f32(b)));
}
PB_INLINE float reduce_max_or_nan(Vec v) {
  return vgetq_lane_f32(vreinterpretq_f32_s32(vdupq_n_s32(vmaxvq_s32(vreinterpretq_s32_f32(v)))),
                        0);
}

using Ints = int32x4_t;
PB_INLINE Ints set1_int(int32_t x) { return vdupq_n_s32(x); }
PB_INLINE Ints add_ints(Ints a, Ints b) { return vaddq_s32(a, b); }
PB_INLINE Ints sub_ints(Ints a, Ints b) { return vsubq_s32(a, b); }
template <int kBits>
PB_INLINE Ints shift_right(Ints v) {
  return vshlq_s32(v, set1_int(-kBits));
}
PB_INLINE int32_t reduce_add_ints(Ints v) { return vaddvq_s32(v); }
PB_INLINE Ints to_nearest(Vec v) { return vcvtnq_s32_f32(v); }
PB_INLINE Vec to_float(Ints v) { return vcvtq_f32_s32(v); }
PB_INLINE void store_bytes(int8_t* p, Ints v) {
  const int16x4_t words = vmovn_s32(v);
  const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
  const int32_t four = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
  __builtin_memcpy(p, &four, sizeof(four));
}

PB_INLINE Ints set1_pair(int16_t low, int16_t high) {
  return set1_int((low & 0xffff) | (int32_t{high} * 65536));
}
PB_INLINE Ints pair_up(Ints low, Ints high, int shift) {
  return vbslq_s32(vdupq_n_u32(0xffffu), vshlq_s32(low, set1_int(shift)),
                   vshlq_s32(high, set1_int(16 + shift)));
}
PB_INLINE Ints pair_products(Ints pairs, const int16_t* x) {
  const Ints low = vshrq_n_s32(vshlq_n_s32(pairs, 16), 16);
  return vmlaq_n_s32(vmulq_n_s32(low, x[0]), vshrq_n_s32(pairs, 16), x[1]);
}
PB_INLINE Ints load_unsigned(const uint8_t* p) {
  return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(load_four(p)))));
}
PB_INLINE Ints load_signed(const uint8_t* p) {
  return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load_four(p)))));
}

using Quads = uint8x16_t;
PB_INLINE Quads load_quads(const uint8_t* p) { return vld1q_u8(p); }
PB_INLINE Quads low_nibbles(Quads v) { return vandq_u8(v, vdupq_n_u8(15)); }
PB_INLINE Quads high_nibbles(Quads v) { return vshrq_n_u8(v, 4); }
using QuadFactor = int8x16_t;
PB_INLINE QuadFactor quad_factor(const int8_t* p) {
  int32_t quad;
  __builtin_memcpy(&quad, p, sizeof(quad));
  return vreinterpretq_s8_s32(vdupq_n_s32(quad));
}

PB_INLINE Quads masked_shift(Quads v, int by, uint8_t mask) {
  return vandq_u8(vshlq_u8(v, vdupq_n_s8(static_cast<int8_t>(by))), vdupq_n_u8(mask));
}
PB_INLINE Quads or_quads(Quads a, Quads b) { return vorrq_u8(a, b); }
PB_INLINE Quads looked_up(const uint8_t* table, Quads v) { return vqtbl1q_u8(vld1q_u8(table), v); }
PB_INLINE Vec load_powers(const uint8_t* p) {
  const Ints bits = vshlq_n_s32(load_unsigned(p), 23);
  return vreinterpretq_f32_s32(vmaxq_s32(bits, set1_int(0x00400000)));
}

constexpr bool kNarrowSums = false;
using ByteSums = Ints;
PB_INLINE ByteSums no_sums() { return set1_int(0); }
PB_INLINE Ints total(ByteSums sum) { return sum; }
PB_INLINE Ints times(ByteSums sum, Ints factor) { return vmulq_s32(sum, factor); }
using Bytes = Quads;
#ifdef __ARM_FEATURE_MATMUL_INT8
PB_INLINE ByteSums add_products(ByteSums sum, Quads w, QuadFactor x) {
  return vusdotq_s32(sum, w, x);
}
constexpr bool kSignedBytes = false;
PB_INLINE Bytes bytes_of(Quads v) { return v; }
using WholeByteSums = ByteSums;
#else
// There is no product of unsigned and signed bytes, but bytes of few bits are non-negative signed
// bytes, too.
PB_INLINE ByteSums add_products(ByteSums sum, Quads w, QuadFactor x) {
  return vdotq_s32(sum, vreinterpretq_s8_u8(w), x);
}
// A zero point of 128 is subtracted from bytes of eight bits, so that they are signed bytes.
constexpr bool kSignedBytes = true;
PB_INLINE Bytes bytes_of(Quads v) { return veorq_u8(v, vdupq_n_u8(128)); }
struct WholeByteSums {
  ByteSums sum = no_sums();
};
PB_INLINE WholeByteSums add_products(WholeByteSums sum, Bytes w, QuadFactor x) {
  sum.sum = add_products(sum.sum, w, x);
  return sum;
}
PB_INLINE Ints total(const WholeByteSums& sum) { return total(sum.sum); }
#endif

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
