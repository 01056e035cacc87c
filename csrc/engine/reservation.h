// Reservation reserves KV for all entries of a step, or for none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/step.h"
#include "kv/kv_cache.h"

namespace pb {

// The constructor takes KV blocks for every entry. The destructor releases them again, unless
// commit() has made the tokens part of their sequences.
class Reservation {
 public:
  // Throws kKvCacheFull or kRequestTooLong and then changes no sequence.
  Reservation(KvCache& kv, std::span<const StepEntry> entries) : kv_(kv), entries_(entries) {
    try {
      for (; n_held_ < entries_.size(); ++n_held_) {
        kv_.reserve(entries_[n_held_].seq_id, entries_[n_held_].tokens);
      }
    } catch (...) {
      release();
      throw;
    }
  }
  ~Reservation() { release(); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  // Commits in the order of the entries, so that of several equal blocks in a step the block of the
  // first entry is always the one that the prefix index keeps. n_rejected (entries) is the number
  // of last tokens of each entry that are rolled back.
  void commit(std::span<const int32_t> n_rejected) {
    for (; n_committed_ < n_held_; ++n_committed_) {
      const StepEntry& entry = entries_[n_committed_];
      kv_.commit(entry.seq_id, static_cast<int>(entry.tokens.size()) - n_rejected[n_committed_]);
    }
  }

 private:
  void release() {
    for (size_t i = n_committed_; i < n_held_; ++i) kv_.rollback(entries_[i].seq_id);
    n_held_ = n_committed_;
  }

  KvCache& kv_;
  std::span<const StepEntry> entries_;
  size_t n_held_ = 0;       // leading entries that are reserved or committed
  size_t n_committed_ = 0;  // leading entries that are committed
};

}  // namespace pb
