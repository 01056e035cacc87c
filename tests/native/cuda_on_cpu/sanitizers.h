// What sanitizers are told of fibers and of memory. The emulator itself is compiled without any:
// CUDA_ON_CPU_ASAN and CUDA_ON_CPU_TSAN say which one the kernels are compiled with. (No memcpy or
// memset on what a fiber sees: sanitizers would take those for the kernel's accesses.)
#pragma once

#include <cstddef>

#ifdef CUDA_ON_CPU_ASAN
#include <sanitizer/asan_interface.h>
#endif
#ifdef CUDA_ON_CPU_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace cuda_on_cpu {

#ifdef CUDA_ON_CPU_ASAN
inline constexpr bool kAsan = true;
inline void poison(const void* at, size_t bytes) { __asan_poison_memory_region(at, bytes); }
inline void unpoison(const void* at, size_t bytes) { __asan_unpoison_memory_region(at, bytes); }
#else
inline constexpr bool kAsan = false;
inline void poison(const void*, size_t) {}
inline void unpoison(const void*, size_t) {}
#endif

#ifdef CUDA_ON_CPU_TSAN
inline constexpr bool kTsan = true;
// What the releasing fiber did before comes before what the acquiring one does after.
inline void tsan_release(char* at) { __tsan_release(at); }
inline void tsan_acquire(char* at) { __tsan_acquire(at); }
#else
inline constexpr bool kTsan = false;
inline void tsan_release(char*) {}
inline void tsan_acquire(char*) {}
#endif

}  // namespace cuda_on_cpu
