// Attention of sequences that share KV blocks, and of contexts long enough to be cut among threads:
// bit for bit what each sequence gets alone, on one thread, from KV blocks of its own.
#include "attention_fixture.h"

namespace {

using namespace pb;
using namespace pb::test;

const AttentionCase kShapes[] = {
    {.n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .block_size = 32},
    {.n_heads = 3, .n_kv_heads = 1, .head_dim = 24, .block_size = 64, .sliding_window = 300},
    {.n_heads = 7,
     .n_kv_heads = 1,
     .head_dim = 32,
     .block_size = 256,
     .sliding_window = 700,
     .out_dtype = DType::kBF16},
};

// A sequence that takes its first `shared` positions from another one, KV blocks and all.
struct Fork {
  int from;    // -1 = nobody
  int shared;  // a multiple of every block size above
  int length;
};
// Twigs on twigs, one segment and several in common, some with a KV block more, one that shares all
// of another's full KV blocks, one with a tail of its own of several segments; and two that share
// nothing.
constexpr Fork kForks[] = {
    {-1, 0, 790},  {0, 768, 771}, {0, 512, 530}, {0, 256, 257}, {2, 512, 800}, {-1, 0, 300},
    {5, 256, 290}, {0, 768, 790}, {1, 768, 769}, {-1, 0, 40},   {6, 256, 270}, {4, 768, 1100},
};
constexpr int kSequences = static_cast<int>(std::size(kForks));

struct Forest {
  std::vector<std::vector<float>> qkv;
  std::vector<std::vector<int32_t>> block_table;
  int n_blocks = 0;

  explicit Forest(const AttentionCase& c) {
    const std::vector<int> scattered = shuffled(8 * 1024 / c.block_size, 5);
    for (const Fork& fork : kForks) {
      qkv.push_back(random_qkv(c, fork.length, 100 + qkv.size()));
      block_table.emplace_back();
      if (fork.from >= 0) {
        const auto& from = static_cast<size_t>(fork.from);
        std::copy_n(qkv[from].begin(), size_t(fork.shared) * c.row_size(), qkv.back().begin());
        block_table.back().assign(block_table[from].begin(),
                                  block_table[from].begin() + fork.shared / c.block_size);
      }
      while (static_cast<int>(block_table.back().size()) * c.block_size < fork.length) {
        block_table.back().push_back(scattered[n_blocks++]);
      }
    }
    n_blocks = static_cast<int>(scattered.size());
  }
};

// The first row that is compared: no row of the KV blocks it shares, and few, since what comes
// before it need only be stored.
int first_compared(const Fork& fork) { return std::max(fork.shared, fork.length - 20); }

// The rows of every sequence from there on, each sequence computed alone.
std::vector<std::vector<std::vector<float>>> rows_alone(const AttentionCase& c,
                                                        const cpu::Kernels& target,
                                                        const Forest& forest) {
  std::vector<std::vector<std::vector<float>>> out;
  for (int s = 0; s < kSequences; ++s) {
    const int length = kForks[s].length, first = first_compared(kForks[s]);
    const int n_blocks = (length + c.block_size - 1) / c.block_size;
    AttentionBench bench(c, target, 1, n_blocks, length);
    const auto block_table = scattered_blocks(length, c.block_size, n_blocks, 7);
    if (first > 0) bench.pass({{&forest.qkv[s], &block_table, 0, first}}, nullptr, false);
    out.push_back(bench.pass({{&forest.qkv[s], &block_table, first, length - first}}));
  }
  return out;
}

}  // namespace

TEST(shared_blocks_change_no_bit) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const AttentionCase& c : with_every_kv_dtype(kShapes)) {
      const Forest forest(c);
      const auto expected = rows_alone(c, *target, forest);
      for (int n_threads : {1, 2, 5}) {
        if (kIsSlowed && n_threads == 2) continue;
        AttentionBench bench(c, *target, n_threads, forest.n_blocks, 1200);
        // In order, so that who is taken from is there first: all but the last rows. Then the last
        // ones in mixed passes: single rows of many sequences, chunks of others between them.
        std::vector<int> at;
        for (int s = 0; s < kSequences; ++s) {
          const int first = kForks[s].shared;
          at.push_back(first_compared(kForks[s]));
          const auto* block_table = &forest.block_table[s];
          if (at[s] > first) {
            bench.pass({{&forest.qkv[s], block_table, first, at[s] - first}}, nullptr, false);
          }
        }
        for (uint64_t pass = 0, index = 0; pass < 8; ++pass) {
          std::vector<AttentionBench::Part> parts;
          std::vector<int> who;
          for (int s : shuffled(kSequences, 50 + pass)) {
            const int wanted = integer(60, index++, 3) == 0 ? 1 + integer(61, index, 9) : 1;
            const int n = std::min(wanted, kForks[s].length - at[s]);
            if (n < 1 || integer(62, index, 5) == 0) continue;
            parts.push_back({&forest.qkv[s], &forest.block_table[s], at[s], n});
            who.push_back(s);
          }
          if (parts.empty()) continue;
          const auto out = bench.pass(parts);
          size_t row = 0;
          for (size_t i = 0; i < parts.size(); ++i) {
            for (int r = 0; r < parts[i].n_rows; ++r) {
              const int since = at[who[i]]++ - first_compared(kForks[who[i]]);
              EXPECT(same_bits(out[row++], expected[who[i]][since]));
            }
          }
        }
      }
    }
  }
}

// One long context, and beside it as many short ones as bring it to be cut at another level.
TEST(long_contexts_are_cut_among_threads_without_changing_a_bit) {
  const AttentionCase shape = {.n_heads = 2, .n_kv_heads = 1, .head_dim = 8, .block_size = 32};
  constexpr int kLong = 20 * 256 + 77, kRows = 3;
  constexpr int kShort = 60;
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const AttentionCase& c : with_every_kv_dtype({&shape, 1})) {
      const int n_blocks = kLong / c.block_size + 1 + kShort;
      const std::vector<float> qkv = random_qkv(c, kLong, 1);
      const std::vector<float> other = random_qkv(c, 1, 2);
      const auto block_table = scattered_blocks(kLong, c.block_size, n_blocks - kShort, 3);
      const int first = kLong - kRows;
      std::vector<std::vector<float>> expected;
      for (int n_threads : {1, 2, 4, 16}) {
        if (kIsSlowed && n_threads == 2) continue;
        for (int n_short : {0, 20, kShort}) {
          AttentionBench bench(c, *target, n_threads, n_blocks, kLong);
          std::vector<float> rotated;
          bench.pass({{&qkv, &block_table, 0, kLong}}, &rotated, false);
          std::vector<std::vector<int32_t>> others;
          for (int i = 0; i < n_short; ++i) others.push_back({n_blocks - 1 - i});
          std::vector<AttentionBench::Part> parts;
          for (const auto& kv_block : others) parts.push_back({&other, &kv_block, 0, 1});
          parts.insert(parts.begin() + n_short / 2, {&qkv, &block_table, first, kRows});
          const auto out = bench.pass(parts);
          for (int r = 0; r < kRows; ++r) {
            const auto& row = out[static_cast<size_t>(n_short / 2 + r)];
            if (n_threads == 1 && n_short == 0) {
              check_row(c, bench.layer(), rotated, first + r, row, by_pairs(c, target->name));
              expected.push_back(row);
            }
            EXPECT(same_bits(row, expected[static_cast<size_t>(r)]));
          }
        }
      }
    }
  }
}

PB_TEST_MAIN()
