// Attention of encoders on CUDA: queries see what follows them in the pass, to the end of their
// text or of their window, with the same bits however the work is cut.
#include "cuda_attention_reference.h"

namespace pb::test {
namespace {

using Rows = std::vector<std::vector<float>>;

AttentionCase bidirectional(DType kv, int window = 0) {
  AttentionCase c;
  c.kv = kv;
  c.head_dim = 16;
  c.n_kv_heads = 1;
  c.group = 3;
  c.sliding_window = window;
  c.causal = false;
  return c;
}

TEST(queries_see_to_the_end_of_their_text_or_of_their_window) {
  set_order(1);
  for (const DType kv : kTypes) {
    for (const int window : {0, 1, 24, 300}) {
      for (const int length : {1, 37, 256, 300, 530}) {
        check_definition(bidirectional(kv, window), length, 0);
      }
    }
  }
}

TEST(heads_of_any_size_are_near_to_the_definition) {
  set_order(2);
  for (const DType kv : kTypes) {
    for (const int head_dim : {12, 64, 96, 128, 256}) {
      AttentionCase c = bidirectional(kv, 20);
      c.head_dim = head_dim;
      c.group = 1;
      check_definition(c, 70, 0);
    }
  }
}

TEST(work_that_is_cut_otherwise_has_the_same_bits) {
  for (const DType kv : kTypes) {
    for (const int window : {0, 40}) {
      AttentionCase c = bidirectional(kv, window);
      const Sequence s = make_sequence(c, 300, 4, 0);
      KvCache cache(c, 12);
      cache.write(s, 0, 300);
      const Part part{&s, 0, 300};
      set_order(3);
      const Rows expected = attend(c, cache, {&part, 1});
      for (const bool large : {false, true}) {
        for (const int64_t state_bytes : {int64_t{0}, int64_t{1} << 16, int64_t{1} << 24}) {
          for (const int n_multiprocessors : {1, 30}) {
            c.large_tiles = large;
            c.state_bytes = state_bytes;
            c.n_multiprocessors = n_multiprocessors;
            EXPECT(attend(c, cache, {&part, 1}) == expected);
          }
        }
      }
    }
  }
}

// A plan serves layers with windows and layers that see all.
TEST(a_window_in_a_plan_of_what_sees_all_has_the_bits_of_its_own) {
  set_order(4);
  for (const DType kv : kTypes) {
    AttentionCase c = bidirectional(kv, 40);
    c.n_multiprocessors = 30;
    const Sequence s = make_sequence(c, 530, 5, 0);
    KvCache cache(c, 20);
    cache.write(s, 0, 530);
    const Part part{&s, 0, 530};
    const Rows expected = attend(c, cache, {&part, 1});
    c.planned_window = 0;
    EXPECT(attend(c, cache, {&part, 1}) == expected);
  }
}

TEST(a_text_has_the_same_bits_alone_and_in_company) {
  for (const DType kv : kTypes) {
    for (const int window : {0, 40}) {
      const AttentionCase c = bidirectional(kv, window);
      std::vector<Sequence> texts;
      std::vector<Part> parts;
      KvCache cache(c, 60);
      texts.reserve(4);
      for (const int length : {5, 300, 37, 70}) {
        const auto i = static_cast<uint32_t>(texts.size());
        texts.push_back(make_sequence(c, length, 20 + i, static_cast<int>(12 * i)));
        cache.write(texts.back(), 0, length);
        parts.push_back({&texts.back(), 0, length});
      }
      for (uint64_t seed = 0; seed < n_orders(4); ++seed) {
        set_order(seed, MmaModel::kHopper);
        const Rows rows = attend(c, cache, parts);
        size_t row = 0;
        for (const Part& part : parts) {
          for (const auto& alone : attend(c, cache, {&part, 1})) EXPECT(alone == rows[row++]);
        }
      }
    }
  }
}

TEST(a_value_that_is_not_finite_shows_in_rows_that_see_it_and_in_no_other) {
  for (const DType kv : kTypes) {
    for (const bool large : {false, true}) {
      AttentionCase c = bidirectional(kv, 30);
      c.group = 1;
      c.large_tiles = large;
      set_order(5, MmaModel::kHopper);
      const Sequence s = make_sequence(c, 100, 7, 0);
      KvCache cache(c, 4);
      cache.write(s, 0, 100);
      const Part part{&s, 0, 100};
      const Rows good = attend(c, cache, {&part, 1});
      cache.spoil_value(s, 50, 0, 5, INFINITY);
      const Rows rows = attend(c, cache, {&part, 1});
      for (int position = 0; position < 100; ++position) {
        const bool sees = position > 50 - 30 && position < 50 + 30;
        const auto& row = rows[static_cast<size_t>(position)];
        if (!sees) EXPECT(row == good[static_cast<size_t>(position)]);
        EXPECT_EQ(std::isfinite(row[5]), !sees);
      }
    }
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
