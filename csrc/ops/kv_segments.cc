#include "ops/kv_segments.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "base/error.h"

namespace pb {

void check_block_size(int block_size) {
  if (block_size < 1 || kAttentionSegment % block_size != 0) {
    throw Error(ErrorCode::kConfig, "block_size is " + std::to_string(block_size) +
                                        "; use a divisor of " + std::to_string(kAttentionSegment));
  }
}

SegmentSharing::CommonBlocks SegmentSharing::common_blocks(const SequenceRows& a,
                                                           const SequenceRows& b) const {
  const int end = std::min(a.end_position(), b.end_position());
  const int most = end / kAttentionSegment * blocks_per_segment_;
  const int32_t* const table = a.block_tables[layer_group_];
  const int32_t* const other = b.block_tables[layer_group_];
  return {static_cast<int>(std::mismatch(table, table + most, other).first - table), most};
}

int SegmentSharing::n_shared(const SequenceRows& a, const SequenceRows& b) const {
  return common_blocks(a, b).n / blocks_per_segment_;
}

bool SegmentSharing::comes_before(const SequenceRows& a, const SequenceRows& b) const {
  const auto [n, most] = common_blocks(a, b);
  if (n < most) return a.block_tables[layer_group_][n] < b.block_tables[layer_group_][n];
  return std::tuple(a.end_position() / kAttentionSegment, a.first_row) <
         std::tuple(b.end_position() / kAttentionSegment, b.first_row);
}

}  // namespace pb
