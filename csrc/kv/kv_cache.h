// KvCache tracks which sequence holds which KV block, with reference counts and a prefix index.
//
// KvCache is bookkeeping only: the backend stores the keys and values, block by block. Before a
// shared, partly filled block is written to, KvCache calls `CopyBlock` to copy it (copy on write).
// The class is not thread-safe; the engine is its only owner.
//
// Layers are divided into groups (layer_groups.h). Each group has its own block pool, and a
// sequence has one block table per group; all tables of a sequence have the same length. Group 0
// keeps all blocks of a sequence. A group with a sliding window keeps the blocks that are at least
// partly inside the window of the sequence's next token. commit() releases the other blocks;
// reserve() does not, because a failed step may still be rolled back.
//
// A block is in exactly one of three states:
//   - free: its reference count is 0 and it is not in the prefix index.
//   - cached: its reference count is 0 and it is in the index, so seq_match() can find it. Cached
//     blocks are evicted least recently used first. In a group with a window, blocks that have left
//     the window are evicted before all others.
//   - used: its reference count is positive. A used block may be in the index or not.
//
// So free + cached + used = total, and used = 0 when the cache is idle. A block of a windowed group
// counts as indexed if a block of group 0 is mapped to it (kv_group_mapping.h).
//
// check_integrity() verifies these invariants:
//   - Every block that a sequence holds and that is full of committed tokens is in the index under
//     these tokens. A partly filled last block may also be in the index (after seq_remove) and may
//     be shared; reserve() copies such a block before it is written to, or removes it from the
//     index if it is not shared and there is no room for a copy.
//   - A sequence that holds a block of group 0 also holds all blocks before it, and releases them
//     after it. Therefore leaves are evicted before their parents: an evicted block has no child
//     left in the index.
//   - A sequence that holds an indexed block of another group also holds the block of group 0 that
//     is mapped to it. Therefore a block that leaves the index together with its mapped blocks is
//     cached, never used.
//   - A block of recurrent states (layer_groups.h) is written to only by the reservation that took
//     it. Every reservation takes a new state block for the states after its tokens, even if the
//     sequence's last block is only partly filled, and reads the previous states from that last
//     block.
//
// A call that throws changes nothing, except that it may have evicted cached blocks. After the
// first use of a sequence id, calls on its sequence allocate no memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "kv/block_pool.h"
#include "kv/kv_group_mapping.h"
#include "kv/layer_groups.h"
#include "kv/prefix_index.h"

namespace pb {

class KvCache {
 public:
  // Copies the keys and values of block `from` of a group to block `to`. An exception of this
  // function propagates out of the call that needed the copy. The function must not change the
  // cache: such calls throw kEngine.
  using CopyBlock = std::function<void(int group, int from, int to)>;

  // Makes a block pool for each group, with blocks of block_size positions, for at most n_parallel
  // sequences of at most max_length positions each. The first of `groups` has no window and all
  // others have one; n_layers of a group is ignored. Throws kConfig if a number is less than 1.
  // `hash_mask` is for tests (see PrefixIndex).
  KvCache(std::span<const LayerGroup> groups, int block_size, int n_parallel, int max_length,
          CopyBlock copy_block, uint64_t hash_mask = ~uint64_t{0});
  // Makes a cache with a single group of n_blocks blocks and no window.
  KvCache(int n_blocks, int block_size, int n_parallel, int max_length, CopyBlock copy_block,
          uint64_t hash_mask = ~uint64_t{0});
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  // Takes the lowest free sequence id and returns it. Throws kNoFreeSequence if n_parallel
  // sequences are in use. Sequences share prefix blocks only within the same name space, and those
  // of common sequences with all.
  int seq_new(std::string_view name_space = {});
  // Takes an id as seq_new() does, for a sequence of the common name space: sequences of every name
  // space may start with its blocks. It starts with blocks of common sequences only.
  int seq_new_common();

  // Every call below that takes a seq_id throws kInvalidRequest if no sequence has that id. Every
  // call that changes a sequence throws kEngine while the sequence has a reservation, except
  // commit() and rollback().

  // Makes the empty sequence dst start with the first n_tokens tokens of src, where 0 <= n_tokens
  // <= length of src. The two must have different ids, and src the name space of dst or the common
  // one. Full blocks are shared; a partly filled last block is copied. Throws kInvalidRequest if
  // these conditions do not hold or if seq_copyable() returns less than n_tokens, and kKvCacheFull
  // if no block is available for the copy.
  void seq_copy(int src, int dst, int n_tokens);

