// Which queries the attention of a pass computes together.
#include <set>

#include "cpu/attention/attention_plan.h"
#include "cpu_fixture.h"

namespace {

using namespace pb;
using namespace pb::test;
using cpu::AttentionPlan;

constexpr int kBlockSize = 128;  // two KV blocks a segment

struct Sequence {
  std::vector<int32_t> block_table;
  int first_position;
  int n_rows;
};

struct Plan {
  std::vector<SequenceRows> sequences;
  AttentionPlan plan;

  Plan(const std::vector<Sequence>& rows, int group) {
    int row = 0;
    for (const Sequence& r : rows) {
      sequences.push_back({row, r.n_rows, r.first_position, r.block_table.data()});
      row += r.n_rows;
    }
    plan.reserve(row, group);
    RowBatch batch;
    batch.n_rows = row;
    batch.sequences = sequences;
    plan.make(batch, kBlockSize);
  }

  // The sequences of a block by their number in the batch, with what each shares.
  std::vector<std::pair<int, int>> block(int b) const {
    std::vector<std::pair<int, int>> out;
    for (const auto& member : plan.members(plan.blocks()[static_cast<size_t>(b)])) {
      out.emplace_back(static_cast<int>(member.sequence - sequences.data()), member.shared);
    }
    return out;
  }
};

using Members = std::vector<std::pair<int, int>>;

}  // namespace

TEST(decode_rows_of_a_shared_prefix_are_one_block_wherever_they_lie) {
  const Plan p({{{1, 2, 3, 4, 10}, 513, 1},
                {{7, 8, 9}, 300, 1},
                {{1, 2, 3, 4, 11}, 520, 1},
                {{1, 2, 12}, 257, 1}},
               4);
  EXPECT_EQ(p.plan.blocks().size(), size_t{2});
  // By their KV blocks: 3 shares one segment with 0, and 0 shares two with 2.
  EXPECT(p.block(0) == (Members{{3, 0}, {0, 1}, {2, 2}}));
  EXPECT(p.block(1) == (Members{{1, 0}}));
}

TEST(a_segment_that_is_not_whole_is_not_shared) {
  const Plan p({{{1, 2, 3}, 257, 1}, {{1, 2, 3}, 258, 1}, {{5, 6}, 100, 1}, {{5, 6}, 101, 1}}, 2);
  EXPECT_EQ(p.plan.blocks().size(), size_t{3});
  EXPECT(p.block(0) == (Members{{0, 0}, {1, 1}}));
}

TEST(longest_context_first_but_families_stay_together) {
  const Plan p(
      {{{9}, 10, 1}, {{1, 2, 3}, 280, 1}, {{4, 5, 6, 7}, 500, 1}, {{1, 2, 8, 10, 11}, 600, 1}},
      cpu::kQueriesPerBlock);
  EXPECT_EQ(p.plan.blocks().size(), size_t{4});
  EXPECT(p.block(0) == (Members{{1, 0}}));
  EXPECT(p.block(1) == (Members{{3, 0}}));
  EXPECT(p.block(2) == (Members{{2, 0}}));
  EXPECT(p.block(3) == (Members{{0, 0}}));
}

TEST(random_plans_hold_every_query_once_and_share_what_is_the_same) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    uint64_t n = 0;
    const auto random = [&](int below) { return integer(seed, n++, below); };
    const int group = 1 + random(9);
    std::vector<Sequence> rows;
    for (int s = random(20); s >= 0; --s) {
      Sequence r;
      if (!rows.empty() && random(3) > 0) {  // forked from an earlier one
        const Sequence& from = rows[static_cast<size_t>(random(static_cast<int>(rows.size())))];
        r.block_table.assign(
            from.block_table.begin(),
            from.block_table.begin() + random(static_cast<int>(from.block_table.size()) + 1));
      }
      const int full = static_cast<int>(r.block_table.size());
      for (int more = 1 + random(4); more > 0; --more) {
        r.block_table.push_back(1000 * static_cast<int>(rows.size()) + more);
      }
      r.first_position = full * kBlockSize + random(kBlockSize);
      const int room = static_cast<int>(r.block_table.size()) * kBlockSize - r.first_position;
      r.n_rows = 1 + (random(2) == 0 ? 0 : random(std::min(room, 40)));
      rows.push_back(r);
    }
    const Plan p(rows, group);
    std::set<std::pair<const SequenceRows*, int>> seen;
    for (const auto& block : p.plan.blocks()) {
      int queries = 0;
      const AttentionPlan::Member* before = nullptr;
      for (const auto& member : p.plan.members(block)) {
        queries += member.n;
        for (int i = 0; i < member.n; ++i) {
          EXPECT(seen.emplace(member.sequence, member.first + i).second);
        }
        int same = 0;
        if (before != nullptr) {
          const auto blocks_of = [&](const SequenceRows* s) -> const std::vector<int32_t>& {
            return rows[static_cast<size_t>(s - p.sequences.data())].block_table;
          };
          const auto& a = blocks_of(before->sequence);
          const auto& b = blocks_of(member.sequence);
          while (same < static_cast<int>(std::min(a.size(), b.size())) && a[same] == b[same])
            ++same;
          EXPECT(member.shared > 0);
        }
        EXPECT(member.shared * 2 <= same);
        before = &member;
      }
      EXPECT_EQ(queries, block.n_queries);
      EXPECT(queries > 0 && queries <= cpu::kQueriesPerBlock);
    }
    size_t expected = 0;
    for (const Sequence& r : rows) expected += static_cast<size_t>(r.n_rows) * group;
    EXPECT_EQ(seen.size(), expected);
  }
}

PB_TEST_MAIN()
