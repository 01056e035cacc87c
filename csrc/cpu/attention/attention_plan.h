// Which queries of a pass are computed together: planned once a pass, used by every layer and head.
//
// A block is up to kQueriesPerBlock queries of one kv head: neighbouring rows of a sequence times
// the q heads that share the kv head, and, where that leaves room, those of other sequences whose
// leading KV blocks are the same. The segments of positions that lie in the same KV blocks are then
// read once for all of them, and only what follows is each sequence's own.
#pragma once

#include <span>
#include <vector>

#include "ops/backend.h"

namespace pb::cpu {

class AttentionPlan {
 public:
  // Queries [first, first + n) of a sequence: query i is row i / group, q head i % group.
  struct Member {
    const SequenceRows* sequence;
    int first;
    int n;
    int shared;  // leading segments whose KV blocks are those of the member before it; the first
                 // has 0
  };
  struct Block {
    int first_member;
    int n_members;
    int n_queries;
  };

  // Allocates for passes of at most max_rows rows; `group` q heads share a kv head in layers of
  // `layer_group`.
  void reserve(int max_rows, int group, int layer_group = 0);

  // Plans a pass. Sequences that share KV blocks become neighbours, wherever
  // they lie in the batch; those with the longest context come first, so that what is left at the
  // end is short.
  void make(const RowBatch& batch, int block_size);

  int group() const { return group_; }
  size_t max_blocks() const { return blocks_.capacity(); }
  std::span<const Block> blocks() const { return blocks_; }
  std::span<const Member> members(const Block& block) const {
    return {members_.data() + block.first_member, static_cast<size_t>(block.n_members)};
  }

 private:
  struct Entry {
    const SequenceRows* sequence;
    int n_whole;       // segments that lie before its end, and so have all of their KV blocks
    int shared;        // leading ones whose KV blocks are those of the entry before it
    int prefix_group;  // of sequences that share at least one segment, by the first one's rank
    int longest;       // end of the longest sequence of the prefix_group
    int rank;
  };

  void order(const RowBatch& batch, const SegmentSharing& sharing);
  void add_full_blocks(const Entry& entry);
  void add_rest(const Entry& entry);

  int group_ = 1;
  int layer_group_ = 0;
  int shared_ = 0;  // segments that an entry shares with the last member of the last block
  std::vector<Entry> order_;
  std::vector<Block> blocks_;
  std::vector<Member> members_;
};

}  // namespace pb::cpu
