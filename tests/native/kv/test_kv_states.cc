// A group of states: which block each token's state is in, that none is written to once its tokens
// are committed, and where a sequence can be gone on from.

#include <algorithm>
#include <map>
#include <random>

#include "kv/kv_cache.h"
#include "kv/layer_groups.h"
#include "kv_fixture.h"

using namespace pb::test;
using pb::LayerGroup;

namespace {

uint64_t after(uint64_t state, int32_t token) {
  return (state ^ static_cast<uint64_t>(token + 1)) * 0x9E3779B97F4A7C15u + 77;
}

std::vector<LayerGroup> groups_of(int n_full, int n_states) {
  return {{.window = 0, .n_blocks = n_full},
          {.window = pb::kStateWindow, .n_blocks = n_states, .is_state = true}};
}

// A cache whose blocks hold states that are numbers: the engine's part.
struct Played {
  Played(int n_full, int n_states, int block_size, int n_parallel, int max_length)
      : block_size(block_size),
        states(static_cast<size_t>(n_states)),
        cache(groups_of(n_full, n_states), block_size, n_parallel, max_length,
              [](int group, int, int) { EXPECT_EQ(group, 0); }) {}

  int make(const std::string& name = "") {
    const int seq_id = cache.seq_new(name);
    starts[seq_id] = name == "" ? 1 : 2;
    return seq_id;
  }

  // Reserves, and computes the reserved tokens in passes of n_rows, as an engine does.
  void compute(int seq_id, const Tokens& tokens, int n_rows) {
    cache.reserve(seq_id, tokens);
    const int length = cache.seq_length(seq_id);
    for (size_t first = 0; first < tokens.size(); first += size_t(n_rows)) {
      const int from = cache.state_block(seq_id, length + int(first));
      uint64_t state = from < 0 ? starts[seq_id] : states[size_t(from)];
      const size_t end = std::min(tokens.size(), first + size_t(n_rows));
      for (size_t i = first; i < end; ++i) {
        state = after(state, tokens[i]);
        const size_t place = (size_t(length) + i) / size_t(block_size);
        states[size_t(cache.block_table(seq_id, 1)[place])] = state;
      }
    }
  }
  void append(int seq_id, const Tokens& tokens) {
    compute(seq_id, tokens, 5);
    cache.commit(seq_id);
  }

  void expect_state(int seq_id) {
    uint64_t state = starts[seq_id];
    for (const int32_t token : cache.tokens(seq_id)) state = after(state, token);
    const int block = cache.state_block(seq_id, cache.seq_length(seq_id));
    EXPECT_EQ(block < 0 ? starts[seq_id] : states[size_t(block)], state);
  }
  void expect_sound() {
    cache.check_integrity();
    for (const auto& [seq_id, start] : starts) {
      if (cache.seq_exists(seq_id)) expect_state(seq_id);
    }
  }
  int used() const { return cache.total_blocks(1) - cache.free_blocks(1) - cache.cached_blocks(1); }

  int block_size;
  std::map<int, uint64_t> starts;
  std::vector<uint64_t> states;  // by block
  pb::KvCache cache;
};

}  // namespace

TEST(a_sequence_holds_one_state) {
  for (const int chunk : {1, 3, 4, 13}) {
    Played f(20, 20, kBlock, 1, 80);
    const int a = f.make();
    for (int length = 0; length + chunk <= 80; length += chunk) {
      f.append(a, run(chunk, length));
      f.expect_sound();
      EXPECT_EQ(f.used(), 1);
    }
  }
}

TEST(a_step_that_fails_has_changed_no_state) {
  Played f(20, 20, kBlock, 1, 80);
  const int a = f.make();
  f.append(a, run(10));
  for (const int n : {1, 2, 3, 9}) {
    f.compute(a, run(n, 50), 2);
    EXPECT_EQ(f.cache.state_block(a, 10) == f.cache.block_table(a, 1)[2], false);
    f.cache.rollback(a);
    f.expect_sound();
    EXPECT_EQ(f.used(), 1);
  }
}

TEST(drafts_cannot_be_given_up) {
  Played f(20, 20, kBlock, 1, 80);
  const int a = f.make();
  f.compute(a, run(6), 6);
  EXPECT_THROWS(Code::kEngine, f.cache.commit(a, 5));
  f.cache.commit(a, 6);
  f.expect_sound();
}

TEST(a_sequence_is_copied_as_it_is_and_at_whole_blocks) {
  Played f(20, 20, kBlock, 2, 80);
  const int a = f.make();
  f.append(a, run(10));
  for (const auto& [wanted, had] : std::map<int, int>{{10, 10}, {9, 8}, {8, 8}, {5, 4}, {0, 0}}) {
    EXPECT_EQ(f.cache.seq_copyable(a, wanted), had);
    const int b = f.make();
    if (had < wanted) {
      EXPECT(has(message_of([&] { f.cache.seq_copy(a, b, wanted); }), "have no state"));
    }
    f.cache.seq_copy(a, b, had);
    f.expect_sound();
    f.append(b, run(3, 70));
    f.expect_sound();
    f.cache.seq_remove(b);
  }
}

