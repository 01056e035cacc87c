// The expansion of groups of super-blocks and of formats with a min: Q2_K to Q6_K, Q4_1, Q5_1.
//
// A group's whole numbers are multiplied by d scale, which has 17 bits (19 in Q6_K), so that all
// products are exact in f32. The sum of a product and the min (-d_min min, or m) is rounded to f32
// once, as on CPUs, and then to bf16.
#pragma once

#include "cuda/weights/expand.cuh"

namespace pb::cuda {
namespace {

// Returns a whole number below 2^23 as f32.
__device__ __forceinline__ float small_whole(unsigned v) {
  return __uint_as_float(v | 0x4b000000u) - 8388608.0f;
}

// Numbers with 4 bits in the values and kHighBits (0 or 1) in the scales, times a scale, plus an
// addend.
template <int kHighBits>
struct NumbersAbove {
  float scale;
  float minus_min;
  unsigned highs;

  // Has the contract of GroupOf<Int4Format>::pairs.
  __device__ __forceinline__ void pairs(unsigned bytes, int j, unsigned& low,
                                        unsigned& high) const {
    const unsigned first = bytes << 12;  // byte 0 in bits 12 to 19
    const unsigned second = bytes << 4;  // byte 1 in bits 12 to 19
    unsigned bits[4] = {first & 0xf000u, second & 0xf000u, first & 0xf0000u, second & 0xf0000u};
    if constexpr (kHighBits > 0) {
      const unsigned four = highs >> 4 * j;
      bits[0] |= four << 16 & 0x10000u;
      bits[1] |= four << 15 & 0x10000u;
      bits[2] |= four << 18 & 0x100000u;
      bits[3] |= four << 17 & 0x100000u;
    }
    low = bf16_pair(of_low(bits[0]), of_low(bits[1]));
    high = bf16_pair(of_high(bits[2]), of_high(bits[3]));
  }
  __device__ __forceinline__ float at(const unsigned char* values, int at) const {
    const int of_pair = at % 16;
    const unsigned high = highs >> (of_pair / 2 * 4 + at / 16 * 2 + of_pair % 2) & 1u;
    return __fmaf_rn(small_whole(nibble(values, at) | high << 4), scale, minus_min);
  }

 private:
  __device__ __forceinline__ float of_low(unsigned bits) const {
    return __fmaf_rn(__uint_as_float(bits | 0x45000000u) - 2048.0f, scale, minus_min);
  }
  __device__ __forceinline__ float of_high(unsigned bits) const {
    return __fmaf_rn(__uint_as_float(bits | 0x43000000u) - 128.0f, scale, minus_min);
  }
};

// The groups of Q4_K and Q5_K.
template <typename Format, int kHighBits>
struct GroupWithMin : NumbersAbove<kHighBits> {
  struct Scales {
    unsigned d;              // d, and d_min in the high half
    unsigned char bytes[2];  // the bytes with scale and min, which share 4 bits with a neighbour's
    unsigned highs;
  };
  static __device__ __forceinline__ Scales load(const unsigned char* scales, int group,
                                                const unsigned char*, int) {
    const unsigned char* const tile = scales + group / 8 * Format::kScaleBytes;
    const int in_tile = group % 8;
    const unsigned char* const of_group = tile + 4 + in_tile / 2 * 3 + in_tile % 2;
    Scales s{*reinterpret_cast<const unsigned*>(tile), {of_group[0], of_group[1]}, 0};
    if constexpr (kHighBits > 0) {
      s.highs = *reinterpret_cast<const unsigned*>(tile + 16 + in_tile * 4);
    }
    return s;
  }

  __device__ __forceinline__ GroupWithMin(const Scales& s, int is_odd) {
    const unsigned both = (s.bytes[0] | unsigned{s.bytes[1]} << 8) >> 4 * is_odd;
    this->scale = f16_value(static_cast<uint16_t>(s.d)) * small_whole(both & 63u);
    this->minus_min = -f16_value(static_cast<uint16_t>(s.d >> 16)) * small_whole(both >> 6 & 63u);
    this->highs = s.highs;
  }
  static __device__ __forceinline__ float number(const unsigned char* values, int at,
                                                 const Scales& s, int is_odd) {
    return GroupWithMin(s, is_odd).at(values, at);
  }
};

// The groups of Q4_1 and Q5_1.
template <typename Format, int kHighBits>
struct GroupPlusMin : NumbersAbove<kHighBits> {
  struct Scales {
    unsigned d;  // d, and m in the high half
    unsigned highs;
  };
  static __device__ __forceinline__ Scales load(const unsigned char* scales, int group,
                                                const unsigned char*, int) {
    const unsigned char* const tile = scales + group / 8 * Format::kScaleBytes;
    const int in_tile = group % 8;
    Scales s{*reinterpret_cast<const unsigned*>(tile + in_tile * 4), 0};
    if constexpr (kHighBits > 0) {
      s.highs = *reinterpret_cast<const unsigned*>(tile + 32 + in_tile * 4);
    }
    return s;
  }

