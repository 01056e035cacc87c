// Whole numbers in groups: kGroup neighbours of a row share one f16 scale.
//
// The blocks of int8, int4, q5_0 and iq4_nl are those of GGUF (ggml's Q8_0, Q4_0, Q5_0 and IQ4_NL),
// so that its files load without loss. Those of int4_zp hold what GPTQ, AWQ and compressed-tensors
// have with zero points.
#pragma once

#include <cstdint>

namespace pb {

inline constexpr int kGroup = 32;

// Element i is values[i] * scale.
struct Int8Group {
  uint16_t scale;  // f16
  int8_t values[kGroup];
};
static_assert(sizeof(Int8Group) == 34);

// Elements i and i + 16 are (low nibble - 8) * scale and (high nibble - 8) * scale of pairs[i].
struct Int4Group {
  uint16_t scale;  // f16
  uint8_t pairs[kGroup / 2];
};
static_assert(sizeof(Int4Group) == 18);

// Elements i and i + 16 are (low nibble - zero) * scale and (high nibble - zero) * scale of
// pairs[i].
struct Int4ZpGroup {
  uint16_t scale;  // f16
  uint8_t zero;
  uint8_t unused;
  uint8_t pairs[kGroup / 2];
};
static_assert(sizeof(Int4ZpGroup) == 20);

// Elements i and i + 16 are (low nibble + 16 low bit - 16) * scale and (high nibble + 16 high bit -
// 16) * scale of pairs[i]; their fifth bits are bits i and i + 16 of those, lowest byte first.
struct Q5_0Group {
  uint16_t scale;  // f16
  uint8_t fifth_bits[kGroup / 8];
  uint8_t pairs[kGroup / 2];
};
static_assert(sizeof(Q5_0Group) == 22);

// The whole number that each code of iq4_nl stands for.
inline constexpr int8_t kIq4NlNumbers[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                             1,    13,   25,  38,  53,  69,  89,  113};

// Elements i and i + 16 are the numbers of pairs[i]'s low and high nibble times scale.
struct Iq4NlGroup {
  uint16_t scale;  // f16
  uint8_t pairs[kGroup / 2];
};
static_assert(sizeof(Iq4NlGroup) == 18);

// A group near to x (kGroup): int8 by its greatest magnitude; int4 by the scale, of several, with
// the least squared error. The scale of numbers above about 65504 times 127 (int8) or 7 (int4)
// is infinite; of numbers that are all below 2^-25 times that it is 0.
Int8Group quantise_int8(const float* x);
Int4Group quantise_int4(const float* x);

// x (kGroup) = the numbers that a group stands for, rounded to f32 once.
void dequantise(const Int8Group& group, float* x);
void dequantise(const Int4Group& group, float* x);
void dequantise(const Int4ZpGroup& group, float* x);
void dequantise(const Q5_0Group& group, float* x);
void dequantise(const Iq4NlGroup& group, float* x);

}  // namespace pb
