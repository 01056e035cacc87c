// Attention in shapes that AMX and vdpbf16ps take where there are such: who sees what is
// not finite, and that neither KV blocks nor neighbours in a tile change a bit, nor being too few
// for one. Held against every target.
#include "attention_fixture.h"

namespace {

using namespace pb;
using namespace pb::test;

// One strip of columns, one and a half, two; KV blocks narrower than a tile and wider.
const AttentionCase kShapes[] = {
    {.n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .block_size = 32},
    {.n_heads = 3, .n_kv_heads = 1, .head_dim = 96, .block_size = 4},
    {.n_heads = 2, .n_kv_heads = 1, .head_dim = 128, .block_size = 16},
    {.n_heads = 20, .n_kv_heads = 1, .head_dim = 32, .block_size = 256},
    {.n_heads = 1, .n_kv_heads = 1, .head_dim = 224, .block_size = 32},
};

bool all_finite(const std::vector<float>& row) {
  return std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); });
}

}  // namespace

TEST(what_is_not_finite_reaches_those_that_see_it_and_nobody_else) {
  constexpr int kRows = 300;  // of two segments
  const float bad_numbers[] = {std::nanf(""), std::numeric_limits<float>::infinity()};
  for (const cpu::Kernels* target : runnable_targets()) {
    for (AttentionCase c : kShapes) {
      c.kv_dtype = DType::kBF16;
      for (int window : {0, 7, 150}) {
        if (kIsSlowed && window == 7) continue;
        c.sliding_window = window;
        const int n_blocks = kRows / c.block_size + 2;
        const auto block_table = scattered_blocks(kRows, c.block_size, n_blocks, 3);
        const std::vector<float> clean = random_qkv(c, kRows, 1);
        AttentionBench bench(c, *target, 2, n_blocks, kRows);
        const auto expected = bench.pass({{&clean, &block_table, 0, kRows}});
        for (int bad_row : {0, 20, 31, 255, 256, 298}) {
          if (kIsSlowed && bad_row != 20 && bad_row != 256) continue;
          for (float bad : bad_numbers) {
            if (kIsSlowed && (bad_row == 20) != std::isnan(bad)) continue;
            std::vector<float> qkv = clean;
            // Of every kv head's value at that position; its key and scores stay as they were.
            const int first = (c.n_heads + c.n_kv_heads) * c.head_dim;
            for (int h = 0; h < c.n_kv_heads; ++h) {
              qkv[static_cast<size_t>(bad_row) * c.row_size() + first + h * c.head_dim + 21] = bad;
            }
            for (int chunk : {1, 5, kRows}) {
              if (chunk == 1 && (kIsSlowed || bad_row != 20)) continue;
              const auto out = bench.in_chunks(qkv, block_table, kRows, {chunk});
              for (int r = 0; r < kRows; ++r) {
                const bool sees = r >= bad_row && (window == 0 || r < bad_row + window);
                EXPECT(sees ? !all_finite(out[r]) : same_bits(out[r], expected[r]));
              }
            }
          }
        }
      }
    }
  }
}

TEST(what_is_not_finite_in_a_key_or_a_query_stays_with_it) {
  constexpr int kRows = 40, kBad = 21;
  for (const cpu::Kernels* target : runnable_targets()) {
    for (AttentionCase c : kShapes) {
      c.kv_dtype = DType::kBF16;
      const int n_blocks = kRows / c.block_size + 2;
      const auto block_table = scattered_blocks(kRows, c.block_size, n_blocks, 3);
      const std::vector<float> clean = random_qkv(c, kRows, 1);
      AttentionBench bench(c, *target, 1, n_blocks, kRows);
      const auto expected = bench.pass({{&clean, &block_table, 0, kRows}});
      for (bool query : {false, true}) {
        std::vector<float> qkv = clean;
        const int at = query ? 0 : c.n_heads * c.head_dim;
        qkv[static_cast<size_t>(kBad) * c.row_size() + at + 3] = std::nanf("");
        const auto out = bench.pass({{&qkv, &block_table, 0, kRows}});
        for (int r = 0; r < kRows; ++r) {
          const bool sees = query ? r == kBad : r >= kBad;
          EXPECT(sees ? !all_finite(out[r]) : same_bits(out[r], expected[r]));
        }
      }
    }
  }
}

