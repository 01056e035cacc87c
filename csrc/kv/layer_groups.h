// Groups layers by how far back they see, so that each group can have a pool of KV blocks of its
// own: a layer with a sliding window needs the keys and values of its window alone.
//
// Group 0 keeps every position of every sequence. It is there even where no layer is in it: its
// blocks then take no memory, and only say which tokens a sequence has. Every other group has a
// window and gives blocks back once no token to come can see them. A group whose pool would not be
// smaller than that of group 0 is part of it, since giving back would gain nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pb {

// The most groups of layers that there are: pointers to block tables lie in arrays of so many.
inline constexpr int kMostLayerGroups = 4;

struct LayerGroup {
  int window = 0;  // positions that a token sees, itself included; 0 = all
  int n_blocks = 0;
  int n_layers = 0;
};

// Where the keys and values of a layer are: which group's, and which of its layers.
struct LayerPlace {
  int group = 0;
  int layer = 0;
};

struct LayerGroups {
  std::vector<LayerGroup> groups;
  std::vector<LayerPlace> places;  // by layer
};

// What decides how many blocks a window needs.
struct LayerGroupLimits {
  int n_blocks = 0;    // of group 0
  int block_size = 0;  // positions
  int n_sequences = 0;
  int n_rows = 0;      // that one step can always append, whatever the sequences hold
  int max_groups = 1;  // 1..kMostLayerGroups
};

// Blocks with which n_sequences sequences of any length can have a window each, append a token
// each, or n_rows in all, and copy a shared last block each.
int64_t blocks_of_window(int window, const LayerGroupLimits& limits);

// windows: of each layer, 0 = all positions. Where there are more windows than groups, the narrow
// ones share the last group.
LayerGroups group_layers(std::span<const int> windows, const LayerGroupLimits& limits);

}  // namespace pb
