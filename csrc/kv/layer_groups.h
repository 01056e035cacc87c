// Groups layers by attention window, so that each group has its own pool of KV blocks: a layer with
// a sliding window needs only the keys and values of its window.
//
// Group 0 keeps every position of every sequence. It exists even if no layer belongs to it; its
// blocks then take no memory and only identify the tokens of a sequence. Every other group has a
// window and releases blocks that no later token can see. If the pool of a window would not be
// smaller than that of group 0, its layers join group 0, since releasing blocks would save no
// memory.
//
// The layers of a group may have different KV shapes. Layers of the same group and shape share a
// storage, and block b of the group is block b in each of the group's storages. A layer that reads
// the keys and values of an earlier layer has no place in a storage of its own.
//
// Recurrent layers have a state instead of keys and values. They form a separate group, whose block
// holds the states after the last token of the sequence in that block. A token needs the states
// after the previous token, so the group's window is two positions. A state block is never written
// to after its tokens are committed; therefore sequences can share it, and a failed step leaves it
// unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pb {

// The maximum number of groups. Arrays of block table pointers have this length.
inline constexpr int kMostLayerGroups = 4;

// The window of a group of recurrent layers: the current token and the previous one, whose state it
// continues.
inline constexpr int kStateWindow = 2;

// The size of one position's keys in a layer, which is also the size of its values.
struct KvShape {
  int n_heads = 0;
  int head_dim = 0;

  bool operator==(const KvShape&) const = default;
};

// Describes the keys and values, or the recurrent state, of a layer.
struct LayerKv {
  int window = 0;  // number of positions that a token sees, itself included; 0 = all
  KvShape shape = {};
  int read_from = -1;  // earlier layer whose keys and values are read; -1 = its own
  int state_size = 0;  // floats of a recurrent layer's state; 0 = not a recurrent layer
};

struct LayerGroup {
  int window = 0;  // see LayerKv
  int n_blocks = 0;
  int n_layers = 0;  // layers that have their own keys and values, or a state
  bool is_state = false;
};

// The storage of the layers of one group and one shape.
struct LayerStorage {
  int group = 0;
  KvShape shape = {};
  int n_layers = 0;
  int window = 0;      // the widest window of the layers; 0 if a layer sees all positions
  int state_size = 0;  // floats of the state of each layer; 0 = keys and values
};

// Locates a layer's keys and values: the storage, and the index of the layer in that storage.
struct LayerPlace {
  int group = 0;
  int storage = 0;
  int layer = 0;
};

struct LayerGroups {
  std::vector<LayerGroup> groups;      // the group of states is last
  std::vector<LayerStorage> storages;  // the storage of states is last
  std::vector<LayerPlace> places;      // indexed by layer
};

// The limits that determine how many blocks a window needs.
struct LayerGroupLimits {
  int n_blocks = 0;    // blocks of group 0
  int block_size = 0;  // positions per block
  int n_sequences = 0;
  int n_rows = 0;      // rows that a step can always append, whatever the sequences hold
  int max_groups = 1;  // 1..kMostLayerGroups
};

// Returns the number of blocks with which n_sequences sequences of any length can each hold a
// window and copy a shared last block, and a step can append one token per sequence or n_rows
// tokens in all.
int64_t blocks_of_window(int window, const LayerGroupLimits& limits);

// Returns the number of blocks with which n_sequences sequences can each hold the states after
// their last token and take a block for the next states, with n_rows rows in all.
int64_t blocks_of_states(const LayerGroupLimits& limits);

// Assigns the layers to groups and storages. If there are more windows than groups, the narrow
// windows share the last group. A layer that reads the KV of another layer must have the same
// window and shape. All states must have the same size.
LayerGroups group_layers(std::span<const LayerKv> layers, const LayerGroupLimits& limits);

}  // namespace pb
