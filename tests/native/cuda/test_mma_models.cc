// The emulator's mma, by each model, against the arithmetic written once more in whole numbers,
// from the description in MMA-Sim (arXiv:2511.10909); and wgmma against mma.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "cuda/device_code/swizzle.h"
#include "cuda/device_code/wgmma.h"
#include "cuda_fixture.h"

namespace pb::cuda {
namespace {

struct FragmentParams {
  const unsigned* a;  // (32, 4): the words of each lane
  const unsigned* b;  // (32, 2)
  float* c;           // (32, 4): read and written
};

template <bool kHalf>
__device__ __forceinline__ void multiply_fragments(const FragmentParams& p) {
  const unsigned lane = threadIdx.x;
  unsigned a[4];
  unsigned b[2];
  float c[4];
  for (int i = 0; i < 4; ++i) a[i] = p.a[lane * 4 + i];
  for (int i = 0; i < 2; ++i) b[i] = p.b[lane * 2 + i];
  for (int i = 0; i < 4; ++i) c[i] = p.c[lane * 4 + i];
  if constexpr (kHalf) {
    mma_f16(c, a, b);
  } else {
    mma_bf16(c, a, b);
  }
  for (int i = 0; i < 4; ++i) p.c[lane * 4 + i] = c[i];
}

PB_KERNEL(mma_bf16_fragments, FragmentParams, 32) { multiply_fragments<false>(p); }
PB_KERNEL(mma_f16_fragments, FragmentParams, 32) { multiply_fragments<true>(p); }

struct TileParams {
  const __nv_bfloat16* a;  // (64, 64)
  const __nv_bfloat16* b;  // (128, 64)
  float* by_wgmma;         // (64, 128): a b^T
  float* by_mma;           // (64, 128)
};

// Where number `column` of row `row` lies in an operand, in bf16s from its start.
__device__ __forceinline__ int place_of(int row, int column) {
  return swizzled<128>(row, column / 8) / 2 + column % 8;
}

PB_KERNEL(both_products, TileParams, 128) {
  SharedArrays arrays;
  __nv_bfloat16* const a = arrays.take<__nv_bfloat16>(64 * 64, kWgmmaAlignment);
  __nv_bfloat16* const b = arrays.take<__nv_bfloat16>(128 * 64, kWgmmaAlignment);
  const int t = static_cast<int>(threadIdx.x);
  for (int i = t; i < 64 * 64; i += 128) a[place_of(i / 64, i % 64)] = p.a[i];
  for (int i = t; i < 128 * 64; i += 128) b[place_of(i / 64, i % 64)] = p.b[i];
  fence_for_async_proxy();
  __syncthreads();
  const int row = t / 32 * 16 + t % 32 / 4;
  const int column = t % 4 * 2;

  float sums[64] = {};
  wgmma_fence(sums);
  for (int k = 0; k < 64; k += 16) {
    wgmma_m64n128k16(sums, wgmma_operand(a + k), wgmma_operand(b + k));
    wgmma_commit();
  }
  wgmma_wait<1>(sums);
  wgmma_wait<0>(sums);
  for (int i = 0; i < 64; ++i) {
    p.by_wgmma[(row + i / 2 % 2 * 8) * 128 + i / 4 * 8 + column + i % 2] = sums[i];
  }

  const auto pair = [](const __nv_bfloat16* tile, int r, int k) {
    return unsigned{__bfloat16_as_ushort(tile[place_of(r, k)])} |
           unsigned{__bfloat16_as_ushort(tile[place_of(r, k + 1)])} << 16;
  };
  for (int j = 0; j < 128; j += 8) {
    float c[4] = {};
    for (int k = 0; k < 64; k += 16) {
      const unsigned fa[4] = {pair(a, row, k + column), pair(a, row + 8, k + column),
                              pair(a, row, k + column + 8), pair(a, row + 8, k + column + 8)};
      const unsigned fb[2] = {pair(b, j + t % 32 / 4, k + column),
                              pair(b, j + t % 32 / 4, k + column + 8)};
      mma_bf16(c, fa, fb);
    }
    for (int i = 0; i < 4; ++i) p.by_mma[(row + i / 2 * 8) * 128 + j + column + i % 2] = c[i];
  }
}

}  // namespace
}  // namespace pb::cuda

