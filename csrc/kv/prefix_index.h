// PrefixIndex is the content-addressed index of full KV blocks. It finds the block that holds the
// keys and values of given tokens after a given prefix.
//
// The content of a block depends on its tokens, on all tokens before them, and on the name space.
// The previous block, called the parent, identifies the prefix and the name space. So the key of a
// block is (parent, tokens), and the key of a first block is (name space, tokens). A 64-bit hash,
// chained through the parents, selects the bucket. The tokens are compared too, so two contents
// with the same hash are never confused. Entries are linked through arrays as long as the pool, so
// nothing is allocated after construction.
//
// Blocks of the common name space may be followed by blocks of any name space. A common parent
// therefore does not identify the name space, and the key of a block after it is (parent, name
// space, tokens): blocks of two name spaces after the same common block are never confused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pb {

// A name space is never null. Two name spaces are the same if their texts are equal, except for the
// common one, which is the same as itself only, whatever the texts are.
using NameSpace = std::shared_ptr<const std::string>;

// Returns the common name space.
const NameSpace& common_name_space();
bool is_same_name_space(const NameSpace& a, const NameSpace& b);

class PrefixIndex {
 public:
  static constexpr int kNone = -1;

  // Makes an empty index for the blocks 0 .. n_blocks - 1 of block_size tokens each. Every hash is
  // masked with `hash_mask`, which tests use to provoke collisions.
  PrefixIndex(int n_blocks, int block_size, uint64_t hash_mask = ~uint64_t{0});

  // Returns the block of `name_space` that holds `tokens` (block_size of them) after block
  // `parent`, which must be in the index and of the same name space or the common one. If parent is
  // kNone, returns the first block of `name_space` with these tokens. Returns kNone if there is no
  // such block.
  int find(const NameSpace& name_space, int parent, std::span<const int32_t> tokens) const;

  // Adds a block under a key that find() does not find. The block must not be in the index.
  void insert(int block, const NameSpace& name_space, int parent, std::span<const int32_t> tokens);

  // Removes a block from the index, or does nothing if the block is not in it. Children that remain
  // in the index can no longer be found, even if another block is added under the same block id: an
  // entry refers to its parent by serial number, not by block id.
  void erase(int block);

  bool contains(int block) const { return at(block).serial != 0; }
  // Returns true if a block that follows `parent` (kNone: a first block) may be a common one.
  bool may_be_common_after(int parent) const {
    return parent == kNone || at(parent).name_space == common_name_space();
  }
  int size() const { return size_; }

  // Returns the block_size tokens of a block that is in the index.
  std::span<const int32_t> tokens(int block) const;

  // Returns true if the block has this key. The block must be in the index.
  bool matches(int block, const NameSpace& name_space, int parent,
               std::span<const int32_t> tokens) const;

  // Throws kEngine, naming the first inconsistency: a broken link, a hash that does not match its
  // content, two blocks with the same content, or a parent that is no longer in the index.
  void check_integrity() const;

 private:
  struct Entry {
    uint64_t serial = 0;         // unique per insertion; 0 = not in the index
    uint64_t parent_serial = 0;  // 0 = first block of a sequence
    // Hash of the name space, all tokens before, and the block's own tokens.
    uint64_t hash = 0;
    // Set in a first block and in a block after a common one; null in others, whose parent implies
    // the name space. So it is set in every common block.
    NameSpace name_space;
    int32_t next = kNone;  // next block in the same bucket
  };

  const Entry& at(int block) const { return entries_[static_cast<size_t>(block)]; }
  uint64_t hash_of(const NameSpace& name_space, int parent, std::span<const int32_t> tokens) const;
  size_t bucket_of(uint64_t hash) const { return hash & (buckets_.size() - 1); }

  size_t block_size_;
  uint64_t hash_mask_;
  std::vector<Entry> entries_;    // (n_blocks)
  std::vector<int32_t> tokens_;   // (n_blocks, block_size)
  std::vector<int32_t> buckets_;  // first block of each bucket; the size is a power of two
  uint64_t next_serial_ = 1;
  int size_ = 0;
};

}  // namespace pb
