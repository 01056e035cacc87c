// Attention whose keys and values are copied by tensor maps and multiplied by wgmma: the bits of
// the kernels on mma.sync, however rows, KV blocks and work are cut.
#include "cuda_attention_reference.h"

namespace pb::test {
namespace {

using Rows = std::vector<std::vector<float>>;

constexpr DType kMapped[] = {DType::kBF16, DType::kF16};

AttentionCase by_maps(DType kv, int head_dim = 64) {
  AttentionCase c;
  c.kv = kv;
  c.head_dim = head_dim;
  c.n_kv_heads = 1;
  c.maps = true;
  return c;
}

// The last rows of a sequence, in one pass.
struct Pass {
  Sequence sequence;
  KvCache cache;
  Part part;

  Pass(const AttentionCase& c, int length, int n_rows, int seed = 4)
      : sequence(make_sequence(c, length, static_cast<uint32_t>(seed), 1)),
        cache(c, length / c.block_size + 2),
        part{&sequence, length - n_rows, n_rows} {
    cache.write(sequence, 0, length);
  }
  Pass(const Pass&) = delete;
  Rows rows(const AttentionCase& c) const { return attend(c, cache, {&part, 1}); }
};

void expect_same(const Rows& rows, const Rows& expected) {
  EXPECT_EQ(rows.size(), expected.size());
  for (size_t r = 0; r < rows.size(); ++r) EXPECT(same_bits(rows[r], expected[r]));
}

// By maps, in one item and with segments apart, as by mma.sync: by small tiles, by large ones, and
// where tiles have been planned for maps.
void expect_the_bits_of_mma(const AttentionCase& c, const Pass& pass) {
  AttentionCase small = c;
  small.large_tiles = false;
  small.maps = false;
  const Rows expected = pass.rows(small);
  launched_kernels().clear();
  for (const bool apart : {false, true}) {
    AttentionCase cut = c;
    cut.state_bytes = apart ? int64_t{1} << 24 : 0;
    cut.n_multiprocessors = apart ? 30 : 1;
    expect_same(pass.rows(cut), expected);
    cut.maps_refused = true;
    expect_same(pass.rows(cut), expected);
    cut.maps = false;
    expect_same(pass.rows(cut), expected);
  }
  EXPECT_EQ(n_left_items(), 0);
  const std::string dim = c.head_dim > 64 ? "_128_tma" : "_64_tma";
  EXPECT(launched_kernels().count(std::string("attention_") + dtype_name(c.kv) + dim) == 1);
}

TEST(rows_are_near_to_the_definition) {
  for (const MmaModel model : {MmaModel::kSequential, MmaModel::kHopper}) {
    set_order(1, model);
    for (const DType kv : kMapped) {
      for (const int head_dim : {8, 64, 104, 128}) {
        if (model == MmaModel::kSequential && head_dim != 64) continue;
        AttentionCase c = by_maps(kv, head_dim);
        check_definition(c, 75, 0);     // a full tile, and one that is not
        check_definition(c, 600, 550);  // with a state of each segment
        c.group = 3;
        c.sliding_window = 40;
        check_definition(c, 300, 200);
        c.softcap = 0.7f;
        c.causal = false;
        check_definition(c, 150, 0);
      }
    }
  }
}

TEST(every_shape_has_the_bits_of_mma) {
  for (const DType kv : kMapped) {
    for (const int head_dim : {16, 64, 128}) {
      for (const int group : {1, 4, 7}) {
        if (kv == DType::kF16 && group != 4) continue;
        AttentionCase c = by_maps(kv, head_dim);
        c.group = group;
        c.n_kv_heads = group == 1 ? 2 : 1;
        set_order(static_cast<uint64_t>(group), MmaModel::kHopper);
        expect_the_bits_of_mma(c, Pass(c, 390, 200 / group));
      }
    }
  }
}

TEST(windows_caps_and_sinks_have_the_bits_of_mma) {
  for (const DType kv : kMapped) {
    AttentionCase c = by_maps(kv, 128);
    for (const int window : {1, 33, 70, 300}) {
      c.sliding_window = window;
      c.causal = window != 70;
      c.softcap = window == 33 ? 0.7f : 0.0f;
      c.sinks = window == 300 ? std::vector<float>{0.5f, -3.0f} : std::vector<float>{};
      set_order(2, MmaModel::kHopper);
      expect_the_bits_of_mma(c, Pass(c, 420, 100));
    }
  }
}

TEST(kv_blocks_of_any_size_have_the_bits_of_mma) {
  for (const int block_size : {8, 16, 64, 128, 256}) {
    AttentionCase c = by_maps(DType::kBF16, 128);
    c.block_size = block_size;
    c.sliding_window = block_size == 16 ? 90 : 0;
    set_order(3, MmaModel::kHopper);
    expect_the_bits_of_mma(c, Pass(c, 333, 80));
  }
}

TEST(small_kv_blocks_and_odd_heads_have_no_map) {
  const cuda::AttentionDevice device{1, size_t{227} << 10, true};
  EXPECT(!cuda::has_tma_kernel(device, {DType::kBF16, 64, 4}));
  EXPECT(!cuda::has_tma_kernel(device, {DType::kBF16, 60, 16}));
  EXPECT(!cuda::has_tma_kernel(device, {DType::kBF16, 96, 16}));
  EXPECT(!cuda::has_tma_kernel(device, {DType::kInt8, 64, 16}));
  EXPECT(!cuda::has_tma_kernel(device, {DType::kF32, 64, 16}));
  EXPECT(!cuda::has_tma_kernel({1, size_t{227} << 10, false}, {DType::kBF16, 64, 16}));
  EXPECT_EQ(cuda::large_tile(device, {DType::kBF16, 64, 16}), 128);
  EXPECT_EQ(cuda::large_tile(device, {DType::kBF16, 64, 4}), 64);
  for (const int head_dim : {64, 128}) {
    cuda::AttentionParams params{};
    params.kv.head_dim = head_dim;
    const auto launched = launch_tma_attention(device, DType::kF16, params, {});
    EXPECT(launched.shared_bytes <= device.max_shared_bytes);
  }
}

TEST(the_order_of_threads_and_blocks_changes_no_bit) {
  for (const DType kv : kMapped) {
    const AttentionCase c = by_maps(kv, kv == DType::kBF16 ? 128 : 64);
    const Pass pass(c, 400, 100);
    set_order(0, MmaModel::kHopper);
    const Rows expected = pass.rows(c);
    for (uint64_t seed = 1; seed <= n_orders(6); ++seed) {
      set_order(seed, MmaModel::kHopper);
      AttentionCase cut = c;
      cut.n_multiprocessors = 1 + static_cast<int>(seed);
      expect_same(pass.rows(cut), expected);
    }
  }
}

TEST(rows_of_several_sequences_have_the_bits_of_each_alone) {
  AttentionCase c = by_maps(DType::kBF16);
  c.group = 4;
  const ThreeSequences three(c, {{{270, 60}, {299, 1}, {20, 70}}});
  set_order(5, MmaModel::kHopper);
  const Rows rows = attend(c, three.cache, three.parts);
  size_t row = 0;
  for (const Part& part : three.parts) {
    for (int i = 0; i < part.n; ++i) {
      const Part alone{part.sequence, part.first + i, 1};
      if (i % 13 == 0) EXPECT(same_bits(attend(c, three.cache, {&alone, 1})[0], rows[row]));
      ++row;
    }
  }
}

// Some rows of both warpgroups see it, some do not.
TEST(a_value_that_is_not_finite_shows_in_rows_that_see_it_and_in_no_other) {
  for (const float bad : {std::nanf(""), INFINITY}) {
    for (const DType kv : kMapped) {
      AttentionCase c = by_maps(kv, 128);
      c.group = 1;
      c.sliding_window = 50;
      set_order(6, MmaModel::kHopper);
      Pass pass(c, 200, 120);
      n_left_items() = 0;
      const Rows good = pass.rows(c);
      EXPECT_EQ(n_left_items(), 0);
      pass.cache.spoil_value(pass.sequence, 130, 0, 100, bad);
      const Rows rows = pass.rows(c);
      EXPECT(n_left_items() > 0);
      AttentionCase small = c;
      small.large_tiles = false;
      const Rows expected = pass.rows(small);
      for (size_t r = 0; r < rows.size(); ++r) {
        const int position = pass.part.first + static_cast<int>(r);
        const bool sees = position >= 130 && position < 130 + c.sliding_window;
        if (!sees) EXPECT(same_bits(rows[r], good[r]));
        for (size_t d = 0; d < rows[r].size(); ++d) {
          EXPECT_EQ(std::isfinite(rows[r][d]), !sees || d != 100);
          if (std::isfinite(rows[r][d])) EXPECT_EQ(rows[r][d], expected[r][d]);
        }
      }
    }
  }
}

TEST(a_key_that_is_not_finite_shows_in_rows_that_see_it_and_in_no_other) {
  AttentionCase c = by_maps(DType::kBF16);
  Pass pass(c, 90, 90);
  set_order(7, MmaModel::kHopper);
  const Rows good = pass.rows(c);
  const auto key = static_cast<size_t>(47 * c.row_size() + c.n_heads() * c.head_dim + 3);
  pass.sequence.qkv[key] = std::nanf("");
  pass.cache.write(pass.sequence, 47, 1);
  const Rows rows = pass.rows(c);
  for (size_t r = 0; r < rows.size(); ++r) {
    if (r < 47) EXPECT(same_bits(rows[r], good[r]));
    if (r >= 47) EXPECT(std::isnan(rows[r][0]));
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
