// Which block of a windowed group goes with which block of group 0: the one that holds the keys and
// values of the same tokens, after the same tokens, for the group's layers.
//
// A block of group 0 in the prefix index says which tokens those are, so that a windowed group
// needs no index of its own: its block is found through its companion there, and is worth nothing
// without it. A block of group 0 has at most one companion in a group, and the other way round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pb {

class KvGroupMapping {
 public:
  static constexpr int kNone = -1;

  // For n_blocks blocks of a windowed group beside n_full of group 0.
  KvGroupMapping(int n_full, int n_blocks)
      : block_of_(static_cast<size_t>(n_full), kNone),
        full_of_(static_cast<size_t>(n_blocks), kNone) {}

  // kNone where there is none.
  int block_of(int full) const { return block_of_[static_cast<size_t>(full)]; }
  int full_of(int block) const { return full_of_[static_cast<size_t>(block)]; }

  // Neither has a companion yet.
  void join(int full, int block) {
    block_of_[static_cast<size_t>(full)] = block;
    full_of_[static_cast<size_t>(block)] = full;
  }

  // Takes a block of the windowed group from its companion. Does nothing where it has none.
  void part(int block) {
    const int full = full_of(block);
    if (full == kNone) return;
    block_of_[static_cast<size_t>(full)] = kNone;
    full_of_[static_cast<size_t>(block)] = kNone;
  }

 private:
  std::vector<int32_t> block_of_;  // (n_full)
  std::vector<int32_t> full_of_;   // (n_blocks)
};

}  // namespace pb
