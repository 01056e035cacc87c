// Super-blocks of files: every element against the formula of its format, written out for one
// element at a time.
#include <vector>

#include "check.h"
#include "formats/dtype.h"
#include "random_blocks.h"

namespace {

using namespace pb;
using namespace pb::test;

struct ScaleAndMin {
  int scale, min;
};
ScaleAndMin scale_and_min(const uint8_t* s, int group) {
  if (group < 4) return {s[group] % 64, s[group + 4] % 64};
  return {s[group + 4] % 16 + s[group - 4] / 64 * 16, s[group + 4] / 16 + s[group] / 64 * 16};
}

float element(const Q4KBlock& b, int i) {
  const uint8_t pair = b.pairs[i / 64 * 32 + i % 32];
  const int q = i % 64 < 32 ? pair % 16 : pair / 16;
  const auto [scale, min] = scale_and_min(b.scales, i / 32);
  return f16_to_f32(b.d) * static_cast<float>(scale) * static_cast<float>(q) -
         f16_to_f32(b.d_min) * static_cast<float>(min);
}

float element(const Q5KBlock& b, int i) {
  const uint8_t pair = b.pairs[i / 64 * 32 + i % 32];
  const int fifth = b.fifth_bits[i % 32] >> (i / 32) & 1;
  const int q = (i % 64 < 32 ? pair % 16 : pair / 16) + 16 * fifth;
  const auto [scale, min] = scale_and_min(b.scales, i / 32);
  return f16_to_f32(b.d) * static_cast<float>(scale) * static_cast<float>(q) -
         f16_to_f32(b.d_min) * static_cast<float>(min);
}

float element(const Q6KBlock& b, int i) {
  const int within = i % 128;
  const uint8_t pair = b.pairs[i / 128 * 64 + within % 64];
  const int high = b.high_bits[i / 128 * 32 + within % 32] >> (within / 32 * 2) & 3;
  const int q = (within < 64 ? pair % 16 : pair / 16) + 16 * high - 32;
  return f16_to_f32(b.d) * static_cast<float>(b.scales[i / 16]) * static_cast<float>(q);
}

float element(const Q2KBlock& b, int i) {
  const int q = b.codes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
  const uint8_t scales = b.scales[i / 16];
  return f16_to_f32(b.d) * static_cast<float>(scales % 16) * static_cast<float>(q) -
         f16_to_f32(b.d_min) * static_cast<float>(scales / 16);
}

float element(const Q3KBlock& b, int i) {
  const int low = b.low_bits[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
  const int q = low - ((b.high_bits[i % 32] >> i / 32 & 1) != 0 ? 0 : 4);
  const int s = i / 16;
  const int scale = (s < 8 ? b.scales[s] % 16 : b.scales[s - 8] / 16) +
                    (b.scales[8 + s % 4] >> s / 4 * 2 & 3) * 16 - 32;
  return f16_to_f32(b.d) * static_cast<float>(scale) * static_cast<float>(q);
}

float element(const Iq4XsBlock& b, int i) {
  const int group = i / 32;
  const uint8_t pair = b.pairs[group * 16 + i % 16];
  const uint8_t lows = b.scales_low[group / 2];
  const int scale =
      (group % 2 == 0 ? lows % 16 : lows / 16) + (b.scales_high >> group * 2 & 3) * 16 - 32;
  return f16_to_f32(b.d) * static_cast<float>(scale) *
         static_cast<float>(kIq4NlNumbers[i % 32 < 16 ? pair % 16 : pair / 16]);
}

template <typename Block>
void expect_elements(DType dtype) {
  constexpr int kBlocks = 40;
  RandomBlocks blocks(kBlocks, kSuperBlock, dtype, 5);
  const std::vector<float> x = blocks.values();
  for (size_t i = 0; i < blocks.n_blocks(); ++i) {
    Block b;
    std::memcpy(&b, blocks.block(i), sizeof(b));
    for (int k = 0; k < kSuperBlock; ++k) EXPECT_EQ(x[i * kSuperBlock + k], element(b, k));
  }
}

}  // namespace

TEST(elements_are_those_of_the_formats) {
  expect_elements<Q4KBlock>(DType::kQ4K);
  expect_elements<Q5KBlock>(DType::kQ5K);
  expect_elements<Q6KBlock>(DType::kQ6K);
  expect_elements<Q2KBlock>(DType::kQ2K);
  expect_elements<Q3KBlock>(DType::kQ3K);
  expect_elements<Iq4XsBlock>(DType::kIQ4_XS);
}

PB_TEST_MAIN()
