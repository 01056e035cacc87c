#include <cmath>
#include <limits>

#include "check.h"
#include "formats/dtype.h"

namespace {

// The bf16 nearest to `f`, ties to the even one, found by comparing distances in double.
uint16_t nearest_bf16(float f) {
  const uint16_t below = static_cast<uint16_t>(std::bit_cast<uint32_t>(f) >> 16);  // towards zero
  const uint16_t above = static_cast<uint16_t>(below + 1);
  const double to_below = std::abs(static_cast<double>(f) - pb::bf16_to_f32(below));
  // Past the largest finite value the next step would be 2^128.
  const double next =
      std::isinf(pb::bf16_to_f32(above)) ? std::copysign(0x1p128, f) : pb::bf16_to_f32(above);
  const double to_above = std::abs(static_cast<double>(f) - next);
  if (to_below == to_above) return below % 2 == 0 ? below : above;
  return to_below < to_above ? below : above;
}

}  // namespace

TEST(every_bf16_comes_back_from_f32) {
  for (uint32_t h = 0; h <= 0xffff; ++h) {
    const auto bits = static_cast<uint16_t>(h);
    const float f = pb::bf16_to_f32(bits);
    if (std::isnan(f)) {
      EXPECT(std::isnan(pb::bf16_to_f32(pb::f32_to_bf16(f))));
    } else {
      EXPECT_EQ(pb::f32_to_bf16(f), bits);
    }
  }
}

TEST(f32_to_bf16_rounds_to_the_nearest_even) {
  for (uint32_t high = 0; high <= 0xffff; ++high) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float f = std::bit_cast<float>((high << 16) | low);
      if (!std::isfinite(f)) continue;
      EXPECT_EQ(pb::f32_to_bf16(f), nearest_bf16(f));
    }
  }
}

TEST(nan_and_infinity_survive_bf16) {
  for (const uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fc00000u, 0x7fffffffu, 0xffffffffu}) {
    EXPECT(std::isnan(pb::bf16_to_f32(pb::f32_to_bf16(std::bit_cast<float>(bits)))));
  }
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(pb::bf16_to_f32(pb::f32_to_bf16(infinity)), infinity);
  EXPECT_EQ(pb::bf16_to_f32(pb::f32_to_bf16(-infinity)), -infinity);
  EXPECT_EQ(pb::bf16_to_f32(pb::f32_to_bf16(std::numeric_limits<float>::max())), infinity);
}

// The value of a half by the definition of IEEE 754 binary16.
TEST(every_f16_has_the_value_of_its_definition) {
  for (uint32_t h = 0; h <= 0xffff; ++h) {
    const float f = pb::f16_to_f32(static_cast<uint16_t>(h));
    const int exponent = static_cast<int>((h >> 10) & 31);
    const int mantissa = static_cast<int>(h & 1023);
    EXPECT_EQ(std::signbit(f), (h & 0x8000) != 0);
    if (exponent == 31) {
      EXPECT(mantissa == 0 ? std::isinf(f) : std::isnan(f));
    } else {
      const double value =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      EXPECT_EQ(std::abs(static_cast<double>(f)), value);
    }
  }
}

TEST(every_f16_comes_back_from_f32) {
  for (uint32_t h = 0; h <= 0xffff; ++h) {
    const auto bits = static_cast<uint16_t>(h);
    const float f = pb::f16_to_f32(bits);
    if (std::isnan(f)) {
      EXPECT(std::isnan(pb::f16_to_f32(pb::f32_to_f16(f))));
    } else {
      EXPECT_EQ(pb::f32_to_f16(f), bits);
    }
  }
}

// Between two neighbours the nearer one is taken, half-way the even one; beyond the last, infinity.
TEST(f32_to_f16_rounds_to_the_nearest_even) {
  for (uint32_t h = 0; h < 0x7c00; ++h) {
    const auto below = static_cast<uint16_t>(h);
    const auto above = static_cast<uint16_t>(h + 1);
    const double low = pb::f16_to_f32(below);
    const double high = h + 1 == 0x7c00 ? 65536.0 : pb::f16_to_f32(above);
    const auto half = static_cast<float>((low + high) / 2);  // exact
    EXPECT_EQ(pb::f32_to_f16(half), h % 2 == 0 ? below : above);
    EXPECT_EQ(pb::f32_to_f16(std::nextafter(half, 0.0f)), below);
    EXPECT_EQ(pb::f32_to_f16(std::nextafter(half, 1e9f)), above);
    EXPECT_EQ(pb::f32_to_f16(-half), pb::f32_to_f16(half) | 0x8000);
  }
  EXPECT_EQ(pb::f32_to_f16(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_EQ(pb::f32_to_f16(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(sizes_and_names) {
  EXPECT_EQ(pb::dtype_size(pb::DType::kF32), 4u);
  EXPECT_EQ(pb::dtype_size(pb::DType::kBF16), 2u);
  EXPECT_EQ(pb::dtype_size(pb::DType::kF16), 2u);
  EXPECT_EQ(std::string(pb::dtype_name(pb::DType::kF32)), "f32");
  EXPECT_EQ(std::string(pb::dtype_name(pb::DType::kBF16)), "bf16");
  EXPECT_EQ(std::string(pb::dtype_name(pb::DType::kF16)), "f16");
  EXPECT_EQ(std::string(pb::dtype_name(pb::DType::kInt8)), "int8");
  EXPECT_EQ(std::string(pb::dtype_name(pb::DType::kInt4)), "int4");
}

PB_TEST_MAIN()
