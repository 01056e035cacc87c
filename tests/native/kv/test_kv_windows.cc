// Groups of layers with a window: what they give back, what is found again, and that no block is
// ever read that holds something else.

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <utility>

#include "kv/kv_cache.h"
#include "kv/layer_groups.h"
#include "kv_fixture.h"

using namespace pb::test;
using pb::LayerGroup;

namespace {

// What a token's keys and values are made of: all tokens up to it, and the name space.
uint64_t key_of(uint64_t before, int32_t token) {
  return (before ^ static_cast<uint64_t>(token + 1)) * 0x9E3779B97F4A7C15u + 77;
}

// A cache whose blocks hold, for each position, the key of the token that was computed there: the
// engine's part, played with numbers.
struct Played {
  Played(const std::vector<LayerGroup>& groups, int block_size, int n_parallel, int max_length)
      : groups(groups),
        block_size(block_size),
        cache(groups, block_size, n_parallel, max_length, [this](int group, int from, int to) {
          storage[size_t(group)][size_t(to)] = storage[size_t(group)][size_t(from)];
        }) {
    for (const LayerGroup& group : groups) {
      storage.emplace_back(size_t(group.n_blocks), std::vector<uint64_t>(size_t(block_size)));
    }
  }

  uint64_t start_of(int seq_id) const { return names.at(seq_id) == "" ? 1 : 2; }

  int make(const std::string& name = "") {
    const int seq_id = cache.seq_new(name);
    names[seq_id] = name;
    return seq_id;
  }

  // Reserves and writes the reserved positions, as a pass does.
  void compute(int seq_id, const Tokens& tokens) {
    const auto known = cache.tokens(seq_id);
    Tokens all(known.begin(), known.end());
    const size_t length = all.size();
    cache.reserve(seq_id, tokens);
    expect_window(seq_id, all);
    all.insert(all.end(), tokens.begin(), tokens.end());
    uint64_t key = start_of(seq_id);
    for (size_t p = 0; p < all.size(); ++p) {
      key = key_of(key, all[p]);
      if (p < length) continue;
      for (size_t g = 0; g < groups.size(); ++g) {
        const int block = cache.block_table(seq_id, int(g))[p / size_t(block_size)];
        storage[g][size_t(block)][p % size_t(block_size)] = key;
      }
    }
  }
  void append(int seq_id, const Tokens& tokens) {
    compute(seq_id, tokens);
    cache.commit(seq_id);
  }

  // Every position that the sequence's next token sees is in its blocks.
  void expect_window(int seq_id, std::span<const int32_t> tokens) const {
    uint64_t key = start_of(seq_id);
    for (size_t p = 0; p < tokens.size(); ++p) {
      key = key_of(key, tokens[p]);
      for (size_t g = 0; g < groups.size(); ++g) {
        const int window = groups[g].window;
        if (window > 0 && int(p) < int(tokens.size()) + 1 - window) continue;
        const int block = cache.block_table(seq_id, int(g))[p / size_t(block_size)];
        EXPECT_EQ(storage[g][size_t(block)][p % size_t(block_size)], key);
      }
    }
  }
  void expect_sound() const {
    cache.check_integrity();
    for (const auto& [seq_id, name] : names) {
      if (cache.seq_exists(seq_id)) expect_window(seq_id, cache.tokens(seq_id));
    }
  }
  int used(int group) const {
    return cache.total_blocks(group) - cache.free_blocks(group) - cache.cached_blocks(group);
  }

  std::vector<LayerGroup> groups;
  int block_size;
  std::map<int, std::string> names;
  std::vector<std::vector<std::vector<uint64_t>>> storage;  // group, block, place
  pb::KvCache cache;
};

std::vector<LayerGroup> pools(int n_full, std::vector<std::pair<int, int>> windows) {
  std::vector<LayerGroup> groups = {{.window = 0, .n_blocks = n_full}};
  for (const auto& [window, n_blocks] : windows) {
    groups.push_back({.window = window, .n_blocks = n_blocks});
  }
  return groups;
}

int held(int window, int length) {  // blocks of 4
  const int first = window == 0 ? 0 : std::max(0, length + 1 - window) / kBlock;
  return (length + kBlock - 1) / kBlock - first;
}

}  // namespace

