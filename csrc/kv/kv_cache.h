// Tracks which sequence holds which KV block: sequences, reference counts and the prefix index.
//
// Bookkeeping only. The keys and values themselves lie in the backend's storage, block by block;
// the cache has one copied through `CopyBlock` where a shared, partly filled block is to be written
// to. Not thread-safe: the engine is its one owner.
//
// Layers are in groups (layer_groups.h). A sequence has a block table for each group, all equally
// long; each group has a pool of its own. Group 0 keeps all blocks. A group with a window keeps
// those that the sequence's next token sees some of, and frees the others when tokens are
// committed: before that, a step may still be rolled back.
//
// A block is in exactly one of three states:
//   free      refcount 0, not in the index
//   cached    refcount 0, in the index: kept for seq_match, evicted least recently used first; of
//             a group with a window, those that were given back before all others
//   used      refcount > 0 (in the index or not)
// so free + cached + used = total, and idle means used = 0. A block of a group with a window is in
// the index if a block of group 0 is mapped to it (kv_group_mapping.h).
//
// Invariants, which check_integrity() verifies:
//   - Every block that a sequence fills, and has not given back, is in the index under the
//     sequence's tokens. A last block that it fills in part may be in the index too (after
//     seq_remove) and may be shared; reserve() copies it before anything is written to it.
//   - A holder of a block of group 0 also holds the blocks before it, and releases them after it.
//   So
//     an evicted block has no child left in the index: leaves are evicted before their parents.
//   - A holder of a block of another group that is in the index also holds the block of group 0
//   that
//     is mapped to it. So only cached blocks leave the index with their mapped blocks.
//   - A block of states (layer_groups.h) is written to by the reservation that took it, and by no
//     other: each one takes a block for the states after its tokens, where the last block that the
//     sequence has is partly filled too, and reads that.
//
// A call that throws has changed nothing, except that cached blocks may have been evicted. After
// the first use of an id, calls on its sequence allocate no memory.
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
  // Copies a group's keys and values of block `from` to block `to`. If it throws, the call that
  // needed the copy throws the same. It may not change the cache: calls that would throw kEngine.
  using CopyBlock = std::function<void(int group, int from, int to)>;

  // Makes pools of blocks of block_size positions each, for at most n_parallel sequences; no
  // sequence longer than max_length positions. groups: the first without a window, the others with
  // one; their n_layers are not looked at. All numbers >= 1, or kConfig. `hash_mask` is for tests
  // (PrefixIndex).
  KvCache(std::span<const LayerGroup> groups, int block_size, int n_parallel, int max_length,
          CopyBlock copy_block, uint64_t hash_mask = ~uint64_t{0});
  // One group, of n_blocks.
  KvCache(int n_blocks, int block_size, int n_parallel, int max_length, CopyBlock copy_block,
          uint64_t hash_mask = ~uint64_t{0});
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  // Takes and returns the lowest free id. Throws kNoFreeSequence when n_parallel are in use. Prefix
  // blocks are shared between sequences of one name space only.
  int seq_new(std::string_view name_space = {});

  // Every call below that takes a seq_id throws kInvalidRequest where no sequence has it. Every
  // call that changes a sequence, but commit and rollback, throws kEngine while it has a
  // reservation.

  // Makes dst (empty, another id, same name space) start with src's first n_tokens (0..length of
  // src): full blocks shared, a partial last block copied. Throws kInvalidRequest, also where
  // seq_copyable says fewer, or kKvCacheFull when there is no block for the copy.
  void seq_copy(int src, int dst, int n_tokens);

  // The most of src's first n_tokens (0..length of src) that a sequence can be made to start with:
  // n_tokens, or whole blocks. Fewer where src has given back blocks of the window there, and they
  // are not cached any more. States there are of src's length, and of whole blocks.
  int seq_copyable(int src, int n_tokens) const;

  // Drops [start, end) of a sequence; end must be its length (or -1, which means that), or
  // kInvalidRequest. Dropping all of it (start = 0) frees the id too. A block that stays partly is
  // left as it is: reserve() makes it the sequence's own before anything is written to it. Throws
  // kInvalidRequest where seq_copyable says that fewer than `start` tokens can be had.
  void seq_remove(int seq_id, int start = 0, int end = -1);

  int seq_length(int seq_id) const;

  // The number of blocks of group 0 that this sequence alone holds: removing it makes them free or
  // cached.
  int seq_exclusive_blocks(int seq_id) const;

  // Attaches to an empty sequence the longest cached prefix of `tokens` after which every group has
  // its window: whole blocks, at most tokens.size() - 1 tokens, so that one is left to compute.
  // Returns the tokens attached.
  int seq_match(int seq_id, std::span<const int32_t> tokens);

  // -- the two halves of an append. The engine reserves for all rows of a step, computes, commits.

  // Takes blocks for `tokens` (at least one) after the sequence's end, and copies a last partial
  // block that is shared or in the index (copy on write). The sequence's length does not change.
  // Throws kKvCacheFull, kRequestTooLong, kInvalidRequest; then nothing has changed.
  void reserve(int seq_id, std::span<const int32_t> tokens);

  // Makes the reserved tokens part of the sequence: its length grows, and blocks that became full
  // enter the index. A full block whose content the index already has is released for the one there
  // (the two are equal, bit for bit: results do not depend on the schedule). Throws kEngine where
  // nothing is reserved.
  void commit(int seq_id);

  // Commits the first n_tokens (at least one) of the reserved and gives up the rest, which never
  // enters the index. Throws kEngine where fewer are reserved, and where there are states and it
  // is not all.
  void commit(int seq_id, int n_tokens);

  // Gives up the reserved tokens: length, tokens and blocks are as before the reservation. Does
  // nothing where nothing is reserved, so that a failed step can roll back all of its sequences.
  void rollback(int seq_id);

  // -- views for the forward pass; valid until the next call that changes the sequence

  // The numbers of the sequence's blocks of a group, reserved ones included: position p is in block
  // block_table(seq_id)[p / block_size]. 0 in place of those that were given back.
  std::span<const int32_t> block_table(int seq_id, int group = 0) const;
  // How many of them, the first ones, were given back.
  int first_block(int seq_id, int group) const;
  // The group of states; -1 where there is none.
  int state_group() const { return groups_.back().is_state ? n_groups() - 1 : -1; }
  // The block of states after the sequence's first n_tokens, which a row at that position goes on
  // from: n_tokens is the sequence's length, or one that the reservation passes. -1 of 0 tokens.
  int state_block(int seq_id, int n_tokens) const;
  // Tokens of the sequence, the reserved ones not included.
  std::span<const int32_t> tokens(int seq_id) const;

  bool seq_exists(int seq_id) const;
  int n_parallel() const { return static_cast<int>(sequences_.size()); }
  int block_size() const { return block_size_; }
  int max_length() const { return max_length_; }
  int n_groups() const { return static_cast<int>(groups_.size()); }
  int total_blocks(int group = 0) const { return pool(group).total(); }
  int free_blocks(int group = 0) const { return pool(group).n_free(); }
  int cached_blocks(int group = 0) const { return pool(group).n_cached(); }
  // Blocks that can be appended to sequences in one step, and how many that is at most: as many as
  // the group has that has fewest, beside those of states that replace a last block.
  int appendable_blocks() const;
  int most_appendable_blocks() const;
  int used_sequences() const;

  // Makes every cached block free.
  void drop_cached();

  // Recounts everything from the sequences up; throws kEngine naming the first inconsistency.
  void check_integrity() const;

 private:
  static constexpr int kNone = -1;

  struct Group {
    int window;
    bool is_state;
    BlockPool pool;
    KvGroupMapping mapping;  // of group 0: empty
  };
  struct Table {
    std::vector<int32_t> blocks;  // for tokens, the reserved ones included
    int first = 0;                // block that is held; those before it were given back
    int replaced = kNone;         // reserve() put another in its place; held until it is settled
  };
  struct Sequence {
    NameSpace name_space;         // null = the id is free
    std::vector<Table> tables;    // (groups)
    std::vector<int32_t> tokens;  // the reserved ones at the end
    int n_reserved = 0;

    int length() const { return static_cast<int>(tokens.size()) - n_reserved; }
  };

  Sequence& existing(const char* argument, int seq_id);
  const Sequence& existing(const char* argument, int seq_id) const;
  Sequence& changeable(const char* argument, int seq_id);  // and without a reservation
  Sequence& empty(const char* argument, int seq_id);       // and without a token
  const Sequence& source(int src, int n_tokens) const;     // that has so many tokens

  const BlockPool& pool(int group) const { return groups_[static_cast<size_t>(group)].pool; }
  BlockPool& pool(int group) { return groups_[static_cast<size_t>(group)].pool; }
  const KvGroupMapping& mapping(int group) const {
    return groups_[static_cast<size_t>(group)].mapping;
  }
  KvGroupMapping& mapping(int group) { return groups_[static_cast<size_t>(group)].mapping; }

  bool is_state(int group) const { return groups_[static_cast<size_t>(group)].is_state; }
  bool is_indexed(int group, int block) const;
  void leave_index(int group, int block);  // a block of group 0 with its mapped blocks
  int take_block(int group);               // and forgets what the index held there
  void release_block(int group, int block, BlockPool::Keep keep = BlockPool::Keep::kLong);
  int copy_of(int group, int block);  // a block taken for a copy of it; throws as CopyBlock does
  void release_tail(Sequence& sequence, size_t n_blocks_kept);
  int blocks_for(size_t n_tokens) const;
  [[noreturn]] void throw_full(int group, int n_needed) const;

  // -- windows

  // The first block that the token after `length` ones sees some of.
  int first_seen_block(int group, int length) const;
  // The block that holds a group's keys and values at place i of a sequence: its own, or one that
  // was given back and is cached. kNone where there is none.
  int block_at(const Sequence& sequence, int group, int i) const;
  bool has_windows_at(const Sequence& sequence, int n_tokens) const;
  [[noreturn]] void throw_window_gone(const char* argument, int seq_id, int n_tokens) const;
  size_t n_usable(std::span<const int32_t> chain);
  void hold_windows(Sequence& sequence, const Sequence& from, int n_tokens, size_t n_blocks);
  void take_back(Sequence& sequence, int n_tokens);
  void give_back(Sequence& sequence);

  // -- of reserve and commit

  int partly_filled() const;  // sequences whose last block is

  void decide_copies(const Sequence& sequence, int n_new);
  void make_last_blocks_own(Sequence& sequence);
  void enter_index(Sequence& sequence, size_t i, int parent);

  // -- of check_integrity

  void check_table(int seq_id, int group, std::vector<int>& holders,
                   std::vector<bool>& is_written) const;
  void check_pool(int group, const std::vector<int>& holders,
                  const std::vector<bool>& is_written) const;
  void check_mapping(int group) const;

  int block_size_;
  int max_length_;
  CopyBlock copy_block_;
  PrefixIndex index_;  // of group 0
  std::vector<Group> groups_;
  std::vector<Sequence> sequences_;  // by id
  std::vector<uint8_t> copies_;      // (groups): of the reservation that is being made
  std::vector<int> runs_;            // (groups): of n_usable
  bool is_copying_ = false;          // copy_block_ is running
};

}  // namespace pb