namespace pb::test {
namespace {

using Whole = __int128;

// significand * 2^(exponent - fraction_bits), of a format's bits. No exponent is below zero's.
struct Parts {
  Whole significand;
  int exponent;
};

Parts parts(unsigned bits, int fraction_bits, int exponent_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int field = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const Whole fraction = bits & ((1U << fraction_bits) - 1);
  const bool is_negative = (bits >> (fraction_bits + exponent_bits) & 1U) != 0;
  const Whole magnitude = field == 0 ? fraction : fraction + (Whole{1} << fraction_bits);
  const int exponent = magnitude == 0 ? -4000 : (field == 0 ? 1 : field) - bias;
  return {is_negative ? -magnitude : magnitude, exponent};
}

// value * 2^up, what is behind the point cut off.
Whole scaled(Whole value, int up) {
  if (up >= 0) return value << up;
  return up < -120 ? 0 : value / (Whole{1} << -up);
}

// What a tensor core makes of products and the sum c so far: each cut to `bits` below the greatest
// exponent among those that are not zero, added exactly, cut to f32.
float added(const std::vector<std::array<Parts, 2>>& factors, int fraction_bits, float c,
            int bits) {
  const Parts start = parts(std::bit_cast<unsigned>(c), 23, 8);
  int greatest = start.exponent;
  for (const auto& [x, y] : factors) greatest = std::max(greatest, x.exponent + y.exponent);
  Whole sum = scaled(start.significand, bits - 23 - (greatest - start.exponent));
  for (const auto& [x, y] : factors) {
    sum += scaled(x.significand * y.significand,
                  bits - 2 * fraction_bits - (greatest - x.exponent - y.exponent));
  }
  int exponent = greatest - bits;
  while (sum >= (Whole{1} << 24) || sum <= -(Whole{1} << 24) || exponent < -149) {
    sum /= 2;
    ++exponent;
  }
  return std::ldexp(static_cast<float>(static_cast<int64_t>(sum)), exponent);
}

struct Fragments {
  std::vector<unsigned> a = std::vector<unsigned>(128);
  std::vector<unsigned> b = std::vector<unsigned>(64);
  std::vector<float> c = std::vector<float>(128);
};

// Numbers of like size, or of very different ones; some are zero or subnormal. In one round of
// three sums are subnormal too: those of f16, whose products are not, because a is zero.
Fragments random_fragments(Numbers& numbers, bool is_half, int round) {
  const float spread = static_cast<float>(round % 4) * (is_half ? 2.0f : 4.0f);
  const auto sample = [&] { return numbers.next() * std::exp2(std::floor(numbers.next(spread))); };
  const bool is_tiny = round % 3 == 2;
  const auto word = [&](float scale) {
    unsigned bits = 0;
    for (int half = 0; half < 2; ++half) {
      const float sampled = round % 5 == 4 && numbers.next() > 1.0f ? 0.0f : sample() * scale;
      const float v = is_half ? std::clamp(sampled, -6e4f, 6e4f) : sampled;
      const unsigned own = is_half ? __half_as_ushort(__float2half_rn(v))
                                   : __bfloat16_as_ushort(__float2bfloat16_rn(v));
      bits |= own << 16 * half;
    }
    return bits;
  };
  Fragments fragments;
  for (unsigned& w : fragments.a) w = word(!is_tiny ? 1.0f : is_half ? 0.0f : 0x1p-66f);
  for (unsigned& w : fragments.b) w = word(is_tiny && !is_half ? 0x1p-66f : 1.0f);
  for (float& v : fragments.c) v = round % 2 == 1 ? sample() * (is_tiny ? 0x1p-132f : 1.0f) : 0.0f;
  return fragments;
}

std::vector<float> multiply_on_device(const Fragments& fragments, bool is_half) {
  const DeviceArray<unsigned> a(fragments.a);
  const DeviceArray<unsigned> b(fragments.b);
  DeviceArray<float> c(fragments.c);
  launch(is_half ? "mma_f16_fragments" : "mma_bf16_fragments", dim3(1), dim3(32), 0,
         cuda::FragmentParams{a.get(), b.get(), c.get()});
  return c.host();
}

// The layout of fragments by the PTX ISA's formulas for m16n8k16.
std::vector<float> multiply_in_whole_numbers(const Fragments& fragments, bool is_half,
                                             MmaModel model) {
  const int fraction_bits = is_half ? 10 : 7;
  const int exponent_bits = is_half ? 5 : 8;
  std::array<std::array<Parts, 16>, 16> a;
  std::array<std::array<Parts, 16>, 8> b;  // (column, k)
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned group = lane >> 2;
    const unsigned in_group = lane % 4;
    const auto of_word = [&](unsigned word, unsigned half) {
      return parts(word >> 16 * half & 0xffffU, fraction_bits, exponent_bits);
    };
    for (unsigned i = 0; i < 8; ++i) {
      const unsigned row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
      const unsigned k = in_group * 2 + (i & 1U) + (i >= 4 ? 8 : 0);
      a[row][k] = of_word(fragments.a[lane * 4 + i / 2], i % 2);
    }
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned k = in_group * 2 + (i & 1U) + (i >= 2 ? 8 : 0);
      b[group][k] = of_word(fragments.b[lane * 2 + i / 2], i % 2);
    }
  }
  std::vector<float> out(128);
  for (unsigned lane = 0; lane < 32; ++lane) {
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = i < 2 ? lane >> 2 : (lane >> 2) + 8;
      const unsigned column = lane % 4 * 2 + (i & 1U);
      std::vector<std::array<Parts, 2>> factors;
      for (unsigned k = 0; k < 16; ++k) factors.push_back({a[row][k], b[column][k]});
      float sum = fragments.c[lane * 4 + i];
      if (model == MmaModel::kHopper) {
        sum = added(factors, fraction_bits, sum, 25);
      } else {
        sum = added({factors.begin(), factors.begin() + 8}, fraction_bits, sum, 24);
        sum = added({factors.begin() + 8, factors.end()}, fraction_bits, sum, 24);
      }
      out[lane * 4 + i] = sum;
    }
  }
  return out;
}