TEST(what_has_left_the_window_is_given_back) {
  for (const int chunk : {1, 3, 4, 13}) {
    Played f(pools(20, {{1, 20}, {2, 20}, {7, 20}, {9, 20}}), kBlock, 1, 80);
    const int a = f.make();
    for (int length = 0; length + chunk <= 80; length += chunk) {
      f.append(a, run(chunk, length));
      f.expect_sound();
      for (int g = 0; g < 5; ++g) {
        EXPECT_EQ(f.used(g), held(f.groups[size_t(g)].window, length + chunk));
      }
    }
  }
}

TEST(nothing_is_given_back_before_it_is_committed) {
  Played f(pools(20, {{5, 20}}), kBlock, 1, 80);
  const int a = f.make();
  f.append(a, run(10));
  const int before = f.used(1);
  f.compute(a, run(12, 10));
  EXPECT_EQ(f.used(1), before + 3);
  f.cache.rollback(a);
  EXPECT_EQ(f.used(1), before);
  f.expect_sound();
  f.compute(a, run(12, 10));
  f.cache.commit(a, 2);  // a draft of 10 tokens is given up
  EXPECT_EQ(f.used(1), held(5, 12));
  f.expect_sound();
  f.append(a, run(20, 12));
  f.expect_sound();
}

TEST(a_window_runs_in_few_blocks) {
  Played f(pools(64, {{8, 5}}), kBlock, 1, 256);
  const int a = f.make();
  for (int length = 0; length < 250; length += 5) f.append(a, run(5, length));
  f.expect_sound();
  EXPECT_EQ(f.cache.block_table(a, 1).size(), 63u);
  const std::string message = message_of([&] { f.compute(a, run(6, 250)); });
  EXPECT_EQ(message, "");
  f.cache.rollback(a);
  Played g(pools(64, {{8, 5}}), kBlock, 1, 256);
  EXPECT(has(message_of([&] { g.append(g.make(), run(21)); }),
             "for layers that see 8 tokens and 5 of 5 can be had; append fewer tokens at once"));
  g.cache.check_integrity();
}

TEST(a_match_ends_where_every_group_has_its_window) {
  // 6 blocks for a window of 8: two of the sequence's, and four of older ones.
  Played f(pools(16, {{8, 6}}), kBlock, 2, 64);
  const int a = f.make();
  for (int i = 0; i < 8; ++i) f.append(a, run(4, 4 * i));
  f.cache.seq_remove(a);
  EXPECT_EQ(f.cache.cached_blocks(0), 8);
  EXPECT_EQ(f.cache.cached_blocks(1), 6);
  // Free blocks were taken first, then the ones given back last: blocks 0 to 2, and the last ones.
  const int b = f.make();
  EXPECT_EQ(f.cache.seq_match(b, run(33)), 32);
  f.expect_sound();
  f.cache.seq_remove(b);
  const int c = f.make();
  EXPECT_EQ(f.cache.seq_match(c, run(21)), 12);  // block 3 and 4 are gone from the window's pool
  EXPECT_EQ(f.cache.block_table(c, 1).size(), 3u);
  EXPECT_EQ(f.cache.first_block(c, 1), 1);
  f.expect_sound();
  for (int i = 3; i < 8; ++i) f.append(c, run(4, 4 * i));  // what was cut off, again
  f.expect_sound();
}

TEST(a_window_that_is_lost_is_computed_again_beside_the_old_blocks) {
  Played f(pools(16, {{8, 4}}), kBlock, 2, 64);
  const int a = f.make();
  for (int i = 0; i < 6; ++i) f.append(a, run(4, 4 * i));
  f.cache.seq_remove(a);
  const int other = f.make();
  f.append(other, run(15, 100));  // takes all four blocks of the window's pool
  EXPECT_EQ(f.cache.cached_blocks(0), 6);
  const int b = f.make();
  EXPECT_EQ(f.cache.seq_match(b, run(24)), 0);
  f.cache.seq_remove(other);
  for (int i = 0; i < 6; ++i) {
    f.append(b, run(4, 4 * i));
    f.expect_sound();
  }
  EXPECT_EQ(f.used(0), 6);
  f.cache.seq_remove(b);
  const int c = f.make();
  EXPECT_EQ(f.cache.seq_match(c, run(25)), 24);
  f.expect_sound();
}

