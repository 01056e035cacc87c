// Attention: against softmax in double, and bit for bit against itself in other chunks, batches and
// threads.
#include "attention_fixture.h"
#include "cpu/attention/kv_layout.h"

namespace {

using namespace pb;
using namespace pb::test;

// Every odd thing at least once: no GQA and much of it, odd head_dim, blocks under and over a
// vector, windows inside a KV block and across segments, capped scores, sinks; each with every type
// of key and value.
const AttentionCase kShapes[] = {
    {.n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .block_size = 32},
    {.n_heads = 4, .n_kv_heads = 1, .head_dim = 64, .block_size = 16},
    {.n_heads = 3, .n_kv_heads = 3, .head_dim = 5, .block_size = 4},
    {.n_heads = 3, .n_kv_heads = 1, .head_dim = 7, .block_size = 1},
    {.n_heads = 20, .n_kv_heads = 1, .head_dim = 16, .block_size = 256, .sliding_window = 300},
    {.n_heads = 2, .n_kv_heads = 2, .head_dim = 80, .block_size = 8, .sliding_window = 7},
    {.n_heads = 20, .n_kv_heads = 1, .head_dim = 32, .block_size = 4, .sliding_window = 300},
    {.n_heads = 2,
     .n_kv_heads = 1,
     .head_dim = 128,
     .block_size = 64,
     .sliding_window = 256,
     .out_dtype = DType::kBF16},
    {.n_heads = 6, .n_kv_heads = 2, .head_dim = 64, .block_size = 32, .softcap = 1.5f},
    {.n_heads = 2,
     .n_kv_heads = 1,
     .head_dim = 6,
     .block_size = 8,
     .sliding_window = 50,
     .softcap = 0.4f},
    {.n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .block_size = 32, .sinks = true},
    {.n_heads = 5,
     .n_kv_heads = 1,
     .head_dim = 12,
     .block_size = 16,
     .sliding_window = 128,
     .sinks = true},
};
const std::vector<AttentionCase> kCases = with_every_kv_dtype(kShapes);
constexpr int kLength = kIsSlowed ? 275 : 530;  // crosses a segment border, or two

}  // namespace

TEST(attention_is_within_rounding_of_double) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const AttentionCase& c : kCases) {
      const int n_blocks = kLength / c.block_size + 2;
      AttentionBench bench(c, *target, 2, n_blocks, kLength);
      const std::vector<float> qkv = random_qkv(c, kLength, 1);
      const auto block_table = scattered_blocks(kLength, c.block_size, n_blocks, 2);
      std::vector<float> rotated;
      const auto out = bench.pass({{&qkv, &block_table, 0, kLength}}, &rotated);
      for (int row : {0, 1, 31, 32, 254, 255, 256, 257, 400, 511, 512, 529}) {
        if (row >= kLength) continue;
        check_row(c, bench.layer(), rotated, row, out[row], by_pairs(c, target->name));
      }
    }
  }
}

TEST(chunks_and_threads_change_no_bit) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const AttentionCase& c : kCases) {
      const int n_blocks = kLength / c.block_size + 2;
      const std::vector<float> qkv = random_qkv(c, kLength, 1);
      AttentionBench whole(c, *target, 1, n_blocks, kLength);
      const auto block_table = scattered_blocks(kLength, c.block_size, n_blocks, 2);
      const auto expected = whole.pass({{&qkv, &block_table, 0, kLength}});
      // One row at a time with many threads is what splits segments among them.
      const struct {
        int threads;
        std::vector<int> chunks;
      } ways[] = {
          {2, {kIsSlowed ? 9 : 1, 1}}, {3, {7}}, {2, {64}}, {1, {255, 2, 1, 33}}, {2, {300}}};
      for (const auto& way : ways) {
        if (kIsSlowed && way.chunks[0] > 9) continue;
        AttentionBench bench(c, *target, way.threads, n_blocks, kLength);
        const auto other = scattered_blocks(kLength, c.block_size, n_blocks, 3 + way.threads);
        EXPECT(same_rows(bench.in_chunks(qkv, other, kLength, way.chunks), expected));
      }
    }
  }
}