  // Returns how many of src's first n_tokens tokens another sequence can start with, where 0 <=
  // n_tokens <= length of src. The result is n_tokens or a multiple of the block size. It is
  // smaller than n_tokens if src has released a block that is inside the window at that position
  // and the block is no longer cached, or if recurrent states are not available there: they exist
  // at src's length and at block boundaries only.
  int seq_copyable(int src, int n_tokens) const;

  // Removes the tokens [start, end) from a sequence. Only the tail can be removed: throws
  // kInvalidRequest unless `end` is the sequence's length or -1, which means the length. Removing
  // all tokens (start = 0) also frees the id. A block that remains partly filled is not copied
  // here; reserve() copies it if necessary before it is written to. Throws kInvalidRequest if
  // seq_copyable(seq_id, start) is less than `start`.
  void seq_remove(int seq_id, int start = 0, int end = -1);

  int seq_length(int seq_id) const;

  // Returns the number of blocks of group 0 that only this sequence holds. These blocks become free
  // or cached when the sequence is removed.
  int seq_exclusive_blocks(int seq_id) const;

  // Attaches to an empty sequence the longest cached prefix of `tokens` after which every group has
  // the blocks of its window. The prefix consists of whole blocks and is at most tokens.size() - 1
  // tokens long, so that at least one token is left to compute. Returns the number of tokens in the
  // prefix.
  int seq_match(int seq_id, std::span<const int32_t> tokens);

  // -- append: the engine reserves blocks for all rows of a step, computes the step, and commits

  // Takes blocks for `tokens` (at least one) after the end of the sequence, and copies a partly
  // filled last block that is shared or in the index (copy on write). The length of the sequence
  // does not change. Throws kKvCacheFull, kRequestTooLong or kInvalidRequest and then changes
  // nothing.
  void reserve(int seq_id, std::span<const int32_t> tokens);

  // Appends the reserved tokens to the sequence: its length grows, and blocks that became full
  // enter the index. If the index already has a block with the same content, the sequence releases
  // its own block and uses the indexed one. Both have the same bits, because results do not depend
  // on the schedule. Throws kEngine if no tokens are reserved.
  void commit(int seq_id);

  // Commits the first n_tokens (at least one) of the reserved tokens and rolls back the rest, which
  // never enter the index. Throws kEngine if fewer tokens are reserved, or if there are recurrent
  // states and n_tokens is not the number of reserved tokens.
  void commit(int seq_id, int n_tokens);

  // Discards the reservation: the length, tokens and blocks of the sequence are the same as before
  // reserve(). Does nothing if no tokens are reserved, so that a failed step can roll back all its
  // sequences.
  void rollback(int seq_id);

  // -- views for the forward pass, which are valid until the next call that changes the sequence

  // Returns the sequence's block table for a group: the block ids in order of position, with
  // reserved blocks included. Position p is in block block_table(seq_id)[p / block_size]. Blocks
  // that have left the group's window are released, and their entries are 0.
  std::span<const int32_t> block_table(int seq_id, int group = 0) const;
  // Returns the number of released blocks at the start of the block table, which is also the index
  // of the first block that the sequence still holds.
  int first_block(int seq_id, int group) const;
  // Returns the index of the group of recurrent states, or -1 if the model has no recurrent layers.
  int state_group() const { return groups_.back().is_state ? n_groups() - 1 : -1; }
  // Returns the id of the block with the recurrent states after the first n_tokens tokens of the
  // sequence, from which the next row continues. n_tokens is the sequence's length or a greater
  // number within the reservation. Returns -1 if n_tokens is 0.
  int state_block(int seq_id, int n_tokens) const;
  // Returns the tokens of the sequence without the reserved ones.
  std::span<const int32_t> tokens(int seq_id) const;

  bool seq_exists(int seq_id) const;
  int n_parallel() const { return static_cast<int>(sequences_.size()); }
  int block_size() const { return block_size_; }
  int max_length() const { return max_length_; }
  int n_groups() const { return static_cast<int>(groups_.size()); }
  int total_blocks(int group = 0) const { return pool(group).total(); }
  int free_blocks(int group = 0) const { return pool(group).n_free(); }
  int cached_blocks(int group = 0) const { return pool(group).n_cached(); }
  // appendable_blocks() returns the number of blocks per group that one step can append to
  // sequences, and most_appendable_blocks() the maximum of that number. Both are minima over the
  // groups. In the group of states, blocks that are needed to replace partly filled last blocks are
  // not counted as appendable.
  int appendable_blocks() const;
  int most_appendable_blocks() const;
  int used_sequences() const;