  __device__ __forceinline__ GroupPlusMin(const Scales& s, int) {
    this->scale = f16_value(static_cast<uint16_t>(s.d));
    this->minus_min = f16_value(static_cast<uint16_t>(s.d >> 16));
    this->highs = s.highs;
  }
  static __device__ __forceinline__ float number(const unsigned char* values, int at,
                                                 const Scales& s, int is_odd) {
    return GroupPlusMin(s, is_odd).at(values, at);
  }
};

template <>
struct GroupOf<Q4_1Format> : GroupPlusMin<Q4_1Format, 0> {
  __device__ __forceinline__ GroupOf(const Scales& s, int is_odd) : GroupPlusMin(s, is_odd) {}
};
template <>
struct GroupOf<Q5_1Format> : GroupPlusMin<Q5_1Format, 1> {
  __device__ __forceinline__ GroupOf(const Scales& s, int is_odd) : GroupPlusMin(s, is_odd) {}
};

template <>
struct GroupOf<Q4KFormat> : GroupWithMin<Q4KFormat, 0> {
  __device__ __forceinline__ GroupOf(const Scales& s, int is_odd) : GroupWithMin(s, is_odd) {}
};
template <>
struct GroupOf<Q5KFormat> : GroupWithMin<Q5KFormat, 1> {
  __device__ __forceinline__ GroupOf(const Scales& s, int is_odd) : GroupWithMin(s, is_odd) {}
};

template <>
struct GroupOf<Q6KFormat> {
  struct Scales {
    uint16_t d;
    // The scale of the first 16 numbers, and in the high byte that of the others.
    uint16_t both;
    unsigned highs[2];  // those of the first four pairs of pairs, and those of the others
  };
  static __device__ __forceinline__ Scales load(const unsigned char* scales, int group,
                                                const unsigned char* tail, int in_tail) {
    const unsigned char* const tile = scales + group / 8 * Q6KFormat::kScaleBytes;
    const int in_tile = group % 8;
    const uint2 highs = *reinterpret_cast<const uint2*>(tile + 16 + in_tile * 8);
    return {reinterpret_cast<const uint16_t*>(tail)[in_tail / 8],
            reinterpret_cast<const uint16_t*>(tile)[in_tile],
            {highs.x, highs.y}};
  }

  float scales[2];   // of the first 16 numbers, of the others
  float offsets[2];  // subtract 2^7 + 32
  unsigned highs[2];
  __device__ __forceinline__ GroupOf(const Scales& s, int) : highs{s.highs[0], s.highs[1]} {
    const float d = f16_value(s.d);
    // The sign bit is inverted, which adds 128.
    scales[0] = d * (small_whole((s.both & 255u) ^ 128u) - 128.0f);
    scales[1] = d * (small_whole(unsigned{s.both} >> 8 ^ 128u) - 128.0f);
    offsets[0] = -160.0f * scales[0];
    offsets[1] = -160.0f * scales[1];
  }

  // Has the contract of GroupOf<Int4Format>::pairs.
  __device__ __forceinline__ void pairs(unsigned bytes, int j, unsigned& low,
                                        unsigned& high) const {
    const unsigned eight = (j < 4 ? highs[0] : highs[1]) >> j % 4 * 8;
    low = bf16_pair(element<0>((bytes << 16 & 0xf0000u) | (eight << 20 & 0x300000u)),
                    element<0>((bytes << 8 & 0xf0000u) | (eight << 18 & 0x300000u)));
    high = bf16_pair(element<1>((bytes << 12 & 0xf0000u) | (eight << 16 & 0x300000u)),
                     element<1>((bytes << 4 & 0xf0000u) | (eight << 14 & 0x300000u)));
  }
  static __device__ __forceinline__ float number(const unsigned char* values, int at,
                                                 const Scales& s, int is_odd) {
    const int of_pair = at % 16;
    const unsigned eight = s.highs[of_pair / 8] >> of_pair % 8 / 2 * 8;
    const unsigned high = eight >> (at / 16 * 4 + of_pair % 2 * 2) & 3u;
    const float whole = small_whole(nibble(values, at) | high << 4) - 32.0f;
    return GroupOf(s, is_odd).scales[at / 16] * whole;
  }

