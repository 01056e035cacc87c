// The work list of attention: which queries of a pass a block attends to together, and over which
// segments.
//
// An item is a list of queries over a range of segments in the same KV blocks. Queries of one
// sequence are neighbours. The last few queries of a sequence join those of other sequences with
// the same leading KV blocks, for the segments that all of them share. If there are fewer long
// items than blocks that the device runs at once, a tile is split: its segments become separate
// items, each of which leaves a state, and another launch merges the states. Otherwise one item
// goes through all segments and merges as it goes, without a state in memory. No choice made here
// changes a bit of a result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/attention/params_attention.h"
#include "ops/backend.h"

namespace pb::cuda {

// The limits of the work lists of all passes.
struct AttentionLimits {
  int max_rows = 0;
  int max_positions = 0;  // per sequence
  int max_table_entries =
      0;  // KV blocks of all sequences of a pass; one that two sequences share counts twice
  int block_size = 0;
  int layer_group = 0;  // the layer group whose KV blocks the plan uses
  int group = 1;        // q heads that share a kv head
  int n_kv_heads = 1;
  int head_dim = 0;
  int widest_window = 0;  // the greatest sliding window of the layers; 0: a layer sees all
  bool causal = true;     // if false, queries also see the later rows of their sequence in the pass
  int large_tile = 64;    // queries of a large tile; 0: there are no kernels for them
  // The number of blocks that the device runs at once (multiprocessors times blocks on each), for
  // the kernels of small and of large tiles.
  int n_resident_blocks = 1;
  int n_resident_large_blocks = 1;
  int64_t state_bytes = int64_t{64} << 20;
};

enum AttentionLists : uint8_t { kSmallItems = 1, kLargeItems = 2, kSplitQueries = 4 };

class AttentionPlan {
 public:
  explicit AttentionPlan(const AttentionLimits& limits);

  // Plans a pass. first_table is the offset of block_tables() among the block tables of all plans.
  // Allocates nothing.
  void make(const RowBatch& batch, int first_table = 0);

  // The arrays that are uploaded before the pass.
  std::span<const AttentionRow> rows() const { return rows_; }
  std::span<const AttentionQuery> queries() const { return queries_; }
  std::span<const AttentionItem> small_items() const { return small_items_; }
  std::span<const AttentionItem> large_items() const { return large_items_; }
  std::span<const int32_t> split_queries() const { return split_queries_; }
  std::span<const int32_t> block_tables() const { return block_tables_; }
  AttentionCounts counts() const;
  // Returns the bits of AttentionLists for the lists that are not empty.
  uint8_t lists() const;

  // The greatest sizes of the arrays, for buffers at fixed addresses.
  size_t max_rows() const { return rows_.capacity(); }
  size_t max_queries() const { return queries_.capacity(); }
  size_t max_small_items() const { return small_items_.capacity(); }
  size_t max_large_items() const { return large_items_.capacity(); }
  size_t max_block_tables() const { return block_tables_.capacity(); }
  int64_t n_states() const { return n_states_; }  // per kv head

 private:
  // A sequence of the batch.
  struct Entry {
    const SequenceRows* sequence;
    int block_table;  // the sequence's offset in block_tables_
    int n_done;       // queries that are already in a tile
    int n_queries;
  };
  // Queries [first, first + n) of a sequence: query i is q head i % group of row i / group.
  struct Member {
    const Entry* entry;
    int first;
    int n;
    int min_end;  // the least and greatest AttentionQuery::end of its queries
    int max_end;
    int seen_end;         // end of the positions that any of them sees, in the layer that sees most
    int shared = 0;       // leading segments whose KV blocks are equal to the previous member's
    int first_query = 0;  // index in queries_
  };
  struct Tile {
    int first_member;
    int n_members;
    bool large;
  };

  Member next_member(Entry& entry, int n) const;
  int first_segment(const Member& member) const;
  const int32_t* table_of(const SequenceRows& sequence) const;
  void add_rows(const SequenceRows& sequence);
  void add_large_tiles(Entry& entry);
  void add_small_tiles();
  void add_tiles_items(bool large);
  void add_queries(std::span<Member> members);
  bool reserve_states(std::span<const Member> members);
  void add_run(std::span<const Member> members, int segment, int longest, bool split);
  void add_item(std::span<const Member> members, int first_segment, int end_segment, bool split);
  std::span<Member> members_of(const Tile& tile) {
    return {members_.data() + tile.first_member, static_cast<size_t>(tile.n_members)};
  }

  AttentionLimits limits_;
  int most_in_small_tiles_;  // more remaining queries than this become a partial large tile
  int first_table_ = 0;
  int64_t n_states_ = 0;
  int64_t n_states_used_ = 0;
  std::vector<Entry> entries_;
  std::vector<Member> rests_;  // the last queries of sequences, which do not fill a tile
  std::vector<Member> members_;
  std::vector<Tile> tiles_;
  std::vector<AttentionRow> rows_;
  std::vector<AttentionQuery> queries_;
  std::vector<AttentionItem> small_items_;
  std::vector<AttentionItem> large_items_;
  std::vector<int32_t> split_queries_;
  std::vector<int32_t> block_tables_;
};

}  // namespace pb::cuda
