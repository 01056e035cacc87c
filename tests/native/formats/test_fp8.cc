// e4m3: every byte, by the definition of the format.
#include <cmath>

#include "check.h"
#include "formats/fp8.h"

TEST(numbers_are_those_of_the_format) {
  for (int byte = 0; byte < 256; ++byte) {
    const int exponent = byte >> 3 & 15, mantissa = byte & 7;
    const float number = pb::e4m3_to_f32(static_cast<uint8_t>(byte));
    if (exponent == 15 && mantissa == 7) {
      EXPECT(pb::is_no_e4m3(static_cast<uint8_t>(byte)) && std::isnan(number));
      continue;
    }
    const double size = exponent == 0 ? std::ldexp(mantissa / 8.0, -6)
                                      : std::ldexp(1.0 + mantissa / 8.0, exponent - 7);
    EXPECT_EQ(number, static_cast<float>(byte < 128 ? size : -size));
    EXPECT(std::abs(number) <= pb::kGreatestE4m3);
  }
}

PB_TEST_MAIN()