  // Makes every cached block free.
  void drop_cached();

  // Recounts everything from the sequences up. Throws kEngine, naming the first inconsistency.
  void check_integrity() const;

 private:
  static constexpr int kNone = -1;

  struct Group {
    int window;
    bool is_state;
    BlockPool pool;
    KvGroupMapping mapping;  // empty in group 0
  };
  struct Table {
    std::vector<int32_t> blocks;  // block ids in order of position, with reserved blocks included
    int first = 0;                // index of the first held block; blocks before it are released
    // Last block that reserve() replaced by a copy; held until commit or rollback.
    int replaced = kNone;
  };
  struct Sequence {
    NameSpace name_space;         // null if the id is free
    std::vector<Table> tables;    // (groups)
    std::vector<int32_t> tokens;  // committed tokens, then the reserved ones
    int n_reserved = 0;

    int length() const { return static_cast<int>(tokens.size()) - n_reserved; }
  };

  Sequence& existing(const char* argument, int seq_id);
  const Sequence& existing(const char* argument, int seq_id) const;
  Sequence& changeable(const char* argument, int seq_id);  // throws while tokens are reserved
  Sequence& empty(const char* argument, int seq_id);       // throws also if tokens are committed
  const Sequence& source(int src, int n_tokens) const;     // throws if src has fewer tokens
  int take_sequence(NameSpace name_space);                 // takes the lowest free sequence id
  int find_block(const Sequence& sequence, int parent, std::span<const int32_t> tokens) const;

  const BlockPool& pool(int group) const { return groups_[static_cast<size_t>(group)].pool; }
  BlockPool& pool(int group) { return groups_[static_cast<size_t>(group)].pool; }
  const KvGroupMapping& mapping(int group) const {
    return groups_[static_cast<size_t>(group)].mapping;
  }
  KvGroupMapping& mapping(int group) { return groups_[static_cast<size_t>(group)].mapping; }

  bool is_state(int group) const { return groups_[static_cast<size_t>(group)].is_state; }
  bool is_indexed(int group, int block) const;
  void leave_index(int group, int block);  // a block of group 0 leaves with its mapped blocks
  int take_block(int group);               // an evicted block leaves the index
  void release_block(int group, int block, BlockPool::Keep keep = BlockPool::Keep::kLong);
  // Takes a block and copies `block` to it; throws as CopyBlock does.
  int copy_of(int group, int block);
  void release_tail(Sequence& sequence, size_t n_blocks_kept);
  int blocks_for(size_t n_tokens) const;
  [[noreturn]] void throw_full(int group, int n_needed) const;

  // -- windows

  // Returns the index of the first block that is at least partly visible to the token at position
  // `length`.
  int first_seen_block(int group, int length) const;
  // Returns the id of the block with a group's keys and values at index i of the sequence's block
  // table: either the block that the sequence holds, or a released one that is still cached.
  // Returns kNone if there is no such block.
  int block_at(const Sequence& sequence, int group, int i) const;
  bool has_windows_at(const Sequence& sequence, int n_tokens) const;
  [[noreturn]] void throw_window_gone(const char* argument, int seq_id, int n_tokens) const;
  size_t n_usable(std::span<const int32_t> chain);
  void hold_windows(Sequence& sequence, const Sequence& from, int n_tokens, size_t n_blocks);
  void take_back(Sequence& sequence, int n_tokens);
  void give_back(Sequence& sequence);

  // -- helpers of reserve and commit

  int partly_filled() const;  // counts the sequences whose last block is partly filled

  void decide_copies(const Sequence& sequence, int n_new);
  void make_last_blocks_own(Sequence& sequence);
  void enter_index(Sequence& sequence, size_t i, int parent);

  // -- helpers of check_integrity

  void check_table(int seq_id, int group, std::vector<int>& holders,
                   std::vector<bool>& is_written) const;
  void check_pool(int group, const std::vector<int>& holders,
                  const std::vector<bool>& is_written) const;
  void check_mapping(int group) const;

  int block_size_;
  int max_length_;
  CopyBlock copy_block_;
  PrefixIndex index_;  // indexes the blocks of group 0
  std::vector<Group> groups_;
  std::vector<Sequence> sequences_;  // indexed by sequence id
  std::vector<uint8_t> copies_;      // (groups): true if reserve() copies the group's last block
  std::vector<int> runs_;            // (groups): scratch of n_usable
  bool is_copying_ = false;          // true while copy_block_ runs
};

}  // namespace pb
