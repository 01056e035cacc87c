#include "base/hash64.h"

#include <cstring>

namespace pb {
namespace {

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio: bits without a pattern

// One to one in `word` for a given lane, and in `lane` for a given word: a single word that differs
// always shows. Eight lanes, so that the multiplications overlap.
// The shift brings what the multiplication has moved up down again: else a flip of a high bit could
// be undone by a flip in the lane's next word.
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
    std::array<std::byte, kBlock> last{};  // the length says how much of it is padding
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
