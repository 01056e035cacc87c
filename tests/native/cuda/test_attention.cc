// Attention on CUDA: near to the definition for every type and shape, and the same bits for a row
// however rows, KV blocks and work are cut.
#include <set>

#include "cuda_attention_reference.h"

namespace pb::test {
namespace {

using Rows = std::vector<std::vector<float>>;

constexpr MmaModel kModels[] = {MmaModel::kSequential, MmaModel::kAmpere, MmaModel::kHopper};

TEST(every_head_size_and_type_is_near_to_the_definition) {
  set_order(1);
  for (const DType kv : kTypes) {
    for (const int head_dim : {2, 8, 16, 64, 80, 96, 128, 256}) {
      AttentionCase c;
      c.kv = kv;
      c.head_dim = head_dim;
      c.n_kv_heads = 1;
      check_definition(c, 37, 0);     // a large tile, where there are any
      check_definition(c, 260, 257);  // a small one
    }
  }
}

TEST(every_group_window_and_length_is_near_to_the_definition) {
  set_order(2);
  for (const DType kv : kTypes) {
    for (const int group : {1, 3, 4, 8}) {
      AttentionCase c;
      c.kv = kv;
      c.head_dim = 16;
      c.group = group;
      c.n_kv_heads = group == 1 ? 3 : 1;
      for (const int window : {0, 1, 40, 300}) {
        c.sliding_window = window;
        for (const int length : {1, 37, 256, 257}) {
          check_definition(c, length, std::max(0, length - 3));
        }
      }
      c.sliding_window = 0;
      check_definition(c, 700, 690);
    }
  }
}

TEST(capped_scores_are_near_to_the_definition) {
  set_order(2);
  for (const DType kv : kTypes) {
    for (const float softcap : {0.3f, 1.5f, 50.0f}) {
      AttentionCase c;
      c.kv = kv;
      c.head_dim = 32;
      c.softcap = softcap;
      c.sliding_window = softcap > 1.0f ? 40 : 0;
      check_definition(c, 70, 0);
      check_definition(c, 260, 257);
    }
  }
}

TEST(every_model_of_mma_is_near_to_the_definition) {
  for (const MmaModel model : kModels) {
    set_order(3, model);
    for (const DType kv : {DType::kBF16, DType::kF16, DType::kInt8}) {
      AttentionCase c;
      c.kv = kv;
      c.n_kv_heads = 1;
      check_definition(c, 300, 280);
    }
  }
}

// -- the same bits ----------------------------------------------------------------------------

// All rows of a sequence in chunks of `chunk`; keys and values beyond a chunk are not there yet.
Rows in_chunks(const AttentionCase& c, const Sequence& s, int length, int chunk) {
  KvCache cache(c, 2000 / c.block_size);
  Rows rows;
  for (int at = 0; at < length; at += chunk) {
    const Part part{&s, at, std::min(chunk, length - at)};
    cache.write(s, part.first, part.n);
    for (auto& row : attend(c, cache, {&part, 1})) rows.push_back(std::move(row));
  }
  return rows;
}

// Each of the rows in a pass of its own, to compare with.
void expect_same_alone(const AttentionCase& c, const Sequence& s, const Rows& rows) {
  KvCache cache(c, 2000 / c.block_size);
  int written = 0;
  const int length = static_cast<int>(rows.size());
  for (const int position : {0, 1, 15, 16, 63, 64, 70, 130, 255, 256, 257, 299, 511, 512, 699}) {
    if (position >= length) break;
    cache.write(s, written, position + 1 - written);
    written = position + 1;
    const Part part{&s, position, 1};
    EXPECT(same_bits(attend(c, cache, {&part, 1})[0], rows[static_cast<size_t>(position)]));
  }
}

TEST(chunks_of_any_size_and_single_rows_have_the_same_bits) {
  for (const DType kv : kTypes) {
    for (const int window : {0, 70}) {
      AttentionCase c;
      c.kv = kv;
      c.head_dim = 32;
      c.n_kv_heads = 1;
      c.group = 3;
      c.sliding_window = window;
      c.softcap = window == 0 ? 0.0f : 0.7f;
      const int length = window == 0 ? 300 : 260;
      const Sequence s = make_sequence(c, length, 2, 3);
      for (const MmaModel model : kModels) {
        set_order(4, model);
        const Rows all = in_chunks(c, s, length, length);
        EXPECT(same_bits(all[0], in_chunks(c, s, 1, 1)[0]));
        expect_same_alone(c, s, all);
        if (model != MmaModel::kSequential) {
          if (kv == DType::kF32) break;
          continue;
        }
        for (const int chunk : {7, 64}) {
          const Rows rows = in_chunks(c, s, length, chunk);
          for (size_t r = 0; r < all.size(); ++r) EXPECT(same_bits(rows[r], all[r]));
        }
      }
    }
  }
}

TEST(single_rows_of_a_long_sequence_have_the_bits_of_its_prefill) {
  set_order(5);
  for (const DType kv : {DType::kF32, DType::kBF16}) {
    AttentionCase c;
    c.kv = kv;
    c.n_kv_heads = 1;
    c.group = 1;
    const Sequence s = make_sequence(c, 700, 3, 1);
    expect_same_alone(c, s, in_chunks(c, s, 700, 700));
  }
}

TEST(tiles_of_any_size_and_any_cut_of_segments_have_the_same_bits) {
  for (const DType kv : kTypes) {
    AttentionCase c;
    c.kv = kv;
    const Sequence s = make_sequence(c, 600, 4, 0);
    KvCache cache(c, 20);
    cache.write(s, 0, 600);
    const Part part{&s, 575, 25};
    set_order(6);
    const Rows expected = attend(c, cache, {&part, 1});
    for (const bool large : {false, true}) {
      for (const int64_t state_bytes : {int64_t{0}, int64_t{1} << 16, int64_t{1} << 24}) {
        for (const int n_multiprocessors : {1, 30}) {
          AttentionCase cut = c;
          cut.large_tiles = large;
          cut.state_bytes = state_bytes;
          cut.n_multiprocessors = n_multiprocessors;
          const Rows rows = attend(cut, cache, {&part, 1});
          for (size_t r = 0; r < rows.size(); ++r) EXPECT(same_bits(rows[r], expected[r]));
        }
      }
    }
  }
}

TEST(kv_blocks_of_any_size_have_the_same_bits) {
  set_order(7);
  for (const DType kv : kTypes) {
    Rows expected;
    for (const int block_size : {1, 16, 32, 64, 256}) {
      AttentionCase c;
      c.kv = kv;
      c.head_dim = 80;
      c.n_kv_heads = 1;
      c.block_size = block_size;
      const Sequence s = make_sequence(c, 300, 5, 2);
      const Rows rows = in_chunks(c, s, 300, 150);
      if (expected.empty()) expected = rows;
      for (size_t r = 0; r < rows.size(); ++r) EXPECT(same_bits(rows[r], expected[r]));
    }
  }
}

// Several sequences: two prefills, rows of two that share a prefix of one segment, three of two.
struct Company {
  AttentionCase c;
  std::vector<Sequence> sequences;
  KvCache cache;
  std::vector<Part> parts;

