// MXFP4: every code under every scale, by the definition of e2m1 and e8m0.
#include <cmath>

#include "block_numbers.h"
#include "check.h"

namespace {

// The number of a code: a sign, an exponent of two bits with a bias of 1, a bit of mantissa.
double e2m1(int code) {
  const int exponent = code >> 1 & 3, mantissa = code & 1;
  const double size =
      exponent == 0 ? mantissa / 2.0 : std::ldexp(1.0 + mantissa / 2.0, exponent - 1);
  return code & 8 ? -size : size;
}

}  // namespace

TEST(elements_are_those_of_the_format) {
  for (int scale = 0; scale <= 254; ++scale) {
    for (int code = 0; code < 16; ++code) {
      pb::Mxfp4Group group{static_cast<uint8_t>(scale), {}};
      group.pairs[5] = static_cast<uint8_t>(code);
      group.pairs[9] = static_cast<uint8_t>(code << 4);
      float x[pb::kGroup];
      pb::test::dequantise(group, x);
      const auto exact = static_cast<float>(std::ldexp(e2m1(code), scale - 127));
      for (int i = 0; i < pb::kGroup; ++i) {
        EXPECT_EQ(x[i], i == 5 || i == 9 + pb::kGroup / 2 ? exact : 0.0f);
      }
    }
  }
}

TEST(a_scale_that_is_no_number_makes_none) {
  const pb::Mxfp4Group group{pb::kMxfp4NoScale, {}};
  float x[pb::kGroup];
  pb::test::dequantise(group, x);
  for (float value : x) EXPECT(std::isnan(value));
}

PB_TEST_MAIN()
