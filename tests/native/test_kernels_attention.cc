// Attention: against softmax in double, and bit for bit against itself in other chunks, batches and
// threads.
#include "attention_fixture.h"

namespace {

using namespace pb;
using namespace pb::test;

// Every odd thing at least once: no GQA and much of it, odd head_dim, blocks under and over a
// vector, windows inside a page and across segments.
const AttentionCase kCases[] = {
    {.n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .block_size = 32},
    {.n_heads = 4, .n_kv_heads = 1, .head_dim = 64, .block_size = 16, .kv_dtype = DType::kBF16},
    {.n_heads = 3, .n_kv_heads = 3, .head_dim = 5, .block_size = 4, .kv_dtype = DType::kBF16},
    {.n_heads = 3, .n_kv_heads = 1, .head_dim = 7, .block_size = 1},
    {.n_heads = 20, .n_kv_heads = 1, .head_dim = 16, .block_size = 256, .sliding_window = 300},
    {.n_heads = 2,
     .n_kv_heads = 2,
     .head_dim = 80,
     .block_size = 8,
     .sliding_window = 7,
     .kv_dtype = DType::kBF16},
    {.n_heads = 2,
     .n_kv_heads = 1,
     .head_dim = 128,
     .block_size = 64,
     .sliding_window = 256,
     .kv_dtype = DType::kBF16,
     .out_dtype = DType::kBF16},
};
constexpr int kLength = 530;  // crosses two segment borders

std::vector<float> random_qkv(const AttentionCase& c, int length, uint64_t seed) {
  return numbers(static_cast<size_t>(length) * c.row_size(), seed, 2.0f);
}

bool same_rows(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return false;
  }
  return true;
}

// Checks one row of output against softmax(scale q k) v in double over the rotated qkv.
void check_row(const AttentionCase& c, const AttentionLayer& layer, const std::vector<float>& qkv,
               int row, const std::vector<float>& out) {
  const int group = c.n_heads / c.n_kv_heads;
  const int begin = c.sliding_window > 0 ? std::max(0, row + 1 - c.sliding_window) : 0;
  for (int head = 0; head < c.n_heads; ++head) {
    const float* q = qkv.data() + static_cast<size_t>(row) * c.row_size() + head * c.head_dim;
    auto key_of = [&](int position) {
      return qkv.data() + static_cast<size_t>(position) * c.row_size() +
             (c.n_heads + head / group) * c.head_dim;
    };
    std::vector<double> weights;
    double top = -1e300, size = 0.0, sum = 0.0;
    for (int position = begin; position <= row; ++position) {
      double score = 0.0, terms = 0.0;
      for (int d = 0; d < c.head_dim; ++d) {
        const double term = static_cast<double>(q[d]) * rounded(key_of(position)[d], c.kv_dtype);
        score += term;
        terms += std::abs(term);
      }
      weights.push_back(score * layer.scale);
      top = std::max(top, weights.back());
      size = std::max(size, terms * layer.scale);
    }
    for (double& w : weights) sum += w = std::exp(w - top);
    for (int d = 0; d < c.head_dim; ++d) {
      double exact = 0.0;
      for (int position = begin; position <= row; ++position) {
        const float v = key_of(position)[c.n_kv_heads * c.head_dim + d];
        exact += weights[position - begin] / sum * rounded(v, c.kv_dtype);
      }
      // A score is off by head_dim roundings of its terms, an exponential by that and a few units,
      // a sum of n of them by n more; |v| <= 2.
      const double unit = 0x1p-24;
      const double off = 2.0 * ((c.head_dim + 4) * unit * size + (weights.size() + 16) * unit);
      const double rounding = c.out_dtype == DType::kBF16 ? 0x1p-8 * std::abs(exact) : 0.0;
      EXPECT(std::abs(out[head * c.head_dim + d] - exact) <= 2.0 * 2.0 * off + rounding);
    }
  }
}

}  // namespace

TEST(attention_is_within_rounding_of_double) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const AttentionCase& c : kCases) {
      const int n_pages = kLength / c.block_size + 2;
      AttentionBench bench(c, *target, 2, n_pages, kLength);
      const std::vector<float> qkv = random_qkv(c, kLength, 1);
      const auto pages = scattered_pages(kLength, c.block_size, n_pages, 2);
      std::vector<float> rotated;
      const auto out = bench.pass({{&qkv, &pages, 0, kLength}}, &rotated);
      for (int row : {0, 1, 31, 32, 254, 255, 256, 257, 400, 511, 512, 529}) {
        check_row(c, bench.layer(), rotated, row, out[row]);
      }
    }
  }
}

