// The states of KV blocks: free, cached or used, and which cached block is evicted for a new one.
//
//   free      nobody holds it, and its content is not kept
//   cached    nobody holds it, and its content may be found again; the least recently used block is
//             evicted first
//   used      held `refcount` times
//
// Every operation but check_integrity() is O(1) and allocates nothing.
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
  // The number of blocks that take() can give: free and cached ones.
  int n_available() const { return n_free() + n_cached_; }

  int refcount(int block) const { return at(block).refcount; }
  bool is_cached(int block) const { return at(block).cached; }

  // Takes a block and sets its reference count to 1: a free one, or else the cached one released
  // longest ago, which the caller then removes from the index. Needs n_available() > 0.
  int take();

  // Adds a holder to a used or cached block.
  void retain(int block);

  // The state of a block after its last holder has released it.
  enum class Keep {
    kNot,    // free
    kShort,  // cached, as the oldest: the next that is evicted
    kLong,   // cached, as the youngest
  };

  // Removes a holder from a used block.
  void release(int block, Keep keep);

  // Returns the cached block that take() evicts first, -1 where there is none.
  int oldest_cached() const { return oldest_; }

  // Makes a cached block free.
  void drop(int block);

  // Recounts the free and the cached blocks. Throws kEngine naming the first thing that is off.
  void check_integrity() const;

 private:
  static constexpr int32_t kNone = -1;

  struct Block {
    int32_t refcount = 0;
    bool cached = false;
    int32_t older = kNone;  // neighbours among the cached
    int32_t younger = kNone;
  };

  const Block& at(int block) const { return blocks_[static_cast<size_t>(block)]; }
  Block& at(int block) { return blocks_[static_cast<size_t>(block)]; }
  void unlink(int block);  // cached -> in no list

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;  // a stack
  int32_t oldest_ = kNone;
  int32_t youngest_ = kNone;
  int n_cached_ = 0;
};

}  // namespace pb