TEST(neighbours_change_no_bit) {
  constexpr int kLengths[] = {kIsSlowed ? 60 : 290, 40, kIsSlowed ? 30 : 520, 1, 257};
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const AttentionCase& c : kCases) {
      const int n_blocks = 1200 / c.block_size + 8;
      std::vector<std::vector<float>> qkvs;
      std::vector<std::vector<int32_t>> block_table;
      std::vector<std::vector<std::vector<float>>> alone;
      const std::vector<int> order = shuffled(n_blocks, 4);
      size_t next_block = 0;
      for (int length : kLengths) {
        qkvs.push_back(random_qkv(c, length, 10 + length));
        block_table.emplace_back();
        for (int p = 0; p < length; p += c.block_size)
          block_table.back().push_back(order[next_block++]);
        AttentionBench bench(c, *target, 1, n_blocks, length);
        alone.push_back(bench.pass({{&qkvs.back(), &block_table.back(), 0, length}}));
      }
      // Prefill all but the last rows, then the rest together: decode rows beside a chunk.
      AttentionBench bench(c, *target, 2, n_blocks, 600);
      std::vector<AttentionBench::Part> last;
      for (size_t s = 0; s < std::size(kLengths); ++s) {
        const int rest = std::min(kLengths[s], s == 0 ? 37 : 1);
        if (kLengths[s] > rest) bench.pass({{&qkvs[s], &block_table[s], 0, kLengths[s] - rest}});
        last.push_back({&qkvs[s], &block_table[s], kLengths[s] - rest, rest});
      }
      const auto together = bench.pass({last[2], last[0], last[4], last[3], last[1]});
      size_t at = 0;
      for (size_t s : {2, 0, 4, 3, 1}) {
        for (int r = 0; r < last[s].n_rows; ++r) {
          EXPECT(same_bits(together[at++], alone[s][last[s].first_position + r]));
        }
      }
    }
  }
}

TEST(a_copied_block_stands_in_for_the_original) {
  constexpr int kBlocks = 12, kRows = 50;
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const AttentionCase& c : with_every_kv_dtype({kShapes + 1, 1})) {
      AttentionBench bench(c, *target, 1, kBlocks, kRows);
      const std::vector<float> qkv = random_qkv(c, kRows, 1);
      const std::vector<int32_t> block_table = {3, 5, 7, 9};
      const auto expected = bench.pass({{&qkv, &block_table, 0, kRows}});
      bench.backend().copy_block(bench.kv(), 5, 11);
      const std::vector<int32_t> copied = {3, 11, 7, 9};
      const auto last = bench.pass({{&qkv, &copied, kRows - 1, 1}});
      EXPECT(same_bits(last[0], expected[kRows - 1]));
    }
  }
}

// In the place of blocks that have left the window a table names one that holds anything, here NaN.
// Two sequences of one text are in different places: what they share is read together.
TEST(blocks_behind_a_window_are_not_looked_at) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const AttentionCase& c : kCases) {
      if (c.sliding_window == 0) continue;
      const int n_blocks = kLength / c.block_size + 2;
      const std::vector<float> qkv = random_qkv(c, kLength, 1);
      auto block_table = scattered_blocks(n_blocks * c.block_size, c.block_size, n_blocks, 2);
      AttentionBench bench(c, *target, 2, n_blocks, kLength + 1);
      const auto expected = bench.pass({{&qkv, &block_table, 0, kLength}});
      const int32_t never_written = block_table.back();
      const auto behind = [&](int position) {
        auto table = block_table;
        const int first = std::max(0, position + 1 - c.sliding_window) / c.block_size;
        std::fill_n(table.begin(), first, never_written);
        return table;
      };
      for (const int begin : {0, 7, 255, 256, 301, 400, kLength - 1}) {
        if (begin >= kLength) continue;
        const int rows = std::min(100, kLength - begin);
        const auto ahead = behind(begin), last = behind(kLength - 1);
        const auto out = bench.pass({{&qkv, &ahead, begin, rows}, {&qkv, &last, kLength - 1, 1}});
        for (int r = 0; r < rows; ++r) EXPECT(same_bits(out[r], expected[begin + r]));
        EXPECT(same_bits(out[rows], expected[kLength - 1]));
      }
    }
  }
}