TEST(chunks_and_threads_change_no_bit) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const AttentionCase& c : kCases) {
      const int n_pages = kLength / c.block_size + 2;
      const std::vector<float> qkv = random_qkv(c, kLength, 1);
      AttentionBench whole(c, *target, 1, n_pages, kLength);
      const auto pages = scattered_pages(kLength, c.block_size, n_pages, 2);
      const auto expected = whole.pass({{&qkv, &pages, 0, kLength}});
      // One row at a time with many threads is what splits segments among them.
      const struct {
        int threads;
        std::vector<int> chunks;
      } ways[] = {{2, {1}}, {3, {7}}, {2, {64}}, {1, {255, 2, 1, 33}}, {2, {300}}};
      for (const auto& way : ways) {
        AttentionBench bench(c, *target, way.threads, n_pages, kLength);
        const auto other = scattered_pages(kLength, c.block_size, n_pages, 3 + way.threads);
        EXPECT(same_rows(bench.in_chunks(qkv, other, kLength, way.chunks), expected));
      }
    }
  }
}

TEST(neighbours_change_no_bit) {
  constexpr int kLengths[] = {290, 40, 520, 1, 257};
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const AttentionCase& c : kCases) {
      const int n_pages = 1200 / c.block_size + 8;
      std::vector<std::vector<float>> qkvs;
      std::vector<std::vector<int32_t>> pages;
      std::vector<std::vector<std::vector<float>>> alone;
      const std::vector<int> order = shuffled(n_pages, 4);
      size_t next_page = 0;
      for (int length : kLengths) {
        qkvs.push_back(random_qkv(c, length, 10 + length));
        pages.emplace_back();
        for (int p = 0; p < length; p += c.block_size) pages.back().push_back(order[next_page++]);
        AttentionBench bench(c, *target, 1, n_pages, length);
        alone.push_back(bench.pass({{&qkvs.back(), &pages.back(), 0, length}}));
      }
      // Prefill all but the last rows, then the rest together: decode rows beside a chunk.
      AttentionBench bench(c, *target, 2, n_pages, 600);
      std::vector<AttentionBench::Part> last;
      for (size_t s = 0; s < std::size(kLengths); ++s) {
        const int rest = std::min(kLengths[s], s == 0 ? 37 : 1);
        if (kLengths[s] > rest) bench.pass({{&qkvs[s], &pages[s], 0, kLengths[s] - rest}});
        last.push_back({&qkvs[s], &pages[s], kLengths[s] - rest, rest});
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

TEST(a_copied_page_stands_in_for_the_original) {
  const AttentionCase& c = kCases[1];
  constexpr int kPages = 12, kRows = 50;
  for (const cpu::Kernels* target : runnable_targets()) {
    AttentionBench bench(c, *target, 1, kPages, kRows);
    const std::vector<float> qkv = random_qkv(c, kRows, 1);
    const std::vector<int32_t> pages = {3, 5, 7, 9};
    const auto expected = bench.pass({{&qkv, &pages, 0, kRows}});
    bench.backend().copy_page(bench.kv(), 5, 11);
    const std::vector<int32_t> copied = {3, 11, 7, 9};
    const auto last = bench.pass({{&qkv, &copied, kRows - 1, 1}});
    EXPECT(same_bits(last[0], expected[kRows - 1]));
  }
}

TEST(a_poisoned_later_row_reaches_no_earlier_one) {
  const AttentionCase& c = kCases[0];
  constexpr int kRows = 40;
  for (const cpu::Kernels* target : runnable_targets()) {
    AttentionBench bench(c, *target, 2, 4, kRows);
    std::vector<float> qkv = random_qkv(c, kRows, 1);
    const std::vector<int32_t> pages = {0, 2};
    const auto expected = bench.pass({{&qkv, &pages, 0, kRows}});
    std::fill_n(qkv.end() - c.row_size(), c.row_size(), std::nanf(""));
    const auto poisoned = bench.pass({{&qkv, &pages, 0, kRows}});
    for (int r = 0; r + 1 < kRows; ++r) EXPECT(same_bits(poisoned[r], expected[r]));
    EXPECT(std::isnan(poisoned[kRows - 1][0]));
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
    const std::vector<int32_t> pages = {0};
    std::vector<float> with_norm, without;
    bench.pass({{&qkv, &pages, 0, 2}}, &with_norm);
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
    bench.pass({{&normed, &pages, 0, 2}}, &without);
    for (size_t i = 0; i < with_norm.size(); ++i) {
      EXPECT(std::abs(with_norm[i] - without[i]) < 1e-5f);
    }
  }
}

PB_TEST_MAIN()