TEST(a_state_that_is_shared_is_nobodys_to_write) {
  Played f(20, 20, kBlock, 3, 80);
  const int a = f.make();
  f.append(a, run(6));
  const int b = f.make();
  f.cache.seq_copy(a, b, 6);
  EXPECT_EQ(f.used(), 1);
  f.compute(a, run(1, 20), 1);
  f.compute(b, run(1, 30), 1);
  f.cache.rollback(a);
  f.cache.commit(b);
  f.expect_sound();
  f.append(a, run(7, 40));
  f.expect_sound();
}

TEST(a_prefix_is_found_where_its_state_is) {
  Played f(20, 4, kBlock, 2, 80);
  const int a = f.make();
  for (int i = 0; i < 6; ++i) f.append(a, run(4, 4 * i));
  f.cache.seq_remove(a);
  EXPECT_EQ(f.cache.cached_blocks(1), 4);
  const int b = f.make();
  EXPECT_EQ(f.cache.seq_match(b, run(24)), 20);
  f.expect_sound();
  f.append(b, run(4, 20));
  f.expect_sound();
}

TEST(what_can_be_appended_leaves_each_sequence_its_next_state) {
  Played f(40, 12, kBlock, 3, 80);
  EXPECT_EQ(f.cache.appendable_blocks(), 12);
  for (int i = 0; i < 3; ++i) f.append(f.make(), run(2, 100 * i));
  EXPECT_EQ(f.cache.appendable_blocks(), 12 - 3 - 3);
  for (int i = 1; i < 3; ++i) f.compute(i, run(1), 1);
  f.compute(0, run(2 + 4 * 6, 7), 100);
  EXPECT(has(message_of([&] {
               f.cache.rollback(0);
               f.compute(0, run(2 + 4 * 6 + 1, 7), 100);
             }),
             "for states of recurrent layers"));
}

TEST(random_schedules_over_states) {
  std::mt19937 random(11);
  const auto pick = [&](int n) { return int(random() % unsigned(n)); };
  int n_matched = 0, n_full = 0, n_cut = 0, n_copies = 0;
  for (int round = 0; round < 600; ++round) {
    const int block_size = 1 << pick(4);
    const int n_parallel = 1 + pick(5);
    Played f(4 + pick(40), 3 + pick(24), block_size, n_parallel, 60);
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
      const bool has_id = int(settled.size() + reserved.size()) < n_parallel;
      try {
        if (what < 3 && has_id) {
          const int seq_id = f.make(pick(5) == 0 ? "other" : "");
          settled.push_back(seq_id);
          n_matched += f.cache.seq_match(seq_id, text(60, 0));
        } else if (what == 3 && !settled.empty() && has_id) {
          const int src = settled[size_t(pick(int(settled.size())))];
          const int dst = f.make(f.starts[src] == 1 ? "" : "other");
          settled.push_back(dst);
          const int wanted = pick(f.cache.seq_length(src) + 1);
          const int n = f.cache.seq_copyable(src, wanted);
          EXPECT(n == wanted || n % block_size == 0);
          n_cut += n < wanted ? 1 : 0;
          f.cache.seq_copy(src, dst, n);
          ++n_copies;
        } else if (what < 9 && !settled.empty()) {
          const int seq_id = take(settled);
          settled.push_back(seq_id);
          f.compute(seq_id, text(1 + pick(12), f.cache.seq_length(seq_id)), 1 + pick(6));
          settled.pop_back();
          reserved.push_back(seq_id);
          f.cache.check_integrity();
          if (pick(3) > 0) {
            const int done = take(reserved);
            f.cache.commit(done);
            settled.push_back(done);
          }
        } else if (what == 9 && !reserved.empty()) {
          const int seq_id = take(reserved);
          pick(2) == 0 ? f.cache.rollback(seq_id) : f.cache.commit(seq_id);
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
      f.cache.check_integrity();
      for (const int seq_id : settled) f.expect_state(seq_id);
    }
    for (const int seq_id : reserved) f.cache.rollback(seq_id);
    settled.insert(settled.end(), reserved.begin(), reserved.end());
    for (const int seq_id : settled) f.expect_state(seq_id);
    for (const int seq_id : settled) f.cache.seq_remove(seq_id);
    EXPECT_EQ(f.used(), 0);
    f.cache.drop_cached();
    EXPECT_EQ(f.cache.free_blocks(1), f.cache.total_blocks(1));
    f.cache.check_integrity();
  }
  EXPECT(n_matched > 500 && n_full > 500 && n_cut > 20 && n_copies > 300);
}

PB_TEST_MAIN()
