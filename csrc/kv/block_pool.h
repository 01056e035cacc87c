// BlockPool tracks the state of every KV block of a pool and chooses the cached block to evict.
//
// A block is in one of three states:
//   - free: no sequence holds the block, and its content is lost.
//   - cached: no sequence holds the block, but the prefix index may still find its content. The
//     least recently used cached block is evicted first.
//   - used: `refcount` sequences hold the block.
//
// Every operation except check_integrity() takes O(1) time and allocates no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pb {

class BlockPool {
 public:
  explicit BlockPool(int n_blocks);

  int total() const { return static_cast<int>(blocks_.size()); }
  int n_free() const { return static_cast<int>(free_.size()); }
  int n_cached() const { return n_cached_; }
  // Returns the number of blocks that take() can return: the free and the cached ones.
  int n_available() const { return n_free() + n_cached_; }

  int refcount(int block) const { return at(block).refcount; }
  bool is_cached(int block) const { return at(block).cached; }

  // Takes a block and sets its reference count to 1. A free block is preferred; without one, the
  // cached block that was released longest ago is evicted, and the caller must remove it from the
  // prefix index. Requires n_available() > 0.
  int take();

  // Increments the reference count of a used or cached block.
  void retain(int block);

  // The state that release() gives to a block whose reference count reaches 0.
  enum class Keep {
    kNot,    // the block is free
    kShort,  // the block is cached as the oldest one, so it is evicted next
    kLong,   // the block is cached as the youngest one
  };

  // Decrements the reference count of a used block.
  void release(int block, Keep keep);

  // Returns the cached block that take() evicts first, or -1 if no block is cached.
  int oldest_cached() const { return oldest_; }

  // Makes a cached block free.
  void drop(int block);

  // Recounts the free and the cached blocks. Throws kEngine, naming the first inconsistency.
  void check_integrity() const;

 private:
  static constexpr int32_t kNone = -1;

  struct Block {
    int32_t refcount = 0;
    bool cached = false;
    int32_t older = kNone;  // neighbours in the list of cached blocks
    int32_t younger = kNone;
  };

  const Block& at(int block) const { return blocks_[static_cast<size_t>(block)]; }
  Block& at(int block) { return blocks_[static_cast<size_t>(block)]; }
  void unlink(int block);  // removes a cached block from the list of cached blocks

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;  // a stack
  int32_t oldest_ = kNone;
  int32_t youngest_ = kNone;
  int n_cached_ = 0;
};

}  // namespace pb
