// A buffer that starts on a cache-line boundary. It either owns zeroed memory, in huge pages if it
// is large and the system supports them, or borrows memory for reading.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#elif defined(_WIN32)
#include <malloc.h>
#endif

namespace pb {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;

  // Throws std::bad_alloc, which bindings/ turns into MemoryError.
  explicit AlignedBuffer(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    constexpr size_t kHugePage = size_t{2} << 20;
    const size_t alignment = bytes >= kHugePage ? kHugePage : 64;
    const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    void* p = allocate(alignment, rounded);
    if (p == nullptr) throw std::bad_alloc();
#ifdef __linux__
    // Requests huge pages for whole pages only, because most of a partial last huge page could be
    // unused memory.
    if (alignment == kHugePage) madvise(p, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
    std::memset(p, 0, bytes);
    data_.reset(static_cast<std::byte*>(p));
  }

  // Borrows memory that starts on a cache-line boundary and that `owner` keeps alive. The memory
  // may be mapped read-only, so the buffer must be treated as const.
  static AlignedBuffer borrowed(const std::byte* data, size_t bytes,
                                std::shared_ptr<const void> owner) {
    AlignedBuffer buffer;
    buffer.bytes_ = bytes;
    buffer.data_ = {const_cast<std::byte*>(data), Free{std::move(owner)}};
    return buffer;
  }

  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_.get());
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_.get());
  }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
#ifdef _WIN32
  static void* allocate(size_t alignment, size_t bytes) {
    return _aligned_malloc(bytes, alignment);
  }
  static void release(void* p) { _aligned_free(p); }
#else
  static void* allocate(size_t alignment, size_t bytes) {
    return std::aligned_alloc(alignment, bytes);
  }
  static void release(void* p) { std::free(p); }
#endif

  struct Free {
    std::shared_ptr<const void> owner;  // null: the buffer owns its memory
    void operator()(std::byte* p) const {
      if (owner == nullptr) release(p);
    }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

}  // namespace pb
