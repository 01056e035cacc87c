#include "context.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace cuda_on_cpu {

void Stack::allocate(unsigned number) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const memory = mmap(nullptr, kBytes + page, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) throw std::bad_alloc();
  bottom_ = static_cast<unsigned char*>(memory) + page;
  // 17 lines apart, within a range of 64 KiB.
  top_ = bottom_ + kBytes - number * size_t{17} * 64 % (size_t{64} << 10);
}

void Stack::renew() {
  if (mmap(bottom_, kBytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    throw std::bad_alloc();
  }
}

#ifdef CUDA_ON_CPU_HAS_UCONTEXT

void Context::start(const Stack& stack, void (*entry)()) {
  getcontext(&registers_);
  registers_.uc_stack = {.ss_sp = stack.bottom(),
                         .ss_flags = 0,
                         .ss_size = static_cast<size_t>(stack.top() - stack.bottom())};
  registers_.uc_link = nullptr;
  makecontext(&registers_, entry, 0);
}

void Context::change(Context& from, Context& to) { swapcontext(&from.registers_, &to.registers_); }

#else

// By hand: swapcontext makes a system call for the signal mask. The registers are those that a
// function has to preserve.
extern "C" void cuda_on_cpu_switch(void** save, void* load);
asm(R"(
.text
.type cuda_on_cpu_switch,@function
cuda_on_cpu_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size cuda_on_cpu_switch,.-cuda_on_cpu_switch
)");

void Context::start(const Stack& stack, void (*entry)()) {
  auto** top = reinterpret_cast<void**>(stack.top());
  top[-1] = nullptr;  // where entry would return to
  top[-2] = reinterpret_cast<void*>(entry);
  for (int i = 3; i <= 8; ++i) top[-i] = nullptr;
  stack_pointer_ = top - 8;
}

void Context::change(Context& from, Context& to) {
  cuda_on_cpu_switch(&from.stack_pointer_, to.stack_pointer_);
}

#endif

}  // namespace cuda_on_cpu