  explicit Company(const AttentionCase& case_) : c(case_), cache(c, 200) {
    sequences.reserve(7);
    add(80, 0, 80, nullptr, 0);
    add(300, 290, 10, nullptr, 0);
    add(600, 599, 1, nullptr, 0);
    add(540, 539, 1, &sequences[2], 512);
    add(590, 588, 2, &sequences[2], 512);
    add(330, 329, 1, &sequences[2], 256);
    add(257, 256, 1, &sequences[2], 256);
  }
  void add(int length, int first, int n, const Sequence* prefix, int prefix_length) {
    const auto i = static_cast<uint32_t>(sequences.size());
    sequences.push_back(
        make_sequence(c, length, 10 + i, static_cast<int>(20 * i), prefix, prefix_length));
    cache.write(sequences.back(), 0, length);
    parts.push_back({&sequences.back(), first, n});
  }
};

TEST(a_row_has_the_same_bits_alone_and_in_company) {
  for (const DType kv : kTypes) {
    for (const int window : {0, 270}) {
      AttentionCase c;
      c.kv = kv;
      c.head_dim = 16;
      c.n_kv_heads = 1;
      c.group = 3;
      c.sliding_window = window;
      const Company company(c);
      for (const MmaModel model : kModels) {
        set_order(8, model);
        const Rows rows = attend(c, company.cache, company.parts);
        size_t row = 0;
        for (const Part& part : company.parts) {
          for (const auto& alone : attend(c, company.cache, {&part, 1})) {
            EXPECT(same_bits(alone, rows[row++]));
          }
        }
        if (kv == DType::kF32) break;
      }
    }
  }
}

TEST(the_order_of_threads_and_blocks_changes_no_bit) {
  for (const DType kv : kTypes) {
    AttentionCase c;
    c.kv = kv;
    c.head_dim = 16;
    c.n_kv_heads = 1;
    c.group = 2;
    const Company company(c);
    set_order(0);
    const Rows expected = attend(c, company.cache, company.parts);
    for (uint64_t seed = 1; seed <= n_orders(10); ++seed) {
      set_order(seed);
      const Rows rows = attend(c, company.cache, company.parts);
      for (size_t r = 0; r < rows.size(); ++r) EXPECT(same_bits(rows[r], expected[r]));
    }
  }
}

TEST(columns_shared_by_two_warps_of_large_tiles_have_the_same_bits) {
  set_order(9);
  for (const DType kv : {DType::kBF16, DType::kInt8}) {
    AttentionCase c;
    c.kv = kv;
    c.head_dim = 256;
    c.n_kv_heads = 1;
    c.group = 1;
    const Sequence s = make_sequence(c, 100, 6, 0);
    expect_same_alone(c, s, in_chunks(c, s, 100, 100));
  }
}

TEST(bf16_outputs_are_the_f32_ones_rounded) {
  set_order(10);
  for (const DType kv : kTypes) {
    AttentionCase c;
    c.kv = kv;
    c.head_dim = 8;
    const Company company(c);
    const Rows exact = attend(c, company.cache, company.parts);
    AttentionCase rounded = c;
    rounded.out_bf16 = true;
    const Rows rows = attend(rounded, company.cache, company.parts);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t i = 0; i < rows[r].size(); ++i) {
        EXPECT_EQ(rows[r][i], bf16_to_f32(f32_to_bf16(exact[r][i])));
      }
    }
  }
}