TEST(mma_adds_as_the_models_say) {
  Numbers numbers(5);
  for (const bool is_half : {false, true}) {
    for (int round = 0; round < 100; ++round) {
      const Fragments fragments = random_fragments(numbers, is_half, round);
      for (const MmaModel model : {MmaModel::kAmpere, MmaModel::kHopper}) {
        set_order(0, model);
        EXPECT(same_bits(multiply_on_device(fragments, is_half),
                         multiply_in_whole_numbers(fragments, is_half, model)));
      }
    }
  }
}

// Numbers by hand: a row of a by a column of b, of bf16, onto c. All rows and columns are the same.
struct Small {
  float a[2];  // the others are zero
  float b[2];
  float c;
  float sum;
};

// As an H100 has them: kernel_bits' cases with subnormal sums, and with zeros beside large numbers.
TEST(mma_cuts_what_is_below_f32_and_zeros_cut_nothing) {
  for (const Small& is : {Small{{0x1p-70f, 0.0f}, {0x1.8p-79f, 0.0f}, 0.0f, 0x1p-149f},
                          Small{{0x1p-70f, 0.0f}, {-0x1.8p-79f, 0.0f}, 0.0f, -0x1p-149f},
                          Small{{0x1p-70f, 0.0f}, {-0x1.8p-80f, 0.0f}, 0.0f, 0.0f},
                          Small{{0x1p-70f, 0x1p-70f}, {0x1p-80f, 0x1p-80f}, 0.0f, 0x1p-149f},
                          Small{{0x1p-70f, 0.0f}, {0x1p-50f, 1.0f}, 0x1p-149f, 0x1p-120f},
                          Small{{0x1p-30f, 0.0f}, {0x1p-30f, 0x1p100f}, 0x1p-40f, 0x1.00001p-40f},
                          Small{{0x1p-30f, 0.0f}, {0x1p-30f, 0x1p-100f}, 0x1p-80f, 0x1.00001p-60f},
                          Small{{0.0f, 0.0f}, {0x1p100f, 0x1p100f}, 0x1p-60f, 0x1p-60f}}) {
    const auto words = [](const float (&v)[2]) {
      return unsigned{__bfloat16_as_ushort(__float2bfloat16_rn(v[0]))} |
             unsigned{__bfloat16_as_ushort(__float2bfloat16_rn(v[1]))} << 16;
    };
    Fragments fragments;
    for (unsigned row = 0; row < 8; ++row) {  // k = 0 and 1
      fragments.a[row * 16] = fragments.a[row * 16 + 1] = words(is.a);
      fragments.b[row * 8] = words(is.b);
    }
    std::fill(fragments.c.begin(), fragments.c.end(), is.c);
    for (const MmaModel model : {MmaModel::kAmpere, MmaModel::kHopper}) {
      set_order(0, model);
      EXPECT(same_bits(multiply_on_device(fragments, false), std::vector<float>(128, is.sum)));
    }
  }
}

