// Chooses the number of KV blocks from the available memory, for n_ctx="auto".
#pragma once

#include <cstddef>
#include <functional>

namespace pb {

inline constexpr int kMostContext = 1 << 26;  // maximum tokens of KV, regardless of memory

// The minimum number of tokens of KV that n_ctx="auto" chooses.
inline constexpr int kLeastAutoContext = 512;

struct ContextMemory {
  size_t memory = 0;  // bytes available for KV
  // Returns the bytes of a number of blocks; must not decrease as the number grows.
  std::function<size_t(int)> bytes_of;
  int block_size = 0;  // positions per block
  int n_sequences = 0;
  int n_positions = 0;  // maximum positions of a sequence
};

// Returns the largest number of KV blocks that fits into the memory. The result is at most what
// n_sequences sequences of n_positions positions can use, and at most kMostContext tokens. Throws
// kOutOfMemory if the memory is too small for kLeastAutoContext tokens, or for all tokens that the
// sequences can use if these are fewer.
int context_by_memory(const ContextMemory& of);

}  // namespace pb