TEST(a_poisoned_later_row_reaches_no_earlier_one) {
  constexpr int kRows = 40;
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const AttentionCase& c : with_every_kv_dtype({kShapes, 1})) {
      AttentionBench bench(c, *target, 2, 4, kRows);
      std::vector<float> qkv = random_qkv(c, kRows, 1);
      const std::vector<int32_t> block_table = {0, 2};
      const auto expected = bench.pass({{&qkv, &block_table, 0, kRows}});
      std::fill_n(qkv.end() - c.row_size(), c.row_size(), std::nanf(""));
      const auto poisoned = bench.pass({{&qkv, &block_table, 0, kRows}});
      for (int r = 0; r + 1 < kRows; ++r) EXPECT(same_bits(poisoned[r], expected[r]));
      EXPECT(std::isnan(poisoned[kRows - 1][0]));
    }
  }
}

TEST(a_number_that_is_not_finite_shows_in_its_own_sequence_whatever_the_type) {
  const float bad_numbers[] = {std::numeric_limits<float>::infinity(), std::nanf("")};
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const AttentionCase& c : with_every_kv_dtype({kShapes, 1})) {
      for (float bad : bad_numbers) {
        for (int part = 1; part < 3; ++part) {  // a key, a value
          AttentionBench bench(c, *target, 1, 2, 4);
          std::vector<float> qkv = random_qkv(c, 2, 1);
          const std::vector<float> other = random_qkv(c, 2, 2);
          const std::vector<int32_t> block_table = {0}, others = {1};
          const auto expected = bench.pass({{&other, &others, 0, 2}});
          qkv[static_cast<size_t>(c.n_heads + (part - 1) * c.n_kv_heads) * c.head_dim + 17] = bad;
          const auto out = bench.pass({{&qkv, &block_table, 0, 2}, {&other, &others, 0, 2}});
          bool finite = true;
          for (float x : out[1]) finite = finite && std::isfinite(x);
          EXPECT(!finite);
          EXPECT(same_bits(out[2], expected[0]) && same_bits(out[3], expected[1]));
        }
      }
    }
  }
}

// Its score may be minus infinity, and a probability of 0 would hide it: the scale is NaN.
TEST(an_infinite_number_shows_in_int8_whatever_the_sign_of_its_score) {
  const AttentionCase c = {
      .n_heads = 1, .n_kv_heads = 1, .head_dim = 5, .block_size = 16, .kv_dtype = DType::kInt8};
  for (const cpu::Kernels* target : runnable_targets()) {
    for (float sign : {1.0f, -1.0f}) {
      AttentionBench bench(c, *target, 1, 1, 2);
      std::vector<float> qkv = random_qkv(c, 2, 1);
      qkv[c.head_dim + 2] = std::numeric_limits<float>::infinity();  // of the first row's key
      for (int d = 0; d < c.head_dim; ++d) qkv[c.row_size() + d] *= sign;
      const std::vector<int32_t> block_table = {0};
      const auto out = bench.pass({{&qkv, &block_table, 0, 2}});
      EXPECT(std::isnan(out[1][0]));
    }
  }
}

// The first row sees one key, its own, so that it gives back the value as it is kept.
TEST(what_is_kept_is_the_nearest_number_of_the_type) {
  const std::vector<float> hard = {0.0f,     -0.0f,    1e-8f,    6e-8f,   -3.1e-5f,
                                   6.2e-5f,  1.0f / 3, -2047.5f, 2049.0f, 65503.0f,
                                   65519.9f, 65520.0f, -1e6f,    3e38f};
  constexpr int kDim = 40;
  for (const cpu::Kernels* target : runnable_targets()) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kInt8}) {
      const AttentionCase c = {
          .n_heads = 1, .n_kv_heads = 1, .head_dim = kDim, .block_size = 16, .kv_dtype = dtype};
      AttentionBench bench(c, *target, 1, 1, 1);
      const std::vector<int32_t> block_table = {0};
      for (int n_hard : {0, 10, static_cast<int>(hard.size())}) {
        for (float size : {1e-40f, 1.0f, 127.0f}) {
          std::vector<float> qkv = numbers(3 * kDim, 9, size);
          std::copy_n(hard.begin(), n_hard, qkv.begin() + 2 * kDim);
          const auto out = bench.pass({{&qkv, &block_table, 0, 1}});
          const std::vector<double> expected = kept(qkv.data() + 2 * kDim, kDim, dtype);
          for (int d = 0; d < kDim; ++d) EXPECT_EQ(out[0][d], static_cast<float>(expected[d]));
        }
      }
    }
  }
}

