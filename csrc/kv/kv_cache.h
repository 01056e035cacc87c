// Tracks which sequence holds which KV block: sequences, reference counts and the prefix index.
//
// Bookkeeping only. The keys and values themselves lie in the backend's storage, block by block;
// the cache has one copied through `CopyBlock` where a shared, partly filled block is to be written
// to. Not thread-safe: the engine is its one owner.
//
// A block is in exactly one of three states:
//   free      refcount 0, not in the index
//   cached    refcount 0, in the index: kept for seq_match, evicted least recently used first
//   used      refcount > 0 (in the index or not)
// so free + cached + used = total, and idle means used = 0.
//
// Invariants, which check_integrity() verifies:
//   - Every block that a sequence fills is in the index, under the sequence's tokens. A last block
//     that it fills in part may be in the index too (after seq_remove) and may be shared;
//     reserve() copies it before anything is written to it.
//   - Whoever holds a block holds the blocks before it, and releases them after it. So an evicted
//     block has no child left in the index: leaves are evicted before their parents.
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
#include "kv/prefix_index.h"

namespace pb {

class KvCache {
 public:
  // Copies the keys and values of block `from` to block `to`. If it throws, the call that needed
  // the copy throws the same. It may not change the cache: calls that would do so throw kEngine.
  using CopyBlock = std::function<void(int from, int to)>;

  // Makes a pool of n_blocks blocks of block_size positions each, for at most n_parallel sequences;
  // no sequence longer than max_length positions. All >= 1, or kConfig. `hash_mask` is for
  // tests (PrefixIndex).
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
  // src): full blocks shared, a partial last block copied. Throws kInvalidRequest, or kKvCacheFull
  // when there is no block for the copy.
  void seq_copy(int src, int dst, int n_tokens);

  // Drops [start, end) of a sequence; end must be its length (or -1, which means that), or
  // kInvalidRequest. Dropping all of it (start = 0) frees the id too. A block that stays partly is
  // left as it is: reserve() makes it the sequence's own before anything is written to it.
  void seq_remove(int seq_id, int start = 0, int end = -1);

  int seq_length(int seq_id) const;

  // The number of blocks that this sequence alone holds: removing it makes them free or cached.
  int seq_exclusive_blocks(int seq_id) const;

  // Attaches to an empty sequence the longest cached prefix of `tokens`: whole blocks, at most
  // tokens.size() - 1 tokens, so that one is left to compute. Returns the tokens attached.
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
  // enters the index. Throws kEngine where fewer are reserved.
  void commit(int seq_id, int n_tokens);

  // Gives up the reserved tokens: length, tokens and blocks are as before the reservation. Does
  // nothing where nothing is reserved, so that a failed step can roll back all of its sequences.
  void rollback(int seq_id);

  // -- views for the forward pass; valid until the next call that changes the sequence

  // The numbers of the sequence's blocks, reserved ones included: position p is in block
  // block_table(seq_id)[p / block_size].
  std::span<const int32_t> block_table(int seq_id) const;
  // Tokens of the sequence, the reserved ones not included.
  std::span<const int32_t> tokens(int seq_id) const;

  bool seq_exists(int seq_id) const;
  int n_parallel() const { return static_cast<int>(sequences_.size()); }
  int block_size() const { return block_size_; }
  int max_length() const { return max_length_; }
  int total_blocks() const { return pool_.total(); }
  int free_blocks() const { return pool_.n_free(); }
  int cached_blocks() const { return pool_.n_cached(); }
  int used_sequences() const;

  // Makes every cached block free.
  void drop_cached();

  // Recounts everything from the sequences up; throws kEngine naming the first inconsistency.
  void check_integrity() const;

 private:
  static constexpr int kNone = -1;

  struct Sequence {
    NameSpace name_space;         // null = the id is free
    std::vector<int32_t> blocks;  // for tokens, the reserved ones included
    std::vector<int32_t> tokens;  // the reserved ones at the end
    int n_reserved = 0;
    int replaced_block =
        kNone;  // reserve() copied the last block from it; held until it is settled

    int length() const { return static_cast<int>(tokens.size()) - n_reserved; }
  };

  Sequence& existing(const char* argument, int seq_id);
  const Sequence& existing(const char* argument, int seq_id) const;
  Sequence& changeable(const char* argument, int seq_id);  // and without a reservation
  Sequence& empty(const char* argument, int seq_id);       // and without a token

  int take_block();  // and forgets what the index held there
  void release_block(int block);
  int copy_of(int block);  // a block taken for a copy of `block`; throws as CopyBlock does
  void release_tail(Sequence& sequence, size_t n_blocks_kept);
  int blocks_for(size_t n_tokens) const;
  [[noreturn]] void throw_full(int n_needed) const;

  int block_size_;
  int max_length_;
  CopyBlock copy_block_;
  PrefixIndex index_;
  BlockPool pool_;
  std::vector<Sequence> sequences_;  // by id
  bool is_copying_ = false;          // copy_block_ is running
};

}  // namespace pb
