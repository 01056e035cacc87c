// Attention on CUDA with heads of more than 256: smaller tiles that fit every GPU, and the same
// bits however rows, KV blocks and work are cut.
#include "cuda_attention_reference.h"

namespace pb::test {
namespace {

using Rows = std::vector<std::vector<float>>;

constexpr size_t kLeastSharedBytes = size_t{99} << 10;  // of a block, of any GPU: sm_89's

AttentionCase wide(DType kv, int head_dim = 512) {
  AttentionCase c;
  c.kv = kv;
  c.head_dim = head_dim;
  c.n_kv_heads = 1;
  return c;
}

TEST(tiles_of_both_sizes_fit_every_gpu) {
  const cuda::AttentionDevice least{.n_multiprocessors = 1, .max_shared_bytes = kLeastSharedBytes};
  for (const DType kv : kTypes) {
    for (const int head_dim : {258, 320, 512}) {
      EXPECT_EQ(cuda::large_tile(least, {kv, head_dim, 16}), kv == DType::kF32 ? 0 : 32);
      cuda::AttentionParams params{};
      params.kv.head_dim = head_dim;
      for (const bool large : {false, true}) {
        EXPECT(cuda::launch_attention(least, kv, large, params).shared_bytes <= kLeastSharedBytes);
      }
    }
  }
}

TEST(wide_heads_are_near_to_the_definition) {
  set_order(1);
  for (const DType kv : kTypes) {
    for (const int head_dim : {258, 320, 512}) {
      check_definition(wide(kv, head_dim), 37, 0);     // large tiles, where there are any
      check_definition(wide(kv, head_dim), 300, 297);  // a small one
    }
    AttentionCase c = wide(kv);
    c.sliding_window = 40;
    c.softcap = 0.7f;
    c.group = 3;
    check_definition(c, 70, 50);
    c.causal = false;
    check_definition(c, 70, 0);
  }
}

TEST(wide_rows_have_the_same_bits_alone_in_chunks_and_under_any_cut) {
  for (const DType kv : kTypes) {
    AttentionCase c = wide(kv);
    const Sequence s = make_sequence(c, 300, 4, 0);
    KvCache cache(c, 20);
    cache.write(s, 0, 300);
    const Part part{&s, 270, 30};
    set_order(2, MmaModel::kHopper);
    const Rows expected = attend(c, cache, {&part, 1});
    for (const int i : {0, 13, 29}) {
      const Part alone{&s, 270 + i, 1};
      EXPECT(same_bits(attend(c, cache, {&alone, 1})[0], expected[static_cast<size_t>(i)]));
    }
    for (const bool large : {false, true}) {
      for (const bool apart : {false, true}) {
        c.large_tiles = large;
        c.state_bytes = apart ? int64_t{1} << 24 : 0;
        c.n_multiprocessors = apart ? 30 : 1;
        set_order(3, MmaModel::kHopper);
        const Rows rows = attend(c, cache, {&part, 1});
        for (size_t r = 0; r < rows.size(); ++r) EXPECT(same_bits(rows[r], expected[r]));
      }
    }
  }
}

TEST(wide_rows_of_sequences_that_share_a_prefix_have_the_bits_of_each_alone) {
  for (const DType kv : kTypes) {
    const AttentionCase c = wide(kv, 264);
    std::vector<Sequence> sequences;
    sequences.push_back(make_sequence(c, 330, 11, 0));
    sequences.push_back(make_sequence(c, 300, 12, 20, &sequences[0], 256));
    KvCache cache(c, 40);
    std::vector<Part> parts;
    for (const Sequence& s : sequences) {
      const int length = static_cast<int>(s.qkv.size()) / c.row_size();
      cache.write(s, 0, length);
      parts.push_back({&s, length - 2, 2});
    }
    for (uint64_t seed = 0; seed < n_orders(3); ++seed) {
      set_order(seed);
      const Rows rows = attend(c, cache, parts);
      size_t row = 0;
      for (const Part& part : parts) {
        for (const auto& alone : attend(c, cache, {&part, 1})) {
          EXPECT(same_bits(alone, rows[row++]));
        }
      }
    }
  }
}

TEST(a_wide_value_that_is_not_finite_shows_in_rows_that_see_it_and_in_no_other) {
  for (const DType kv : kTypes) {
    for (const bool large : {false, true}) {
      AttentionCase c = wide(kv);
      c.group = 1;
      c.sliding_window = 30;
      c.large_tiles = large;
      set_order(4, MmaModel::kHopper);
      const Sequence s = make_sequence(c, 100, 7, 0);
      KvCache cache(c, 4);
      cache.write(s, 0, 100);
      const Part part{&s, 20, 60};
      const Rows good = attend(c, cache, {&part, 1});
      cache.spoil_value(s, 40, 0, 400, INFINITY);
      const Rows rows = attend(c, cache, {&part, 1});
      for (int r = 0; r < part.n; ++r) {
        const int position = part.first + r;
        const bool sees = position >= 40 && position < 40 + c.sliding_window;
        const auto& row = rows[static_cast<size_t>(r)];
        if (!sees) EXPECT(same_bits(row, good[static_cast<size_t>(r)]));
        EXPECT_EQ(std::isfinite(row[400]), !sees);
      }
    }
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
