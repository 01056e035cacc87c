// Chooses the number of KV blocks by the free memory, for n_ctx="auto".
#pragma once

#include <cstddef>
#include <functional>

namespace pb {

inline constexpr int kMostContext = 1 << 26;  // tokens of KV, however much memory there is

// The minimum number of tokens of KV that n_ctx="auto" chooses.
inline constexpr int kLeastAutoContext = 512;

struct ContextMemory {
  size_t memory = 0;                    // bytes that KV may take
  std::function<size_t(int)> bytes_of;  // bytes of a number of blocks; it never decreases
  int block_size = 0;                   // positions
  int n_sequences = 0;
  int n_positions = 0;  // that the model has
};

// The number of KV blocks that there is memory for; no more than n_sequences of n_positions each
// can use, or kMostContext tokens are. Throws kOutOfMemory where there is no memory for
// kLeastAutoContext tokens, or for the fewer that can be used.
int context_by_memory(const ContextMemory& of);

}  // namespace pb
