// A fiber's stack and registers, and the switch from one to another.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) || defined(CUDA_ON_CPU_UCONTEXT)
#define CUDA_ON_CPU_HAS_UCONTEXT
#include <ucontext.h>
#endif

namespace cuda_on_cpu {

// Memory for a fiber, with a page below it that nobody may touch. Never freed: fibers are kept for
// later launches.
class Stack {
 public:
  static constexpr size_t kBytes = size_t{256} << 10;

  // number: of the fiber. Stacks begin at places of different cache sets by it: fibers that take
  // turns would else throw each other's lines out of the cache.
  void allocate(unsigned number);
  // Gives it new memory at the same place: what was there happened to nobody's frames. Only while
  // no fiber is on it.
  void renew();
  bool is_allocated() const { return bottom_ != nullptr; }
  unsigned char* bottom() const { return bottom_; }
  unsigned char* top() const { return top_; }

 private:
  unsigned char* bottom_ = nullptr;
  unsigned char* top_ = nullptr;
};

// Where a fiber, or the thread that all of them run on, goes on.
class Context {
 public:
  // The next switch to it calls `entry`, which must not return.
  void start(const Stack& stack, void (*entry)());

  // Goes on at `to`; returns when something switches to `from`.
  static void change(Context& from, Context& to);

  // The sanitizers' part of it.
  void* tsan_fiber = nullptr;
  void* asan_fake_stack = nullptr;

 private:
#ifdef CUDA_ON_CPU_HAS_UCONTEXT
  ucontext_t registers_;
#else
  void* stack_pointer_ = nullptr;
#endif
};

}  // namespace cuda_on_cpu
