#include "base/hash64.h"

#include <cstring>

namespace pb {
namespace {

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio, whose bits have no pattern

// Combines a lane with a word. For a given lane, the result is one-to-one in `word`, and for a
// given word it is one-to-one in `lane`, so a difference in a single word always changes the hash.
// There are eight lanes, so that their multiplications overlap. The multiplication moves
// differences to higher bits, and the shift moves them down again. Without the shift, a flipped bit
// in the next word of the lane could cancel a flipped high bit.
uint64_t mixed(uint64_t lane, uint64_t word) {
  lane = (lane ^ word) * kOdd;
  return lane ^ (lane >> 29);
}

}  // namespace

Hash64::Hash64() {
  for (size_t i = 0; i < lanes_.size(); ++i) lanes_[i] = (i + 1) * kOdd;
}

void Hash64::update(std::span<const std::byte> bytes) {
  length_ += bytes.size();
  auto lanes = lanes_;
  const auto add = [&lanes](const std::byte* block) {
    std::array<uint64_t, kBlock / sizeof(uint64_t)> words;
    std::memcpy(words.data(), block, kBlock);
    for (size_t i = 0; i < lanes.size(); ++i) lanes[i] = mixed(lanes[i], words[i]);
  };
  const size_t n_blocks = bytes.size() / kBlock;
  for (size_t i = 0; i < n_blocks; ++i) add(bytes.data() + i * kBlock);
  if (const size_t rest = bytes.size() % kBlock; rest != 0) {
    std::array<std::byte, kBlock> last{};  // zero padding; the hash includes the length
    std::memcpy(last.data(), bytes.data() + n_blocks * kBlock, rest);
    add(last.data());
  }
  lanes_ = lanes;
}

uint64_t Hash64::digest() const {
  uint64_t hash = length_;
  for (const uint64_t lane : lanes_) {
    hash = mixed(hash, lane);
  }
  return hash * kOdd;
}

}  // namespace pb
