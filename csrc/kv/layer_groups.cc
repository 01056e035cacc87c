#include "kv/layer_groups.h"

#include <algorithm>
#include <functional>

namespace pb {

int64_t blocks_of_window(int window, const LayerGroupLimits& limits) {
  const auto blocks_for = [&](int64_t positions) {
    return (positions + limits.block_size - 1) / limits.block_size;
  };
  // The window - 1 positions before a token may begin anywhere in a block, which takes one block
  // more.
  const int64_t of_sequence = blocks_for(int64_t{window} - 1) + 1;
  const int64_t copied = 1;
  return limits.n_sequences * (of_sequence + copied) + blocks_for(limits.n_rows);
}

int64_t blocks_of_states(const LayerGroupLimits& limits) {
  const int64_t of_rows = (int64_t{limits.n_rows} + limits.block_size - 1) / limits.block_size;
  return int64_t{2} * limits.n_sequences + of_rows;
}

namespace {

int wider(int window, int other) { return window == 0 || other == 0 ? 0 : std::max(window, other); }

// Appends the layer to the storage of its group and shape, and returns its place.
LayerPlace next_place(LayerGroups& made, int group, const LayerKv& layer) {
  const auto fits = [&](const LayerStorage& storage) {
    return storage.group == group && storage.shape == layer.shape;
  };
  const auto found = std::ranges::find_if(made.storages, fits);
  const auto storage = static_cast<int>(found - made.storages.begin());
  if (found == made.storages.end()) {
    made.storages.push_back({.group = group, .shape = layer.shape, .window = layer.window});
  }
  made.groups[static_cast<size_t>(group)].n_layers += 1;
  LayerStorage& place = made.storages[static_cast<size_t>(storage)];
  place.window = wider(place.window, layer.window);
  return {group, storage, place.n_layers++};
}

}  // namespace

LayerGroups group_layers(std::span<const LayerKv> layers, const LayerGroupLimits& limits) {
  LayerGroups made;
  made.groups.push_back({.window = 0, .n_blocks = limits.n_blocks});
  const auto is_state = [](const LayerKv& layer) { return layer.state_size > 0; };
  const auto state = std::ranges::find_if(layers, is_state);
  const int max_windows = limits.max_groups - (state == layers.end() ? 0 : 1);
  std::vector<int> wide_first;
  for (const LayerKv& layer : layers) {
    if (!is_state(layer)) wide_first.push_back(layer.window);
  }
  std::sort(wide_first.begin(), wide_first.end(), std::greater<>());
  wide_first.erase(std::unique(wide_first.begin(), wide_first.end()), wide_first.end());
  for (const int window : wide_first) {
    if (window == 0 || static_cast<int>(made.groups.size()) == max_windows) continue;
    const int64_t n_blocks = blocks_of_window(window, limits);
    if (n_blocks >= limits.n_blocks) continue;
    made.groups.push_back({.window = window, .n_blocks = static_cast<int>(n_blocks)});
  }
  const size_t last = made.groups.size() - 1;
  for (const LayerKv& layer : layers) {
    if (is_state(layer)) {
      made.places.emplace_back();  // set at the end
      continue;
    }
    if (layer.read_from >= 0) {
      made.places.push_back(made.places[static_cast<size_t>(layer.read_from)]);
      continue;
    }
    // Chooses the last group whose window is at least as wide.
    size_t group = last;
    while (group > 0 && (layer.window == 0 || made.groups[group].window < layer.window)) --group;
    made.places.push_back(next_place(made, static_cast<int>(group), layer));
  }
  if (state == layers.end()) return made;
  const auto group = static_cast<int>(made.groups.size());
  const auto storage = static_cast<int>(made.storages.size());
  LayerGroup& states = made.groups.emplace_back(LayerGroup{
      .window = kStateWindow,
      .n_blocks = static_cast<int>(blocks_of_states(limits)),
      .is_state = true,
  });
  for (size_t i = 0; i < layers.size(); ++i) {
    if (is_state(layers[i])) made.places[i] = {group, storage, states.n_layers++};
  }
  made.storages.push_back({.group = group,
                           .n_layers = states.n_layers,
                           .window = kStateWindow,
                           .state_size = state->state_size});
  return made;
}

}  // namespace pb
