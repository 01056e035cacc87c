// Counts in n_allocations what the whole process asks of the heap, by operator new and by malloc
// and its kin, from all its threads. For a test that is one file.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> n_allocations{0};

}  // namespace

// Sanitizers have a malloc of their own, through which operator new goes.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" {

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) {
  ++n_allocations;
  return __libc_malloc(bytes);
}
void* calloc(size_t n, size_t bytes) {
  ++n_allocations;
  return __libc_calloc(n, bytes);
}
void* realloc(void* p, size_t bytes) {
  ++n_allocations;
  return __libc_realloc(p, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  ++n_allocations;
  return __libc_memalign(alignment, bytes);
}
}
#else
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++n_allocations;
  void* p = std::malloc(bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif
