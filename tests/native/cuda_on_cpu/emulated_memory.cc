#include "emulated_memory.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "emulator.h"
#include "sanitizers.h"

namespace cuda_on_cpu {
namespace {

constexpr size_t kAlignment = 256;  // as cuMemAlloc's
constexpr size_t kGuardBytes = kAsan ? 0 : 256;
constexpr unsigned char kGuardByte = 0xa5;

// Called after each launch, for all that is allocated: memcmp is far faster than a loop. Bytes that
// equal the ones behind them are all as the first.
void check(const unsigned char* guard, const char* where, size_t bytes) {
  if constexpr (kGuardBytes == 0) return;
  if (guard[0] == kGuardByte && std::memcmp(guard, guard + 1, kGuardBytes - 1) == 0) return;
  throw Error("device memory was written " + std::string(where) + " an allocation of " +
              std::to_string(bytes) + " bytes");
}

void check_around(uintptr_t at, size_t bytes) {
  const auto* const data = reinterpret_cast<const unsigned char*>(at);
  check(data - kGuardBytes, "before", bytes);
  check(data + bytes, "behind", bytes);
}

}  // namespace

void* EmulatedMemory::allocate(size_t bytes) {
  if (used_ > limit || bytes > limit - used_) return nullptr;
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, bytes + 2 * kGuardBytes) != 0) throw std::bad_alloc();
  auto* const at = static_cast<unsigned char*>(memory) + kGuardBytes;
  std::memset(memory, kGuardByte, kGuardBytes);
  std::memset(at, 0xff, bytes);
  std::memset(at + bytes, kGuardByte, kGuardBytes);
  sizes_[reinterpret_cast<uintptr_t>(at)] = bytes;
  used_ += bytes;
  return at;
}

bool EmulatedMemory::free(void* at) {
  const auto found = sizes_.find(reinterpret_cast<uintptr_t>(at));
  if (found == sizes_.end()) return false;
  const size_t bytes = found->second;
  sizes_.erase(found);
  used_ -= bytes;
  check_around(reinterpret_cast<uintptr_t>(at), bytes);
  std::free(static_cast<unsigned char*>(at) - kGuardBytes);
  return true;
}

bool EmulatedMemory::holds(const void* at, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(at);
  auto next = sizes_.upper_bound(begin);
  if (next == sizes_.begin()) return false;
  const auto& [address, size] = *--next;
  return begin + bytes <= address + size;
}

bool EmulatedMemory::touches(const void* at, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(at);
  auto next = sizes_.lower_bound(begin + bytes);
  if (next == sizes_.begin()) return false;
  const auto& [address, size] = *--next;
  return begin < address + size;
}

void EmulatedMemory::check_guards() const {
  for (const auto& [address, bytes] : sizes_) check_around(address, bytes);
}

}  // namespace cuda_on_cpu