// -- what is not finite -----------------------------------------------------------------------

TEST(a_value_that_is_not_finite_shows_in_rows_that_see_it_and_in_no_other) {
  for (const float bad : {std::nanf(""), INFINITY}) {
    for (const DType kv : kTypes) {
      for (const bool large : {false, true}) {
        AttentionCase c;
        c.kv = kv;
        c.head_dim = 16;
        c.n_kv_heads = 1;
        c.group = 1;
        c.sliding_window = 30;
        c.large_tiles = large;
        set_order(11, MmaModel::kHopper);
        const Sequence s = make_sequence(c, 100, 7, 0);
        KvCache cache(c, 4);
        cache.write(s, 0, 100);
        const Part part{&s, 20, 60};
        const Rows good = attend(c, cache, {&part, 1});
        cache.spoil_value(s, 40, 0, 5, bad);
        const Rows rows = attend(c, cache, {&part, 1});
        for (int r = 0; r < part.n; ++r) {
          const int position = part.first + r;
          const bool sees = position >= 40 && position < 40 + c.sliding_window;
          const auto& row = rows[static_cast<size_t>(r)];
          if (!sees) EXPECT(same_bits(row, good[static_cast<size_t>(r)]));
          EXPECT_EQ(std::isfinite(row[5]), !sees);
        }
      }
    }
  }
}

TEST(a_key_that_is_not_finite_shows_in_rows_that_see_it_and_in_no_other) {
  set_order(12);
  for (const DType kv : {DType::kF32, DType::kBF16, DType::kF16}) {
    AttentionCase c;
    c.kv = kv;
    c.head_dim = 16;
    c.n_kv_heads = 1;
    Sequence s = make_sequence(c, 60, 8, 0);
    KvCache cache(c, 4);
    cache.write(s, 0, 60);
    const Part part{&s, 0, 60};
    const Rows good = attend(c, cache, {&part, 1});
    s.qkv[static_cast<size_t>(31 * c.row_size() + c.n_heads() * c.head_dim + 3)] = std::nanf("");
    cache.write(s, 31, 1);
    const Rows rows = attend(c, cache, {&part, 1});
    for (size_t r = 0; r < rows.size(); ++r) {
      if (r < 31) EXPECT(same_bits(rows[r], good[r]));
      if (r >= 31) EXPECT(std::isnan(rows[r][0]));
    }
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
