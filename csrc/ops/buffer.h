// Memory on the device of a backend.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "base/aligned_buffer.h"

namespace pb {

// Memory that a backend has allocated. Only that backend reads and writes the contents, and only
// during its operations. All other code can use the size alone. A buffer must not outlive its
// backend.
class Buffer {
 public:
  Buffer() = default;
  // `owner` frees the memory when it is destroyed. If it is null, the buffer does not own the
  // memory.
  Buffer(void* address, size_t bytes, std::shared_ptr<const void> owner)
      : owner_(std::move(owner)), address_(address), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }

  // Makes a buffer for a backend that computes in host memory. A borrowed AlignedBuffer must only
  // be read.
  static Buffer on_host(AlignedBuffer memory) {
    if (!memory) return {};
    const auto owner = std::make_shared<AlignedBuffer>(std::move(memory));
    return {owner->as<void>(), owner->bytes(), owner};
  }

  // Returns the address on the device.
  template <typename T>
  T* as() {
    return static_cast<T*>(address_);
  }
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(address_);
  }
  size_t bytes() const { return bytes_; }
  // Returns the part of this buffer at [offset, offset + bytes), which it does not own.
  Buffer slice(size_t offset, size_t bytes) {
    return {static_cast<std::byte*>(address_) + offset, bytes, nullptr};
  }
  explicit operator bool() const { return address_ != nullptr; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
  }

  std::shared_ptr<const void> owner_;
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace pb
