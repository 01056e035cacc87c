#include "kv/layer_groups.h"

#include <algorithm>
#include <functional>

namespace pb {

int64_t blocks_of_window(int window, const LayerGroupLimits& limits) {
  const auto blocks_for = [&](int64_t positions) {
    return (positions + limits.block_size - 1) / limits.block_size;
  };
  // The window - 1 positions before a token begin anywhere in a block.
  const int64_t of_sequence = blocks_for(int64_t{window} - 1) + 1;
  const int64_t copied = 1;
  return limits.n_sequences * (of_sequence + copied) + blocks_for(limits.n_rows);
}

LayerGroups group_layers(std::span<const int> windows, const LayerGroupLimits& limits) {
  LayerGroups made{.groups = {{.window = 0, .n_blocks = limits.n_blocks, .n_layers = 0}},
                   .places = {}};
  std::vector<int> wide_first(windows.begin(), windows.end());
  std::sort(wide_first.begin(), wide_first.end(), std::greater<>());
  wide_first.erase(std::unique(wide_first.begin(), wide_first.end()), wide_first.end());
  for (const int window : wide_first) {
    if (window == 0 || static_cast<int>(made.groups.size()) == limits.max_groups) continue;
    const int64_t n_blocks = blocks_of_window(window, limits);
    if (n_blocks >= limits.n_blocks) continue;
    made.groups.push_back({.window = window, .n_blocks = static_cast<int>(n_blocks)});
  }
  for (const int window : windows) {
    // The last group that sees as far.
    size_t group = made.groups.size() - 1;
    while (group > 0 && (window == 0 || made.groups[group].window < window)) --group;
    made.places.push_back({static_cast<int>(group), made.groups[group].n_layers++});
  }
  return made;
}

}  // namespace pb
