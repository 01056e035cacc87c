// Groups layers by how far back they see, so that each group can have a pool of KV blocks of its
// own: a layer with a sliding window needs the keys and values of its window alone.
//
// Group 0 keeps every position of every sequence. It is there even where no layer is in it: its
// blocks then take no memory, and only say which tokens a sequence has. Every other group has a
// window and frees blocks once no later token can see them. A group whose pool would not be
// smaller than that of group 0 is part of it, since freeing blocks would gain nothing.
//
// Layers of a group may have different shapes. Layers of one shape share a storage, so that a block
// of the group is the block of the same number in each of its storages. A layer that reads the
// keys and values of an earlier one has no place of its own.
//
// Recurrent layers have a state instead of keys and values: a group of their own, whose block is
// the states after the last token that a sequence has in it. A token needs those after the token
// before it: a window of two positions. Blocks of states are never written to again once their
// tokens are committed, so that sequences share them, and a failed step has changed none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pb {

// The maximum number of groups: block table pointers are in arrays of this length.
inline constexpr int kMostLayerGroups = 4;

// The window of a group of recurrent layers: a token, and the one whose state it goes on from.
inline constexpr int kStateWindow = 2;

// Sizes of a position's keys, and of its values, in a layer.
struct KvShape {
  int n_heads = 0;
  int head_dim = 0;

  bool operator==(const KvShape&) const = default;
};

// The keys and values of a layer.
struct LayerKv {
  int window = 0;  // positions that a token sees, itself included; 0 = all
  KvShape shape = {};
  int read_from = -1;  // the earlier layer that it shares them with; -1 = its own
  int state_size = 0;  // floats of a recurrent layer's state; 0 = it has keys and values
};

struct LayerGroup {
  int window = 0;  // as of LayerKv
  int n_blocks = 0;
  int n_layers = 0;  // that have keys and values of their own
  bool is_state = false;
};

// Layers of one group and one shape.
struct LayerStorage {
  int group = 0;
  KvShape shape = {};
  int n_layers = 0;
  int window = 0;      // the widest of the layers'; 0: one of them sees all
  int state_size = 0;  // floats of each layer's; 0 = keys and values
};

// The place of a layer's keys and values: the storage, and the layer in that storage.
struct LayerPlace {
  int group = 0;
  int storage = 0;
  int layer = 0;
};

struct LayerGroups {
  std::vector<LayerGroup> groups;      // that of states last
  std::vector<LayerStorage> storages;  // likewise
  std::vector<LayerPlace> places;      // by layer
};

// The limits that decide how many blocks a window needs.
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

// Blocks with which n_sequences sequences can hold the states after their last tokens and take a
// block each for what follows, and n_rows in all.
int64_t blocks_of_states(const LayerGroupLimits& limits);

// Where there are more windows than groups, the narrow ones share the last group. A layer that
// reads from another has the same window and shape. States are all of one size.
LayerGroups group_layers(std::span<const LayerKv> layers, const LayerGroupLimits& limits);

}  // namespace pb