TEST(a_block_that_leaves_the_index_takes_its_mapped_blocks_along) {
  Played f(pools(4, {{100, 8}}), kBlock, 2, 16);
  f.append(f.make(), run(16));
  f.cache.seq_remove(0);
  EXPECT_EQ(f.cache.cached_blocks(1), 4);
  f.append(f.make(), run(8, 50));
  f.expect_sound();
  EXPECT_EQ(f.cache.cached_blocks(0), 2);
  EXPECT_EQ(f.cache.cached_blocks(1), 2);
  f.cache.drop_cached();
  EXPECT_EQ(f.cache.cached_blocks(0), 0);
  EXPECT_EQ(f.cache.cached_blocks(1), 0);
  f.expect_sound();
}

TEST(a_copy_starts_where_its_windows_can_be_had) {
  Played f(pools(32, {{8, 32}}), kBlock, 3, 64);
  const int a = f.make();
  for (int i = 0; i < 6; ++i) f.append(a, run(4, 4 * i));
  for (const int n : {24, 23, 20, 19, 14, 5, 0}) {  // all of it is cached
    EXPECT_EQ(f.cache.seq_copyable(a, n), n);
    const int b = f.make();
    f.cache.seq_copy(a, b, n);
    f.expect_sound();
    f.append(b, run(3, 900));
    f.expect_sound();
    f.cache.seq_remove(b);
  }
  f.cache.drop_cached();
  f.expect_sound();
  EXPECT_EQ(f.cache.seq_copyable(a, 24), 24);
  EXPECT_EQ(f.cache.seq_copyable(a, 21), 0);
  const int b = f.make();
  EXPECT_THROWS(Code::kInvalidRequest, f.cache.seq_copy(a, b, 21));
  EXPECT_EQ(f.cache.seq_length(b), 0);
  EXPECT_THROWS(Code::kInvalidRequest, f.cache.seq_copyable(a, 25));
  EXPECT(has(message_of([&] { f.cache.seq_remove(a, 12); }), "given back KV"));
  EXPECT_EQ(f.cache.seq_length(a), 24);
  f.cache.seq_remove(a, 23);
  f.expect_sound();
  f.cache.seq_remove(a);
  f.expect_sound();
}

TEST(a_tail_is_removed_and_the_window_before_it_taken_back) {
  Played f(pools(20, {{6, 20}}), kBlock, 1, 80);
  const int a = f.make();
  f.append(a, run(60));
  for (const int start : {59, 41, 40, 22, 3}) {
    f.cache.seq_remove(a, start);
    EXPECT_EQ(f.used(1), held(6, start));
    f.expect_sound();
    f.append(a, run(2, 300));
    f.expect_sound();
    f.cache.seq_remove(a, start);
    f.expect_sound();
  }
}

// The views show the cache's own memory, which is not const: writing to it plays the bug.
TEST(check_integrity_finds_damage_in_a_window) {
  Played f(pools(20, {{6, 20}}), kBlock, 2, 80);
  const int a = f.make();
  f.append(a, run(30));
  f.expect_sound();
  const int first = f.cache.first_block(a, 1);
  EXPECT_EQ(first, 6);
  for (const int at : {0, first, 7}) {  // given back; full; the last, in part
    auto& block = const_cast<int32_t&>(f.cache.block_table(a, 1)[size_t(at)]);
    for (const int32_t wrong : {-1, 1, 20}) {
      const int32_t right = std::exchange(block, wrong);
      EXPECT_THROWS(Code::kEngine, f.cache.check_integrity());
      block = right;
    }
  }
  f.cache.check_integrity();
}