 private:
  template <int kHalf>
  __device__ __forceinline__ float element(unsigned bits) const {
    return __fmaf_rn(__uint_as_float(bits | 0x43000000u), scales[kHalf], offsets[kHalf]);
  }
};

// Numbers with all of their bits in the scales, 2 bits plus kHighBits (0 or 1): each is multiplied
// by the scale of its half, plus an addend.
template <int kHighBits>
struct SmallNumbers {
  float scales[2];
  float addends[2];
  unsigned lows[2];  // those of the first four pairs of pairs, and those of the others
  unsigned highs;

  // Has the contract of GroupOf<Int4Format>::pairs.
  __device__ __forceinline__ void pairs(unsigned, int j, unsigned& low, unsigned& high) const {
    low = bf16_pair(element(j, 0), element(j, 1));
    high = bf16_pair(element(j, 2), element(j, 3));
  }
  // Returns element i of the four elements of pair of pairs j.
  __device__ __forceinline__ float element(int j, int i) const {
    unsigned whole = (j < 4 ? lows[0] : lows[1]) >> (j % 4 * 8 + i * 2) & 3u;
    if constexpr (kHighBits > 0) whole |= (highs >> (4 * j + i) & 1u) << 2;
    return __fmaf_rn(small_whole(whole), scales[i / 2], addends[i / 2]);
  }
  __device__ __forceinline__ float at(int at) const {
    return element(at % 16 / 2, at / 16 * 2 + at % 2);
  }
};

template <>
struct GroupOf<Q2KFormat> : SmallNumbers<0> {
  struct Scales {
    unsigned d;     // d, and d_min in the high half
    uint16_t both;  // a byte for each half: scale in the low nibble, min in the high one
    unsigned lows[2];
  };
  static __device__ __forceinline__ Scales load(const unsigned char* scales, int group,
                                                const unsigned char* tail, int in_tail) {
    const unsigned char* const tile = scales + group / 8 * Q2KFormat::kScaleBytes;
    const int in_tile = group % 8;
    const uint2 lows = *reinterpret_cast<const uint2*>(tile + 16 + in_tile * 8);
    return {reinterpret_cast<const unsigned*>(tail)[in_tail / 8],
            reinterpret_cast<const uint16_t*>(tile)[in_tile],
            {lows.x, lows.y}};
  }

  __device__ __forceinline__ GroupOf(const Scales& s, int) {
    const float d = f16_value(static_cast<uint16_t>(s.d));
    const float minus_d_min = -f16_value(static_cast<uint16_t>(s.d >> 16));
    const unsigned both = s.both;
    scales[0] = d * small_whole(both & 15u);
    scales[1] = d * small_whole(both >> 8 & 15u);
    addends[0] = minus_d_min * small_whole(both >> 4 & 15u);
    addends[1] = minus_d_min * small_whole(both >> 12);
    lows[0] = s.lows[0];
    lows[1] = s.lows[1];
    highs = 0;
  }
  static __device__ __forceinline__ float number(const unsigned char*, int at, const Scales& s,
                                                 int is_odd) {
    return GroupOf(s, is_odd).SmallNumbers::at(at);
  }
};

template <>
struct GroupOf<Q3KFormat> : SmallNumbers<1> {
  struct Scales {
    uint16_t d;
    unsigned char bytes[2];  // the bytes with both scales, which share 4 bits with a neighbour's
    unsigned lows[2];
    unsigned highs;
  };
  static __device__ __forceinline__ Scales load(const unsigned char* scales, int group,
                                                const unsigned char*, int) {
    const unsigned char* const tile = scales + group / 8 * Q3KFormat::kScaleBytes;
    const int in_tile = group % 8;
    const unsigned char* const of_group = tile + 4 + in_tile / 2 * 3 + in_tile % 2;
    const uint2 lows = *reinterpret_cast<const uint2*>(tile + 16 + in_tile * 8);
    return {*reinterpret_cast<const uint16_t*>(tile),
            {of_group[0], of_group[1]},
            {lows.x, lows.y},
            *reinterpret_cast<const unsigned*>(tile + 80 + in_tile * 4)};
  }

  __device__ __forceinline__ GroupOf(const Scales& s, int is_odd) {
    const unsigned both = (s.bytes[0] | unsigned{s.bytes[1]} << 8) >> 4 * is_odd;
    const float d = f16_value(s.d);
    scales[0] = d * (small_whole(both & 63u) - 31.0f);
    scales[1] = d * (small_whole(both >> 6 & 63u) - 31.0f);
    addends[0] = -4.0f * scales[0];
    addends[1] = -4.0f * scales[1];
    lows[0] = s.lows[0];
    lows[1] = s.lows[1];
    highs = s.highs;
  }
  static __device__ __forceinline__ float number(const unsigned char*, int at, const Scales& s,
                                                 int is_odd) {
    return GroupOf(s, is_odd).SmallNumbers::at(at);
  }
};

}  // namespace
}  // namespace pb::cuda