TEST(blocks_of_any_size_give_the_same_bits) {
  constexpr int kRows = kIsSlowed ? 270 : 530;
  for (const cpu::Kernels* target : runnable_targets()) {
    for (AttentionCase c : kShapes) {
      c.kv_dtype = DType::kBF16;
      for (int window : {0, 77}) {
        c.sliding_window = window;
        const std::vector<float> qkv = random_qkv(c, kRows, 1);
        std::vector<std::vector<float>> expected;
        for (int block_size : {1, 2, 8, 16, 64, 256}) {
          if (kIsSlowed && block_size != 1 && block_size != 16 && block_size != 256) continue;
          c.block_size = block_size;
          const int n_blocks = kRows / block_size + 2;
          AttentionBench bench(c, *target, 2, n_blocks, kRows);
          const auto block_table = scattered_blocks(kRows, block_size, n_blocks, 3);
          const auto out = bench.in_chunks(qkv, block_table, kRows, {block_size, 40});
          if (expected.empty()) expected = out;
          EXPECT(same_rows(out, expected));
        }
      }
    }
  }
}

// Rows that vectors take alone, and tiles in company: in each of their numbers some are subnormal,
// cancel, or overflow as a product.
TEST(rows_alone_and_rows_in_a_tile_have_the_same_bits_at_every_magnitude) {
  constexpr int kRows = 300;
  const auto spread = [](std::vector<float> x, int lowest, int highest, uint64_t seed) {
    const std::vector<int> order = shuffled(static_cast<int>(x.size()), seed);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = std::ldexp(x[i], lowest + order[i] % (highest - lowest + 1));
    }
    return x;
  };
  for (const cpu::Kernels* target : runnable_targets()) {
    for (AttentionCase c : {kShapes[2], kShapes[4]}) {
      if (kIsSlowed && c.head_dim > 128) continue;
      c.kv_dtype = DType::kBF16;
      const int n_blocks = kRows / c.block_size + 2;
      const auto block_table = scattered_blocks(kRows, c.block_size, n_blocks, 3);
      AttentionBench bench(c, *target, 1, n_blocks, kRows);
      for (const auto& [lowest, highest] : {std::pair{-6, 2}, {-135, -120}, {-70, -56}, {56, 66}}) {
        const std::vector<float> qkv = spread(random_qkv(c, kRows, 1), lowest, highest, 5);
        const auto alone = bench.in_chunks(qkv, block_table, kRows, {1});
        const auto together = bench.pass({{&qkv, &block_table, 0, kRows}});
        for (int r = 0; r < kRows; ++r) {
          EXPECT(same_bits(alone[r], together[r]) ||
                 (!all_finite(alone[r]) && !all_finite(together[r])));
        }
      }
    }
  }
}

TEST(values_too_small_for_a_normal_f32_count_as_zero_where_pairs_are_multiplied) {
  AttentionCase c = {.n_heads = 1, .n_kv_heads = 1, .head_dim = 32, .block_size = 16};
  c.kv_dtype = DType::kBF16;
  for (const cpu::Kernels* target : runnable_targets()) {
    AttentionBench bench(c, *target, 1, 1, 1);
    std::vector<float> qkv(3 * 32, 1.0f);
    qkv[2 * 32] = 0x1p-127f;
    qkv[2 * 32 + 1] = 0x1p-126f;
    const std::vector<int32_t> block_table = {0};
    const auto out = bench.pass({{&qkv, &block_table, 0, 1}});
    EXPECT_EQ(out[0][0], by_pairs(c, target->name) ? 0.0f : 0x1p-127f);
    EXPECT_EQ(out[0][1], 0x1p-126f);
    EXPECT_EQ(out[0][2], 1.0f);
  }
}

PB_TEST_MAIN()
