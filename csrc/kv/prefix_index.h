// The content-addressed index of full KV blocks: finds the block that holds the keys and values of
// given tokens after given tokens.
//
// The content of a block depends on its tokens, on all tokens before them and on the name space.
// The previous block, its parent, identifies the last two: a block is found by (parent, tokens), a
// first block by (name space, tokens). A 64-bit hash, chained through the parents, selects the
// bucket; the tokens are compared, so two contents with the same hash are never confused. Entries
// are linked through arrays as long as the pool: nothing is allocated after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pb {

// Never null.
using NameSpace = std::shared_ptr<const std::string>;

class PrefixIndex {
 public:
  static constexpr int kNone = -1;

  // Blocks 0 .. n_blocks - 1 of block_size tokens. `hash_mask` is and-ed to every hash: tests make
  // collisions with it.
  PrefixIndex(int n_blocks, int block_size, uint64_t hash_mask = ~uint64_t{0});

  // The block that holds `tokens` (block_size of them) after block `parent`, which is in the index,
  // or as a first block of `name_space` where parent is kNone. kNone where there is no such block.
  int find(const NameSpace& name_space, int parent, std::span<const int32_t> tokens) const;

  // Enters a block that is not in the index, under a key that find() does not find.
  void insert(int block, const NameSpace& name_space, int parent, std::span<const int32_t> tokens);

  // Takes a block out. Does nothing where it is not in. Children that are still in are not found
  // any more, whatever takes the block's place: they name their parent by its serial, not by its
  // number.
  void erase(int block);

  bool contains(int block) const { return at(block).serial != 0; }
  int size() const { return size_; }

  // The tokens of a block that is in the index, block_size of them.
  std::span<const int32_t> tokens(int block) const;

  // Returns true if the block, which is in the index, has this key.
  bool matches(int block, const NameSpace& name_space, int parent,
               std::span<const int32_t> tokens) const;

  // Throws kEngine naming the first inconsistency: a broken link, a hash that is not that of
  // its content, two blocks of one content, a parent that is gone.
  void check_integrity() const;

 private:
  struct Entry {
    uint64_t serial = 0;         // unique per insertion; 0 = not in the index
    uint64_t parent_serial = 0;  // 0 = first block
    uint64_t hash = 0;           // of name space, all tokens before, its own
    NameSpace name_space;        // of a first block; null in others: their parent implies it
    int32_t next = kNone;        // in the same bucket
  };

  const Entry& at(int block) const { return entries_[static_cast<size_t>(block)]; }
  uint64_t hash_of(const NameSpace& name_space, int parent, std::span<const int32_t> tokens) const;
  size_t bucket_of(uint64_t hash) const { return hash & (buckets_.size() - 1); }

  size_t block_size_;
  uint64_t hash_mask_;
  std::vector<Entry> entries_;    // a block
  std::vector<int32_t> tokens_;   // (n_blocks, block_size)
  std::vector<int32_t> buckets_;  // a power of two of them: first block of the bucket
  uint64_t next_serial_ = 1;
  int size_ = 0;
};

}  // namespace pb
