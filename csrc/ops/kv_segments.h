// How attention divides the positions of a sequence into segments, and which segments sequences
// share.
#pragma once

#include "ops/row_batch.h"

namespace pb {

// Softmax is taken over fixed segments of this many positions, by absolute position, and the
// segments' partial states are merged in order.
inline constexpr int kAttentionSegment = 256;

// Throws kConfig unless a segment consists of whole KV blocks of block_size positions.
void check_block_size(int block_size);

// Compares the KV blocks of the sequences of a pass in one group of layers. A segment is shared if
// it ends before both sequences do and lies in the same KV blocks.
class SegmentSharing {
 public:
  SegmentSharing(int layer_group, int block_size)
      : layer_group_(static_cast<size_t>(layer_group)),
        blocks_per_segment_(kAttentionSegment / block_size) {}

  // The number of leading segments that both sequences share. Blocks that a sliding window has
  // freed are equal, too.
  int n_shared(const SequenceRows& a, const SequenceRows& b) const;

  // A strict order by the KV blocks of whole segments. Sorted by it, sequences that share leading
  // segments are neighbours, and two sequences share the minimum of what the neighbours between
  // them share.
  bool comes_before(const SequenceRows& a, const SequenceRows& b) const;

 private:
  // The first n block numbers are the same, the next ones differ or belong to no whole segment.
  struct CommonBlocks {
    int n;
    int most;  // blocks of the whole segments of the shorter sequence
  };
  CommonBlocks common_blocks(const SequenceRows& a, const SequenceRows& b) const;

  size_t layer_group_;
  int blocks_per_segment_;
};

}  // namespace pb
