// Hash64: pieces or whole, and that what is different hashes differently.
#include <set>
#include <string>
#include <vector>

#include "base/hash64.h"
#include "check.h"

namespace pb::test {
namespace {

std::vector<std::byte> some_bytes(size_t n) {
  std::vector<std::byte> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * i + i / 251);
  return bytes;
}

}  // namespace

TEST(pieces_hash_as_the_whole) {
  for (size_t n : {0u, 1u, 63u, 64u, 65u, 1000u, 4096u}) {
    const auto bytes = some_bytes(n);
    Hash64 hash;
    const std::span<const std::byte> all(bytes);
    const size_t cut = n / 2 / Hash64::kBlock * Hash64::kBlock;
    hash.update(all.first(cut));
    hash.update(all.subspan(cut));
    EXPECT_EQ(hash.digest(), hash64(bytes));
  }
}

TEST(every_length_of_zeros_and_every_flipped_bit_has_a_hash_of_its_own) {
  std::set<uint64_t> hashes;
  size_t n = 0;
  for (size_t length = 0; length < 300; ++length, ++n) {
    hashes.insert(hash64(std::vector<std::byte>(length)));
  }
  auto bytes = some_bytes(200);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit, ++n) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    hashes.insert(hash64(bytes));
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
  for (size_t i = 0; i + 8 < bytes.size(); i += 8, ++n) {  // neighbours that change places
    auto swapped = bytes;
    std::swap(swapped[i], swapped[i + 8]);
    hashes.insert(hash64(swapped));
    if (swapped == bytes) --n;
  }
  EXPECT_EQ(hashes.size(), n);
}

}  // namespace pb::test

PB_TEST_MAIN()
