// The plan of which queries of a pass are computed together. It is made once per pass, for all
// layers and heads.
//
// A block is up to kQueriesPerBlock queries of one kv head: neighbouring rows of a sequence times
// the q heads that share the kv head and, if there is room left, queries of other sequences with
// the same leading KV blocks. The shared segments of positions are read once for all queries of the
// block; the segments after them belong to one sequence each.
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
    int shared;  // leading segments in the same KV blocks as those of the previous
                 // member; 0 for the first member
  };
  struct Block {
    int first_member;
    int n_members;
    int n_queries;
  };

  // Allocates memory for passes of at most max_rows rows, in which `group` q heads share a kv head
  // in layers of `layer_group`.
  void reserve(int max_rows, int group, int layer_group = 0);

  // Plans a pass. Sequences that share KV blocks become neighbours, in any order of the batch.
  // The sequences with the longest context come first, so that the last tasks are short.
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
    int n_whole;       // complete segments, which have all of their KV blocks
    int shared;        // leading segments in the same KV blocks as those of the previous entry
    int prefix_group;  // rank of the first one of the sequences that share at least one segment
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