TEST(mma_passes_on_what_is_no_number) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const MmaModel model : {MmaModel::kSequential, MmaModel::kAmpere, MmaModel::kHopper}) {
    for (const bool is_half : {false, true}) {
      set_order(0, model);
      const unsigned one = is_half ? 0x3c003c00U : 0x3f803f80U;
      Fragments fragments;
      std::fill(fragments.a.begin(), fragments.a.end(), one);
      std::fill(fragments.b.begin(), fragments.b.end(), one);
      fragments.a[0] = is_half ? 0x7c003c00U : 0x7f803f80U;  // row 0 has an infinite number
      fragments.c[4 * 4] = NAN;                              // row 1, column 0
      const std::vector<float> c = multiply_on_device(fragments, is_half);
      for (size_t i = 0; i < c.size(); ++i) {
        if (i == 16) {
          EXPECT(std::isnan(c[i]));
        } else {
          EXPECT_EQ(c[i], i / 16 == 0 && i % 4 < 2 ? infinity : 16.0f);
        }
      }
    }
  }
}

TEST(wgmma_has_the_bits_of_mma) {
  Numbers numbers(7);
  for (const MmaModel model : {MmaModel::kSequential, MmaModel::kHopper}) {
    for (uint64_t seed = 0; seed <= n_orders(4); ++seed) {
      set_order(seed, model);
      const DeviceArray<__nv_bfloat16> a(numbers.bf16s(64 * 64));
      const DeviceArray<__nv_bfloat16> b(numbers.bf16s(128 * 64));
      DeviceArray<float> by_wgmma(64 * 128);
      DeviceArray<float> by_mma(64 * 128);
      cuda::SharedBytes shared;
      shared.take<__nv_bfloat16>(64 * 64, cuda::kWgmmaAlignment);
      shared.take<__nv_bfloat16>(128 * 64, cuda::kWgmmaAlignment);
      launch("both_products", dim3(1), dim3(128), shared.bytes(),
             cuda::TileParams{a.get(), b.get(), by_wgmma.get(), by_mma.get()});
      EXPECT(same_bits(by_wgmma.host(), by_mma.host()));
      EXPECT(std::isfinite(by_mma.host()[17]));
    }
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
