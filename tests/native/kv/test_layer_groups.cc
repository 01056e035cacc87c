#include <algorithm>

#include "check.h"
#include "kv/kv_cache.h"
#include "kv/layer_groups.h"

namespace pb::test {
namespace {

constexpr LayerGroupLimits kLong{
    .n_blocks = 1024, .block_size = 32, .n_sequences = 1, .n_rows = 512, .max_groups = 4};

// Of layers of one shape.
LayerGroups group_layers(const std::vector<int>& windows, const LayerGroupLimits& limits) {
  std::vector<LayerKv> layers;
  for (const int window : windows) layers.push_back({.window = window, .shape = {1, 1}});
  return pb::group_layers(layers, limits);
}

// Gemma 3's shape: of six layers, five see 1,024 positions and one sees all; 26 layers.
std::vector<int> gemma_windows() {
  std::vector<int> windows;
  for (int layer = 0; layer < 26; ++layer) windows.push_back(layer % 6 == 5 ? 0 : 1024);
  return windows;
}

// KV of a layer for so many positions.
int64_t positions(const LayerGroups& made, int block_size) {
  int64_t n = 0;
  for (const LayerGroup& group : made.groups) {
    n += int64_t{group.n_blocks} * block_size * group.n_layers;
  }
  return n;
}

TEST(layers_that_see_all_are_one_group) {
  const LayerGroups made = group_layers(std::vector<int>(5, 0), kLong);
  EXPECT_EQ(made.groups.size(), 1u);
  EXPECT_EQ(made.groups[0].n_blocks, 1024);
  EXPECT_EQ(made.groups[0].n_layers, 5);
  for (int layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(made.places[size_t(layer)].group, 0);
    EXPECT_EQ(made.places[size_t(layer)].layer, layer);
  }
}

TEST(layers_of_a_window_are_a_group) {
  const std::vector<int> windows = {64, 0, 256, 64, 0, 64};
  const LayerGroups made = group_layers(windows, kLong);
  EXPECT_EQ(made.groups.size(), 3u);
  for (size_t layer = 0; layer < windows.size(); ++layer) {
    const LayerPlace place = made.places[layer];
    EXPECT_EQ(made.groups[size_t(place.group)].window, windows[layer]);
    EXPECT_EQ(place.layer,
              std::count(windows.begin(), windows.begin() + long(layer), windows[layer]));
  }
  EXPECT_EQ(made.groups[2].n_layers, 3);
  EXPECT_EQ(made.groups[2].n_blocks, 3 + 1 + 16);  // 63 positions before a token; a copy; 512 rows
}

TEST(a_model_of_windows_alone_has_a_first_group_without_layers) {
  const LayerGroups made = group_layers(std::vector<int>(3, 256), kLong);
  EXPECT_EQ(made.groups.size(), 2u);
  EXPECT_EQ(made.groups[0].n_layers, 0);
  EXPECT_EQ(made.groups[0].n_blocks, 1024);
  EXPECT_EQ(made.groups[1].n_layers, 3);
}

TEST(a_window_that_saves_nothing_is_no_group) {
  LayerGroupLimits limits = kLong;
  limits.n_sequences = 30;  // of 34 blocks each, and 16 for rows: more than there are
  EXPECT_EQ(group_layers(gemma_windows(), limits).groups.size(), 1u);
  limits.n_sequences = 29;
  EXPECT_EQ(group_layers(gemma_windows(), limits).groups.size(), 2u);
}

TEST(layers_of_a_group_have_a_storage_for_each_shape) {
  const KvShape narrow{4, 8}, wide{1, 16};
  const std::vector<LayerKv> layers = {{.window = 64, .shape = narrow},
                                       {.window = 0, .shape = wide},
                                       {.window = 64, .shape = narrow},
                                       {.window = 0, .shape = narrow},
                                       {.window = 0, .shape = wide}};
  const LayerGroups made = pb::group_layers(layers, kLong);
  EXPECT_EQ(made.groups.size(), 2u);
  EXPECT_EQ(made.groups[0].n_layers, 3);
  EXPECT_EQ(made.groups[1].n_layers, 2);
  EXPECT_EQ(made.storages.size(), 3u);
  std::vector<int> seen(made.storages.size(), 0);
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const LayerPlace place = made.places[layer];
    const LayerStorage& storage = made.storages[size_t(place.storage)];
    EXPECT_EQ(place.group, storage.group);
    EXPECT_EQ(place.group, layers[layer].window == 0 ? 0 : 1);
    EXPECT(storage.shape == layers[layer].shape);
    EXPECT_EQ(place.layer, seen[size_t(place.storage)]++);
  }
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(made.storages[i].n_layers, seen[i]);
}

TEST(a_storage_knows_the_widest_window_of_its_layers) {
  const auto windows_of = [](const std::vector<int>& windows, int max_groups) {
    LayerGroupLimits limits = kLong;
    limits.max_groups = max_groups;
    std::vector<int> of_storages;
    for (const LayerStorage& s : group_layers(windows, limits).storages) {
      of_storages.push_back(s.window);
    }
    return of_storages;
  };
  EXPECT(windows_of({64, 0, 256, 64}, 4) == (std::vector{64, 0, 256}));
  EXPECT(windows_of({64, 256, 128}, 2) == std::vector{256});
  EXPECT(windows_of({64, 256}, 1) == std::vector{256});
  EXPECT(windows_of({64, 0, 256}, 1) == std::vector{0});
  EXPECT(windows_of({0, 64}, 1) == std::vector{0});
}

TEST(a_layer_that_reads_from_another_takes_nothing) {
  const KvShape narrow{4, 8}, wide{1, 16};
  const std::vector<LayerKv> layers = {
      {.window = 64, .shape = narrow},
      {.window = 0, .shape = wide},
      {.window = 64, .shape = narrow, .read_from = 0},
      {.window = 0, .shape = wide, .read_from = 1},
      {.window = 64, .shape = narrow, .read_from = 0},
  };
  const LayerGroups made = pb::group_layers(layers, kLong);
  EXPECT_EQ(made.groups[0].n_layers, 1);
  EXPECT_EQ(made.groups[1].n_layers, 1);
  EXPECT_EQ(made.storages.size(), 2u);
  for (size_t layer = 2; layer < layers.size(); ++layer) {
    const LayerPlace own = made.places[size_t(layers[layer].read_from)];
    EXPECT_EQ(made.places[layer].storage, own.storage);
    EXPECT_EQ(made.places[layer].layer, own.layer);
  }
}

TEST(windows_beyond_the_groups_join_the_last_that_is_wide_enough) {
  LayerGroupLimits limits = kLong;
  limits.max_groups = 3;
  const std::vector<int> windows = {32, 300, 128, 0, 64};
  const LayerGroups made = group_layers(windows, limits);
  EXPECT_EQ(made.groups.size(), 3u);
  EXPECT_EQ(made.groups[1].window, 300);
  EXPECT_EQ(made.groups[2].window, 128);
  EXPECT_EQ(made.groups[2].n_layers, 3);
  limits.max_groups = 1;
  EXPECT_EQ(group_layers(windows, limits).groups[0].n_layers, 5);
}

// What a cache of these groups takes and what it holds, of a context of 32,768 tokens in steps of
// 512: at most 1.1 times the keys and values that the layers' windows hold.
TEST(a_long_context_takes_little_more_than_its_windows) {
  const LayerGroups made = group_layers(gemma_windows(), kLong);
  const int64_t needed = 4 * 32768 + 22 * 1024;
  EXPECT(positions(made, 32) * 10 <= needed * 11);
  EXPECT(positions(made, 32) * 100 > needed * 105);  // the bound is near

  KvCache cache(made.groups, 32, 1, 32768, [](int, int, int) {});
  const int a = cache.seq_new();
  int64_t most = 0;
  const auto held = [&] {
    int64_t n = 0;
    for (int g = 0; g < 2; ++g) {
      n += int64_t{cache.total_blocks(g) - cache.free_blocks(g) - cache.cached_blocks(g)} *
           made.groups[size_t(g)].n_layers * 32;
    }
    return n;
  };
  std::vector<int32_t> tokens(512);
  for (int length = 0; length < 32768; length += 512) {
    for (int i = 0; i < 512; ++i) tokens[size_t(i)] = (length + i) * 7 % 1000;
    cache.reserve(a, tokens);
    most = std::max(most, held());
    cache.commit(a);
  }
  cache.check_integrity();
  EXPECT(most * 10 <= needed * 11);
  EXPECT(held() * 1000 <= needed * 1005);
}

// Whatever the sequences hold, each can append a token and copy a block, and one more is left.
TEST(every_sequence_has_room_for_its_window) {
  for (const int window : {1, 2, 31, 32, 33, 64, 65, 100}) {
    for (const int n_sequences : {1, 3}) {
      const LayerGroupLimits limits{.n_blocks = 100000,
                                    .block_size = 32,
                                    .n_sequences = n_sequences,
                                    .n_rows = 1,
                                    .max_groups = 2};
      const LayerGroups made = group_layers(std::vector<int>{window}, limits);
      KvCache cache(made.groups, 32, n_sequences, 2000, [](int, int, int) {});
      for (int seq_id = 0; seq_id < n_sequences; ++seq_id) cache.seq_new();
      int32_t token = 0;
      for (int i = 0; i < 1000; ++i) {
        for (int seq_id = 0; seq_id < n_sequences; ++seq_id) {
          cache.reserve(seq_id, std::vector<int32_t>(1, token++));
        }
        EXPECT(cache.appendable_blocks() > n_sequences);
        for (int seq_id = 0; seq_id < n_sequences; ++seq_id) cache.commit(seq_id);
      }
      cache.check_integrity();
    }
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