TEST(random_schedules_over_windows) {
  std::mt19937 random(7);
  const auto pick = [&](int n) { return int(random() % unsigned(n)); };
  int n_matched = 0, n_full = 0, n_cut = 0, n_copies = 0;
  for (int round = 0; round < 1000; ++round) {
    const int block_size = std::array{1, 2, 4, 8}[size_t(pick(4))];
    const int n_parallel = 1 + pick(5);
    std::vector<std::pair<int, int>> windows;
    for (int i = 0; i <= pick(3); ++i) windows.push_back({1 + pick(20), 2 + pick(24)});
    Played f(pools(4 + pick(40), windows), block_size, n_parallel, 60);
    std::vector<int> settled, reserved;
    const auto text = [&](int n, int from) {  // few texts, so that beginnings are shared
      Tokens tokens;
      const int kind = pick(3);
      for (int i = 0; i < n; ++i) tokens.push_back(kind == 0 ? pick(2) : (from + i) % (3 + kind));
      return tokens;
    };
    const auto take = [&](std::vector<int>& from) {
      const int at = pick(int(from.size()));
      const int seq_id = from[size_t(at)];
      from.erase(from.begin() + at);
      return seq_id;
    };
    for (int step = 0; step < 60; ++step) {
      const int what = pick(12);
      try {
        if (what < 3 && int(settled.size() + reserved.size()) < n_parallel) {
          const int seq_id = f.make(pick(5) == 0 ? "other" : "");
          settled.push_back(seq_id);
          n_matched += f.cache.seq_match(seq_id, text(60, 0));
        } else if (what == 3 && !settled.empty() &&
                   int(settled.size() + reserved.size()) < n_parallel) {
          const int src = settled[size_t(pick(int(settled.size())))];
          const int dst = f.make(f.names[src]);
          settled.push_back(dst);
          const int wanted = pick(f.cache.seq_length(src) + 1);
          const int n = f.cache.seq_copyable(src, wanted);
          EXPECT(n == wanted || n % block_size == 0);
          if (n < wanted) {
            ++n_cut;
            EXPECT_THROWS(Code::kInvalidRequest, f.cache.seq_copy(src, dst, wanted));
            f.expect_sound();
          }
          f.cache.seq_copy(src, dst, n);
          EXPECT_EQ(f.cache.seq_length(dst), n);
          ++n_copies;
        } else if (what < 9 && !settled.empty()) {
          const int seq_id = settled[size_t(pick(int(settled.size())))];
          f.compute(seq_id, text(1 + pick(12), f.cache.seq_length(seq_id)));
          settled.erase(std::find(settled.begin(), settled.end(), seq_id));
          reserved.push_back(seq_id);
          f.expect_sound();
          if (pick(3) > 0) {
            const int done = take(reserved);
            f.cache.commit(done);
            settled.push_back(done);
          }
        } else if (what == 9 && !reserved.empty()) {
          const int seq_id = take(reserved);
          if (pick(2) == 0) {
            f.cache.rollback(seq_id);
          } else {
            f.cache.commit(seq_id, 1);
          }
          settled.push_back(seq_id);
        } else if (what == 10 && !settled.empty()) {
          f.cache.seq_remove(take(settled));
        } else if (what == 11 && !settled.empty()) {
          const int seq_id = settled[size_t(pick(int(settled.size())))];
          const int start = 1 + pick(std::max(1, f.cache.seq_length(seq_id)));
          if (start <= f.cache.seq_length(seq_id)) f.cache.seq_remove(seq_id, start);
        }
      } catch (const pb::Error& e) {
        const bool is_expected = e.code() == Code::kKvCacheFull ||
                                 e.code() == Code::kRequestTooLong ||
                                 e.code() == Code::kInvalidRequest;
        if (!is_expected) throw;
        n_full += e.code() == Code::kKvCacheFull ? 1 : 0;
      }
      f.expect_sound();
    }
    for (const int seq_id : reserved) f.cache.rollback(seq_id);
    settled.insert(settled.end(), reserved.begin(), reserved.end());
    for (const int seq_id : settled) f.cache.seq_remove(seq_id);
    for (int g = 0; g < f.cache.n_groups(); ++g) EXPECT_EQ(f.used(g), 0);
    f.cache.drop_cached();
    for (int g = 0; g < f.cache.n_groups(); ++g) {
      EXPECT_EQ(f.cache.free_blocks(g), f.cache.total_blocks(g));
    }
    f.cache.check_integrity();
  }
  EXPECT(n_matched > 1000 && n_full > 1000 && n_cut > 20 && n_copies > 500);
}

PB_TEST_MAIN()
