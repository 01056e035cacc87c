// Sinks of attention on CUDA: a logit of each head that joins its softmax and has no value, once,
// however the work is cut.
#include "cuda_attention_reference.h"

namespace pb::test {
namespace {

AttentionCase with_sinks(DType kv) {
  AttentionCase c;
  c.kv = kv;
  c.head_dim = 16;
  c.group = 3;
  c.sinks = {0.3f, -2.0f, 4.0f, 30.0f, -200.0f, 1.5f};  // far above and below all scores, too
  return c;
}

TEST(sinks_are_near_to_the_definition) {
  set_order(1);
  for (const DType kv : kTypes) {
    for (const int window : {0, 40}) {
      AttentionCase c = with_sinks(kv);
      c.sliding_window = window;
      check_definition(c, 37, 0);
      check_definition(c, 300, 297);
    }
  }
}

TEST(a_sink_that_is_infinitely_likely_leaves_nothing) {
  set_order(2);
  for (const DType kv : kTypes) {
    AttentionCase c = with_sinks(kv);
    c.sinks = std::vector<float>(6, 1e30f);
    const Sequence s = make_sequence(c, 20, 1, 0);
    KvCache cache(c, 2);
    cache.write(s, 0, 20);
    const Part part{&s, 0, 20};
    for (const auto& row : attend(c, cache, {&part, 1})) {
      for (const float x : row) EXPECT_EQ(x, 0.0f);
    }
  }
}

// What has no sinks keeps its bits: a sink that is nothing changes none.
TEST(a_sink_of_no_weight_changes_no_bit) {
  set_order(3);
  for (const DType kv : kTypes) {
    AttentionCase c = with_sinks(kv);
    const Sequence s = make_sequence(c, 300, 2, 0);
    KvCache cache(c, 12);
    cache.write(s, 0, 300);
    const Part part{&s, 280, 20};
    c.sinks = std::vector<float>(6, -1e30f);
    const auto rows = attend(c, cache, {&part, 1});
    c.sinks = {};
    EXPECT(rows == attend(c, cache, {&part, 1}));
  }
}

TEST(a_row_has_the_same_bits_alone_and_in_company_and_however_it_is_cut) {
  for (const DType kv : kTypes) {
    const AttentionCase c = with_sinks(kv);
    const Sequence a = make_sequence(c, 600, 4, 0);
    const Sequence b = make_sequence(c, 530, 5, 20, &a, 512);
    KvCache cache(c, 50);
    cache.write(a, 0, 600);
    cache.write(b, 512, 18);
    const std::vector<Part> parts = {{&a, 590, 10}, {&b, 528, 2}};
    set_order(0);
    const auto expected = attend(c, cache, parts);
    for (uint64_t seed = 1; seed <= n_orders(5); ++seed) {
      set_order(seed);
      AttentionCase cut = c;
      cut.large_tiles = seed % 2 == 0;
      cut.n_multiprocessors = seed % 3 == 0 ? 30 : 1;
      cut.state_bytes = seed % 3 == 1 ? 0 : int64_t{1} << 24;
      EXPECT(attend(cut, cache, parts) == expected);
    }
    set_order(6);
    size_t row = 0;
    for (const Part& part : parts) {
      for (int i = 0; i < part.n; ++i) {
        const Part one{part.sequence, part.first + i, 1};
        EXPECT(same_bits(attend(c, cache, {&one, 1})[0], expected[row++]));
      }
    }
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
