// Groups of whole numbers: how near they are to what they stand for.
#include <algorithm>
#include <cmath>
#include <vector>

#include "block_numbers.h"
#include "check.h"
#include "formats/dtype.h"
#include "sampling/rng.h"

namespace {

using namespace pb;
using namespace pb::test;

std::vector<float> random_group(uint64_t seed, float size) {
  std::vector<float> x(kGroup);
  for (int i = 0; i < kGroup; ++i) {
    // Roughly normal: a sum of uniforms.
    double sum = 0.0;
    for (uint64_t j = 0; j < 6; ++j) sum += 2.0 * uniform(seed, 6 * i + j) - 1.0;
    x[i] = size * static_cast<float>(sum);
  }
  return x;
}

float greatest(const std::vector<float>& x) {
  float top = 0.0f;
  for (float v : x) top = std::max(top, std::abs(v));
  return top;
}

template <typename Group>
double squared_error(const std::vector<float>& x, const Group& group) {
  float back[kGroup];
  dequantise(group, back);
  double sum = 0.0;
  for (int i = 0; i < kGroup; ++i) sum += std::pow(static_cast<double>(x[i]) - back[i], 2);
  return sum;
}

// The plain rule of Q4_0: the number of greatest magnitude becomes -8.
Int4Group plain_int4(const std::vector<float>& x) {
  float end = 0.0f;
  for (float v : x) {
    if (std::abs(v) > std::abs(end)) end = v;
  }
  Int4Group group = {};
  group.scale = f32_to_f16(end / -8.0f);
  const float inverse = end == 0.0f ? 0.0f : -8.0f / end;
  const auto whole = [&](float v) { return std::min(15, static_cast<int>(v * inverse + 8.5f)); };
  for (int i = 0; i < kGroup / 2; ++i) {
    group.pairs[i] = static_cast<uint8_t>(whole(x[i]) | whole(x[i + kGroup / 2]) << 4);
  }
  return group;
}

}  // namespace

TEST(int8_is_within_half_a_step) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const std::vector<float> x = random_group(seed, std::exp2(static_cast<float>(seed % 20) - 10));
    const Int8Group group = quantise_int8(x.data());
    float back[kGroup];
    dequantise(group, back);
    // Half a step, and what the greatest loses where its scale was rounded down (f16: 2^-11).
    const float step = f16_to_f32(group.scale);
    const float limit = step * 0.5f + greatest(x) * 0x1p-11f;
    for (int i = 0; i < kGroup; ++i) EXPECT(std::abs(x[i] - back[i]) <= limit * 1.0001f);
  }
}

TEST(a_group_that_can_be_said_exactly_is) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Int8Group eight;
    Int4Group four;
    eight.scale = four.scale = f32_to_f16(static_cast<float>(0.001 + uniform(seed, 1000)));
    for (int i = 0; i < kGroup; ++i) {
      eight.values[i] = static_cast<int8_t>(static_cast<int>(uniform(seed, i) * 255) - 127);
    }
    for (int i = 0; i < kGroup / 2; ++i) {
      four.pairs[i] = static_cast<uint8_t>(uniform(seed, i) * 256);
    }
    eight.values[3] = 127;
    four.pairs[5] = 0x80;  // -8 and 0
    float x[kGroup];
    dequantise(eight, x);
    EXPECT_EQ(squared_error({x, x + kGroup}, quantise_int8(x)), 0.0);
    dequantise(four, x);
    EXPECT_EQ(squared_error({x, x + kGroup}, quantise_int4(x)), 0.0);
  }
}

TEST(int4_is_never_further_off_than_the_plain_rule) {
  double ours = 0.0, plain = 0.0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const std::vector<float> x = random_group(seed, 0.02f);
    const double error = squared_error(x, quantise_int4(x.data()));
    const double other = squared_error(x, plain_int4(x));
    EXPECT(error <= other * 1.0001);
    ours += error;
    plain += other;
  }
  EXPECT(ours < 0.92 * plain);
}

TEST(zeros_stay_zeros_and_tiny_numbers_become_them) {
  for (float size : {0.0f, 1e-30f}) {
    const std::vector<float> x(kGroup, size);
    float back[kGroup];
    dequantise(quantise_int8(x.data()), back);
    for (float v : back) EXPECT_EQ(v, 0.0f);
    dequantise(quantise_int4(x.data()), back);
    for (float v : back) EXPECT_EQ(v, 0.0f);
  }
}

TEST(blocks_are_those_of_gguf) {
  Int8Group eight = {f32_to_f16(0.5f), {}};
  eight.values[31] = -128;
  float x[kGroup];
  dequantise(eight, x);
  EXPECT_EQ(x[31], -64.0f);
  Int4Group four = {f32_to_f16(2.0f), {}};
  std::fill_n(four.pairs, kGroup / 2, uint8_t{0x88});
  four.pairs[3] = 0xf1;  // element 3: 1 - 8, element 19: 15 - 8
  dequantise(four, x);
  EXPECT_EQ(x[3], -14.0f);
  EXPECT_EQ(x[19], 14.0f);
  EXPECT_EQ(x[4], 0.0f);
  Iq4NlGroup codes = {f32_to_f16(0.5f), {}};
  codes.pairs[3] = 0xf8;  // element 3: 1, element 19: 113
  dequantise(codes, x);
  EXPECT_EQ(x[3], 0.5f);
  EXPECT_EQ(x[19], 56.5f);
  EXPECT_EQ(x[4], -63.5f);
}

PB_TEST_MAIN()
