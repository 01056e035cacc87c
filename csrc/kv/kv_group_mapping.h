// KvGroupMapping maps each block of group 0 to the block of a windowed group that holds the keys
// and values of the same tokens for that group's layers.
//
// The prefix index identifies the tokens of a block of group 0. A windowed group therefore needs no
// index of its own: its blocks are found through this mapping, and a block without a mapped block
// of group 0 cannot be found. A block of one group is mapped to at most one block of the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pb {

class KvGroupMapping {
 public:
  static constexpr int kNone = -1;

  // Makes an empty mapping of n_full blocks of group 0 to n_blocks blocks of a windowed group.
  KvGroupMapping(int n_full, int n_blocks)
      : block_of_(static_cast<size_t>(n_full), kNone),
        full_of_(static_cast<size_t>(n_blocks), kNone) {}

  // block_of() and full_of() return kNone for a block that is not mapped.
  int block_of(int full) const { return block_of_[static_cast<size_t>(full)]; }
  int full_of(int block) const { return full_of_[static_cast<size_t>(block)]; }

  // Maps two unmapped blocks to each other.
  void join(int full, int block) {
    block_of_[static_cast<size_t>(full)] = block;
    full_of_[static_cast<size_t>(block)] = full;
  }

  // Removes a block of the windowed group from the mapping, if it is mapped.
  void part(int block) {
    const int full = full_of(block);
    if (full == kNone) return;
    block_of_[static_cast<size_t>(full)] = kNone;
    full_of_[static_cast<size_t>(block)] = kNone;
  }

 private:
  std::vector<int32_t> block_of_;  // (n_full): block of the windowed group, or kNone
  std::vector<int32_t> full_of_;   // (n_blocks): block of group 0, or kNone
};

}  // namespace pb
