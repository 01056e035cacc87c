// Masks of the tokens that may be sampled, which other threads fill while a pass computes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace pb {

// Returns the number of 32-bit words of a row's mask. Bit t % 32 of word t / 32 is set if token t
// may be sampled.
inline size_t mask_words(int vocab_size) { return (static_cast<size_t>(vocab_size) + 31) / 32; }

inline bool is_allowed(const uint32_t* mask, size_t token) {
  return (mask[token / 32] >> (token % 32) & 1u) != 0;
}

// The memory of the masks of a step, with a gate. Other threads write the masks between close() and
// open().
class TokenMasks {
 public:
  TokenMasks(int n_rows, int vocab_size)
      : n_words_(mask_words(vocab_size)), words_(static_cast<size_t>(n_rows) * n_words_, ~0u) {}

  size_t n_rows() const { return words_.size() / n_words_; }
  size_t row_bytes() const { return n_words_ * sizeof(uint32_t); }
  uint32_t* data() { return words_.data(); }  // (n_rows, mask_words(vocab_size))
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
  // Waits until the gate is open. Writes to the masks before open() are then visible.
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
