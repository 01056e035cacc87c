// How much KV an engine has where nobody says: n_ctx="auto".
#pragma once

#include <cstddef>
#include <functional>

namespace pb {

inline constexpr int kMostContext = 1 << 26;  // tokens of KV, however much memory there is

// Tokens of KV below which an engine is of little use: less is not chosen.
inline constexpr int kLeastAutoContext = 512;

struct ContextMemory {
  size_t memory = 0;                    // bytes that KV may take
  std::function<size_t(int)> bytes_of;  // what so many blocks take; more blocks take no less
  int block_size = 0;                   // positions
  int n_sequences = 0;
  int n_positions = 0;  // that the model has
};

// The number of KV blocks that there is memory for; no more than n_sequences of n_positions each
// can use, or kMostContext tokens are. Throws kOutOfMemory where there is no memory for
// kLeastAutoContext tokens, or for the fewer that can be used.
int context_by_memory(const ContextMemory& of);

}  // namespace pb
