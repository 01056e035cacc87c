// A block's shared memory: NaN at first; arrays carved out of it have guards under ASan.
#include <cstdint>

#include "machine.h"

namespace cuda_on_cpu {

constexpr uint64_t kSharedBase = 1024;  // of dynamic shared memory among shared addresses

void fill_with_nan(void* at, size_t bytes) {
#ifdef __x86_64__
  asm volatile("rep stosb" : "+D"(at), "+c"(bytes) : "a"(0xff) : "memory");
#else
  auto* to = static_cast<volatile unsigned char*>(at);
  for (size_t i = 0; i < bytes; ++i) to[i] = 0xff;
#endif
}

void* dynamic_shared() {
  if (m.is_carved) fail("DYNAMIC_SHARED beside SharedArrays");
  return m.shared;
}

void* take_shared(size_t& offset, size_t& guards, size_t bytes, size_t alignment) {
  if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > kMostAlignment) {
    fail("SharedArrays: an alignment that is no power of two up to 1024");
  }
  const size_t begin = (offset + alignment - 1) & ~(alignment - 1);
  if (begin + bytes > m.shared_bytes) {
    fail("SharedArrays: " + std::to_string(begin + bytes) +
         " bytes of shared memory, the launch gave " + std::to_string(m.shared_bytes));
  }
  offset = begin + bytes;
  if (!kAsan) return m.shared + begin;
  // Everything is a guard but what has been taken.
  const size_t step = alignment > kGuard ? alignment : kGuard;
  guards = (guards + kGuard + step - 1) / step * step;
  if (guards > kMostGuards) fail("SharedArrays: too many arrays for the emulator");
  if (!m.is_carved) {
    m.is_carved = true;
    poison(m.shared, m.shared_bytes + kMostGuards);
  }
  unpoison(m.shared + begin + guards, bytes);
  return m.shared + begin + guards;
}

uint64_t shared_offset(const void* p) {
  return static_cast<uint64_t>(static_cast<const unsigned char*>(p) - m.shared) + kSharedBase;
}

const void* at_shared(uint64_t offset) { return m.shared + (offset - kSharedBase); }

}  // namespace cuda_on_cpu
