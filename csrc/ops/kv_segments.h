// The division of the positions of a sequence into segments for attention, and the segments that
// sequences share.
#pragma once

#include "ops/row_batch.h"

namespace pb {

// The softmax is computed over fixed segments of this many positions, counted from position 0, and
// the partial states of the segments are merged in order.
inline constexpr int kAttentionSegment = 256;

// Throws kConfig unless a segment consists of whole KV blocks of block_size positions.
void check_block_size(int block_size);

// Compares the KV blocks of the sequences of a pass in one group of layers. A segment is shared if
// it ends before both sequences do and is stored in the same KV blocks.
class SegmentSharing {
 public:
  SegmentSharing(int layer_group, int block_size)
      : layer_group_(static_cast<size_t>(layer_group)),
        blocks_per_segment_(kAttentionSegment / block_size) {}

  // Returns the number of leading segments that both sequences share. Blocks that a sliding window
  // has freed compare as equal.
  int n_shared(const SequenceRows& a, const SequenceRows& b) const;

  // A strict order of sequences by the KV blocks of their whole segments. In this order, sequences
  // that share leading segments are neighbours. Two sequences share the minimum of the segments
  // that the pairs of neighbours between them share.
  bool comes_before(const SequenceRows& a, const SequenceRows& b) const;

 private:
  // The result of comparing block tables: the first n block numbers are equal. The next ones differ
  // or are not part of a whole segment.
  struct CommonBlocks {
    int n;
    int most;  // blocks in the whole segments of the shorter sequence
  };
  CommonBlocks common_blocks(const SequenceRows& a, const SequenceRows& b) const;

  size_t layer_group_;
  int blocks_per_segment_;
};

}  // namespace pb
