// Masks that say which tokens may be sampled, filled by other threads while a pass computes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace pb {

// Words of the mask of a row: bit t % 32 of word t / 32 is set where token t may be sampled.
inline size_t mask_words(int vocab_size) { return (static_cast<size_t>(vocab_size) + 31) / 32; }

inline bool is_allowed(const uint32_t* mask, size_t token) {
  return (mask[token / 32] >> (token % 32) & 1u) != 0;
}

// Memory for the masks of a step, and a gate: between close() and open() others write to it.
class TokenMasks {
 public:
  TokenMasks(int n_rows, int vocab_size)
      : n_words_(mask_words(vocab_size)), words_(static_cast<size_t>(n_rows) * n_words_, ~0u) {}

  size_t n_rows() const { return words_.size() / n_words_; }
  size_t row_bytes() const { return n_words_ * sizeof(uint32_t); }
  uint32_t* data() { return words_.data(); }  // (n_rows, words)
  const uint32_t* row(size_t row) const { return words_.data() + row * n_words_; }

  void close() {
    const std::lock_guard lock(mutex_);
    is_open_ = false;
  }
  void open() {
    {
      const std::lock_guard lock(mutex_);
      is_open_ = true;
    }
    opened_.notify_all();
  }
  // Returns when the gate is open. Writes before open() are visible afterwards.
  void wait() const {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return is_open_; });
  }

 private:
  size_t n_words_;
  std::vector<uint32_t> words_;
  mutable std::mutex mutex_;
  mutable std::condition_variable opened_;
  bool is_open_ = true;
};

}  // namespace pb
