#include <cmath>

#include "check.h"
#include "sampling/rng.h"

using Words = std::array<uint32_t, 4>;

// The known answers that the authors publish with Random123 (tests/kat_vectors, "philox4x32 10").
TEST(philox_gives_the_published_answers) {
  EXPECT(pb::philox4x32({0, 0, 0, 0}, {0, 0}) ==
         (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT(
      pb::philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
      (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT(
      pb::philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
      (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(uniform_uses_every_bit_of_its_arguments) {
  const double base = pb::uniform(1, 2, 3);
  EXPECT_EQ(base, pb::uniform(1, 2, 3));
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT(pb::uniform(1 ^ (uint64_t{1} << bit), 2, 3) != base);
    EXPECT(pb::uniform(1, 2 ^ (uint64_t{1} << bit), 3) != base);
  }
  for (int bit = 0; bit < 32; ++bit) EXPECT(pb::uniform(1, 2, 3 ^ (1u << bit)) != base);
}

TEST(uniform_is_the_upper_53_bits_of_the_block) {
  // The block of counter 0, key 0 begins 6627e8d5 e169c58d.
  EXPECT_EQ(pb::uniform(0, 0, 0),
            std::ldexp(static_cast<double>(0x6627e8d5e169c58dull >> 11), -53));
}

TEST(uniform_fills_zero_to_one_evenly) {
  constexpr int kSamples = 100'000;
  constexpr int kBins = 16;
  std::array<int, kBins> bins{};
  double sum = 0;
  for (uint64_t position = 0; position < kSamples; ++position) {
    const double u = pb::uniform(42, position);
    EXPECT(u >= 0 && u < 1);
    sum += u;
    ++bins[static_cast<size_t>(u * kBins)];
  }
  // The seed is fixed, so this cannot flicker. Five standard deviations of each.
  EXPECT(std::abs(sum / kSamples - 0.5) < 5 * std::sqrt(1.0 / 12 / kSamples));
  for (const int count : bins) {
    EXPECT(std::abs(count - kSamples / kBins) < 5 * std::sqrt(1.0 * kSamples / kBins));
  }
}

PB_TEST_MAIN()
