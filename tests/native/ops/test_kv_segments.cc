// Tests which leading segments sequences share, and the order that makes these sequences
// neighbours.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "ops/kv_segments.h"

using namespace pb;

namespace {

constexpr int kBlockSize = 64;  // four blocks a segment

// A sequence of n positions whose last row is in the pass, with a block table in `group`.
SequenceRows sequence(const std::vector<int32_t>& table, int n, int first_row, int group = 0) {
  SequenceRows rows{.first_row = first_row, .n_rows = 1, .first_position = n - 1};
  rows.block_tables[static_cast<size_t>(group)] = table.data();
  return rows;
}

}  // namespace

TEST(segments_are_shared_up_to_the_first_other_block_and_to_the_shorter_end) {
  const std::vector<int32_t> a = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  std::vector<int32_t> b = a;
  const SegmentSharing sharing(0, kBlockSize);
  const auto n_shared = [&](int n_a, int n_b) {
    return sharing.n_shared(sequence(a, n_a, 0), sequence(b, n_b, 1));
  };
  EXPECT_EQ(n_shared(768, 768), 3);
  EXPECT_EQ(n_shared(767, 768), 2);
  EXPECT_EQ(n_shared(768, 511), 1);
  EXPECT_EQ(n_shared(255, 768), 0);
  b[7] = 20;  // the last block of the second segment
  EXPECT_EQ(n_shared(768, 768), 1);
  b[0] = 21;
  EXPECT_EQ(n_shared(768, 768), 0);
}

TEST(blocks_are_those_of_the_group_of_layers) {
  const std::vector<int32_t> a(4, 1), b(4, 1);
  EXPECT_EQ(SegmentSharing(2, kBlockSize).n_shared(sequence(a, 256, 0, 2), sequence(b, 256, 1, 2)),
            1);
}

TEST(sequences_that_share_segments_become_neighbours) {
  const std::vector<int32_t> x = {5, 6, 7, 8, 1, 2, 3, 4};
  const std::vector<int32_t> y = {5, 6, 7, 8, 9, 10, 11, 12};
  const std::vector<int32_t> z = {5, 6, 7, 20, 1, 2, 3, 4};
  std::vector<SequenceRows> rows = {sequence(z, 512, 0), sequence(y, 512, 1), sequence(x, 300, 2),
                                    sequence(x, 512, 3)};
  const SegmentSharing sharing(0, kBlockSize);
  std::ranges::sort(rows, [&](const SequenceRows& a, const SequenceRows& b) {
    return sharing.comes_before(a, b);
  });
  std::vector<int> order;
  for (const SequenceRows& r : rows) order.push_back(r.first_row);
  // The sequence of one whole segment precedes those of two; 1 < 9 and 8 < 20 order the rest.
  EXPECT(order == (std::vector<int>{2, 3, 1, 0}));
  for (const SequenceRows& r : rows) EXPECT(!sharing.comes_before(r, r));
}

TEST(a_segment_is_whole_blocks) {
  for (const int size : {1, 16, 256}) check_block_size(size);
  for (const int size : {-1, 0, 3, 24, 512}) {
    EXPECT_THROWS(ErrorCode::kConfig, check_block_size(size));
  }
}

PB_TEST_MAIN()
