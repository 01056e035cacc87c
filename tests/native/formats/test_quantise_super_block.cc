// Super-blocks near to given numbers.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "dtype_lists.h"
#include "formats/dtype.h"
#include "formats/tensors/quantise_super_block.h"
#include "random_blocks.h"
#include "sampling/rng.h"

namespace {

using namespace pb;
using namespace pb::test;

const std::vector<DType> kQuantisedTo = dtypes_where(is_quantised_to);

std::vector<float> values(DType dtype, const std::byte* block) {
  std::vector<float> x(kSuperBlock);
  dequantise_bytes(dtype, block, x.data());
  return x;
}

std::vector<float> quantised(DType dtype, const std::vector<float>& x) {
  std::vector<std::byte> block(block_bytes(dtype), std::byte{0xaa});  // what is there is no part
  quantise_super_block(dtype, x.data(), block.data());
  return values(dtype, block.data());
}

// About normal: sums of twelve uniform numbers.
std::vector<float> normal(uint64_t seed, float size, float mean = 0.0f) {
  std::vector<float> x(kSuperBlock);
  for (int i = 0; i < kSuperBlock; ++i) {
    double sum = -6.0;
    for (int j = 0; j < 12; ++j) sum += uniform(seed, i * 12 + j);
    x[i] = mean + size * static_cast<float>(sum);
  }
  return x;
}

double relative_error(const std::vector<float>& x, const std::vector<float>& y) {
  double off = 0, all = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    off += (x[i] - y[i]) * (x[i] - y[i]);
    all += x[i] * x[i];
  }
  return off / all;
}

}  // namespace

// Of llama.cpp's own quantiser on normal numbers: 0.00509, 0.00131, 0.00032 (ggml_quantize_chunk of
// llama-cpp-python 0.3.36, two million numbers).
TEST(the_error_on_normal_numbers_is_below_llama_cpps) {
  const std::pair<DType, double> most[] = {
      {DType::kQ4K, 0.00507}, {DType::kQ5K, 0.00127}, {DType::kQ6K, 0.000305}};
  for (const auto& [dtype, limit] : most) {
    constexpr int kBlocks = 400;
    double sum = 0;
    for (int i = 0; i < kBlocks; ++i) {
      const std::vector<float> x = normal(i, 0.02f);
      sum += relative_error(x, quantised(dtype, x));
    }
    EXPECT(sum / kBlocks < limit);
    EXPECT(sum / kBlocks > limit / 2);
  }
}

TEST(numbers_that_a_block_holds_come_back) {
  for (const DType dtype : kQuantisedTo) {
    for (int i = 0; i < 20; ++i) {
      RandomBlocks blocks(1, kSuperBlock, dtype, i);
      blocks.set_scale(0, f32_to_f16(0x1p-10f));
      if (blocks.has_min()) blocks.set_min_scale(0, f32_to_f16(0x1p-9f));
      const std::vector<float> x = blocks.values();
      EXPECT(relative_error(x, quantised(dtype, x)) < 3e-4);
    }
  }
}

TEST(numbers_of_one_sign_and_of_no_spread_are_held) {
  for (const DType dtype : kQuantisedTo) {
    for (const float mean : {0.3f, -0.3f}) {
      const std::vector<float> x = normal(3, 0.02f, mean);
      EXPECT(relative_error(x, quantised(dtype, x)) < 0.004);
      const std::vector<float> same(kSuperBlock, mean);
      EXPECT(relative_error(same, quantised(dtype, same)) < 1e-4);
    }
    const std::vector<float> zeros(kSuperBlock, 0.0f);
    EXPECT(quantised(dtype, zeros) == zeros);
    std::vector<float> one = zeros;
    one[77] = -0.5f;
    EXPECT(relative_error(one, quantised(dtype, one)) < 1e-3);
  }
}

TEST(the_same_numbers_in_other_sizes_have_the_same_error) {
  for (const DType dtype : kQuantisedTo) {
    const double usual = relative_error(normal(5, 1.0f), quantised(dtype, normal(5, 1.0f)));
    for (const float size : {1e-3f, 100.0f}) {
      const std::vector<float> x = normal(5, size);
      EXPECT(std::abs(relative_error(x, quantised(dtype, x)) - usual) < 0.1 * usual);
    }
  }
}

TEST(what_is_not_finite_or_too_great_is_seen_in_the_block) {
  for (const DType dtype : kQuantisedTo) {
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), -1e9f}) {
      std::vector<float> x = normal(1, 1.0f);
      x[200] = bad;
      for (const float y : quantised(dtype, x)) EXPECT(!std::isfinite(y));
    }
  }
}

PB_TEST_MAIN()
