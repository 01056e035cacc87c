// A 64-bit hash that detects damage at the speed of memory. It is not cryptographic: collisions can
// be constructed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace pb {

class Hash64 {
 public:
  static constexpr size_t kBlock = 64;

  Hash64();

  // In all calls but the last, the number of bytes must be a multiple of kBlock.
  void update(std::span<const std::byte> bytes);
  uint64_t digest() const;

 private:
  std::array<uint64_t, kBlock / sizeof(uint64_t)> lanes_;
  uint64_t length_ = 0;
};

inline uint64_t hash64(std::span<const std::byte> bytes) {
  Hash64 hash;
  hash.update(bytes);
  return hash.digest();
}

}  // namespace pb
