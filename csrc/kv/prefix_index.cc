#include "kv/prefix_index.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <unordered_set>

#include "base/error.h"

namespace pb {

namespace {

// Mixes the next value into the hash with the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA
// 2014).
uint64_t mix(uint64_t state, uint64_t value) {
  uint64_t z = (state ^ value) + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

uint64_t hash_name(std::string_view name, uint64_t state) {
  uint64_t hash = state ^ name.size();
  for (const char c : name) hash = mix(hash, static_cast<unsigned char>(c));
  return hash;
}

}  // namespace

const NameSpace& common_name_space() {
  static const NameSpace common = std::make_shared<const std::string>();
  return common;
}

bool is_same_name_space(const NameSpace& a, const NameSpace& b) {
  if (a == b) return true;
  const NameSpace& common = common_name_space();
  return a != common && b != common && *a == *b;
}

PrefixIndex::PrefixIndex(int n_blocks, int block_size, uint64_t hash_mask)
    : block_size_(static_cast<size_t>(block_size)),
      hash_mask_(hash_mask),
      entries_(static_cast<size_t>(n_blocks)),
      tokens_(entries_.size() * block_size_),
      buckets_(std::bit_ceil(entries_.size()), kNone) {}

uint64_t PrefixIndex::hash_of(const NameSpace& name_space, int parent,
                              std::span<const int32_t> tokens) const {
  uint64_t hash = parent == kNone ? 0 : at(parent).hash;
  if (may_be_common_after(parent)) hash = hash_name(*name_space, hash);
  for (const int32_t token : tokens) hash = mix(hash, static_cast<uint32_t>(token));
  return hash & hash_mask_;
}

std::span<const int32_t> PrefixIndex::tokens(int block) const {
  return std::span(tokens_).subspan(static_cast<size_t>(block) * block_size_, block_size_);
}

bool PrefixIndex::matches(int block, const NameSpace& name_space, int parent,
                          std::span<const int32_t> tokens) const {
  const Entry& entry = at(block);
  if (entry.parent_serial != (parent == kNone ? 0 : at(parent).serial)) return false;
  if (may_be_common_after(parent) && !is_same_name_space(entry.name_space, name_space)) {
    return false;
  }
  return std::ranges::equal(this->tokens(block), tokens);
}

int PrefixIndex::find(const NameSpace& name_space, int parent,
                      std::span<const int32_t> tokens) const {
  const uint64_t hash = hash_of(name_space, parent, tokens);
  for (int block = buckets_[bucket_of(hash)]; block != kNone; block = at(block).next) {
    if (at(block).hash == hash && matches(block, name_space, parent, tokens)) return block;
  }
  return kNone;
}

void PrefixIndex::insert(int block, const NameSpace& name_space, int parent,
                         std::span<const int32_t> tokens) {
  const uint64_t hash = hash_of(name_space, parent, tokens);
  int32_t& bucket = buckets_[bucket_of(hash)];
  entries_[static_cast<size_t>(block)] = {
      .serial = next_serial_++,
      .parent_serial = parent == kNone ? 0 : at(parent).serial,
      .hash = hash,
      .name_space = may_be_common_after(parent) ? name_space : nullptr,
      .next = bucket,
  };
  bucket = block;
  std::ranges::copy(
      tokens, tokens_.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(block) * block_size_));
  ++size_;
}

void PrefixIndex::erase(int block) {
  if (!contains(block)) return;
  int32_t* link = &buckets_[bucket_of(at(block).hash)];
  while (*link != block) link = &entries_[static_cast<size_t>(*link)].next;
  *link = at(block).next;
  entries_[static_cast<size_t>(block)] = {};
  --size_;
}

void PrefixIndex::check_integrity() const {
  const auto fail = [](int block, const char* what) {
    throw Error(ErrorCode::kEngine,
                "block " + std::to_string(block) + " of the prefix index " + what);
  };
  std::unordered_set<uint64_t> serials, common_serials;
  for (const Entry& entry : entries_) {
    if (entry.serial == 0) continue;
    serials.insert(entry.serial);
    if (entry.name_space == common_name_space()) common_serials.insert(entry.serial);
  }
  int n_linked = 0;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (int block = buckets_[bucket]; block != kNone; block = at(block).next) {
      if (!contains(block)) fail(block, "is linked but not in it");
      if (bucket_of(at(block).hash) != bucket) fail(block, "is in the wrong bucket");
      if (at(block).parent_serial != 0 && !serials.contains(at(block).parent_serial)) {
        fail(block, "has lost its parent");
      }
      const bool has_own =
          at(block).parent_serial == 0 || common_serials.contains(at(block).parent_serial);
      if (has_own != (at(block).name_space != nullptr)) {
        fail(block, "has both or neither of a parent that implies a name space and its own");
      }
      for (int twin = at(block).next; twin != kNone; twin = at(twin).next) {
        if (at(twin).hash == at(block).hash && at(twin).parent_serial == at(block).parent_serial &&
            (!has_own || is_same_name_space(at(twin).name_space, at(block).name_space)) &&
            std::ranges::equal(tokens(twin), tokens(block))) {
          fail(block, "has a twin of the same content");
        }
      }
      if (++n_linked > size_) fail(block, "is linked twice");
    }
  }
  if (n_linked != size_ || serials.size() != static_cast<size_t>(size_)) {
    throw Error(ErrorCode::kEngine, "the prefix index links " + std::to_string(n_linked) +
                                        " blocks and counted " + std::to_string(size_));
  }
}

}  // namespace pb