// Scores that are far below the highest one take another way to their exponential than near ones.
TEST(a_probability_is_the_exponential_of_its_score_whatever_its_neighbours) {
  constexpr int kKeys = 16;
  KvStorage kv;
  kv.dtype = DType::kF32;
  kv.n_blocks = kv.n_kv_heads = 1;
  kv.block_size = kv.head_dim = kKeys;
  cpu::AttentionArgs args;
  args.layout = cpu::kv_layout(kv);
  const int32_t first_block = 0;
  args.block_table = &first_block;
  args.end_query = 1;
  std::vector<float> q(kKeys), scratch(cpu::kAttentionScratch);
  q[0] = 1.0f;
  cpu::QueryBlock queries{.n = 1, .q = {q.data()}, .end = {kKeys}};
  const float kFar[] = {-1.0f, -86.99f, -87.0f, -87.4f, -88.0f, -95.0f, -103.9f, -105.0f, -1e30f};
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const float far : kFar) {
      for (int at = 1; at < kKeys; at += 4) {
        std::vector<float> scores(kKeys), expected(kKeys);
        for (int key = 0; key < kKeys; ++key) scores[key] = -6.1f * static_cast<float>(key % 14);
        scores[at] = far;
        target->exp(scores.data(), expected.data(), kKeys);
        // The first number of a key is its score; a value is one in the column of its key.
        std::vector<float> head(args.layout.head_bytes / sizeof(float));
        for (int key = 0; key < kKeys; ++key) {
          head[key] = scores[key];
          head[args.layout.values / sizeof(float) + key * args.layout.value_stride + key] = 1.0f;
        }
        args.head = reinterpret_cast<const std::byte*>(head.data());
        float max = 0.0f, sum = 0.0f;
        std::vector<float> found(args.layout.value_stride);
        target->attend_segment(args, queries, 0, scratch.data(), {&max, &sum, found.data()});
        found.resize(kKeys);
        EXPECT_EQ(max, 0.0f);
        EXPECT(same_bits(found, expected));
      }
    }
  }
}

TEST(query_and_key_norms_come_before_the_rotation) {
  const AttentionCase c = {.n_heads = 2, .n_kv_heads = 1, .head_dim = 6, .block_size = 16};
  for (const cpu::Kernels* target : runnable_targets()) {
    AttentionBench bench(c, *target, 1, 1, 2);
    Norm norm;
    norm.eps = 1e-6f;
    norm.weight = bench.backend().make_vector(view_of(numbers(6, 5), 6, 1));
    bench.layer().k_norm = &norm;
    const std::vector<float> qkv = random_qkv(c, 2, 1);
    const std::vector<int32_t> block_table = {0};
    std::vector<float> with_norm, without;
    bench.pass({{&qkv, &block_table, 0, 2}}, &with_norm);
    std::vector<float> normed = qkv;
    for (int row = 0; row < 2; ++row) {
      float* key = normed.data() + row * c.row_size() + 2 * 6;
      double squares = 0.0;
      for (int i = 0; i < 6; ++i) squares += key[i] * key[i] / 6.0;
      for (int i = 0; i < 6; ++i) {
        key[i] *= static_cast<float>(norm.weight.values.as<float>()[i] / std::sqrt(squares + 1e-6));
      }
    }
    bench.layer().k_norm = nullptr;
    bench.pass({{&normed, &block_table, 0, 2}}, &without);
    for (size_t i = 0; i < with_norm.size(); ++i) {
      EXPECT(std::abs(with_norm[i] - without[i]) < 1e-5f);
    }
  }
}

PB_TEST_MAIN()
