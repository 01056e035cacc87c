// Launches: the kernels of the program by name, and the blocks of a grid in their order.
#include <cstdlib>
#include <map>
#include <new>
#include <utility>

#include "machine.h"

extern "C" {
extern unsigned char __start_cuda_shared[] __attribute__((weak));  // the linker's
extern unsigned char __stop_cuda_shared[] __attribute__((weak));
}

namespace cuda_on_cpu {
namespace {

constexpr size_t kMostSharedBytes = size_t{227} << 10;  // of sm_90, the most of all

size_t static_shared_bytes() {
  return static_cast<size_t>(__stop_cuda_shared - __start_cuda_shared);
}

std::map<std::string, KernelInfo>& kernels() {
  static std::map<std::string, KernelInfo> all;
  return all;
}

// Threads are made once, by the host: the race detector would see memory that a fiber takes.
void make_threads(unsigned n) {
  if (m.threads.size() < n) m.threads.resize(n);
  if (m.warps == nullptr) m.warps.reset(new Warp[kMostThreads / kWarp]);
  for (unsigned i = 0; i < n; ++i) {
    Thread& t = m.threads[i];
    if (t.stack.is_allocated()) continue;
    t.copies.reserve(4096);
    t.copy_groups.reserve(1024);
    t.stack.allocate(i);
  }
  const size_t n_groups = (n + kWarpgroup - 1) / kWarpgroup;
  while (m.warpgroups.size() < n_groups) {
    m.warpgroups.emplace_back();
    m.warpgroups.back().groups.reserve(1024);
  }
}

std::vector<uint64_t> block_order(uint64_t n_blocks) {
  std::vector<uint64_t> order(n_blocks);
  for (uint64_t i = 0; i < n_blocks; ++i) order[i] = i;
  for (uint64_t i = n_blocks; m.options.seed != 0 && i > 1; --i) {
    std::swap(order[i - 1], order[sample() % i]);
  }
  return order;
}

// Dynamic shared memory of blocks: one after the other has the same; under the race detector each
// its own where that is not too much, for blocks are not ordered.
class SharedMemory {
 public:
  SharedMemory(size_t bytes, uint64_t n_blocks) : bytes_((bytes + 3) / 4 * 4) {
    apart_ = kTsan && static_shared_bytes() == 0 && bytes_ * n_blocks < (size_t{1} << 28);
    if (bytes_ == 0) return;
    for (uint64_t i = 0; i < (apart_ ? n_blocks : 1); ++i) {
      void* at = nullptr;
      if (posix_memalign(&at, kMostAlignment, bytes_ + kMostGuards) != 0) throw std::bad_alloc();
      memory_.emplace_back(static_cast<unsigned char*>(at), std::free);
    }
  }

  bool are_blocks_apart() const { return apart_; }

  // Makes that of the i-th block to run the block's, all NaN.
  void give(uint64_t i) {
    fill_with_nan(__start_cuda_shared, static_shared_bytes());
    if (bytes_ == 0) return;
    m.shared = memory_[apart_ ? i : 0].get();
    unpoison(m.shared, bytes_ + kMostGuards);
    fill_with_nan(m.shared, bytes_ + kMostGuards);
    poison(m.shared + bytes_, kMostGuards);
    m.is_carved = false;
  }

 private:
  size_t bytes_;
  bool apart_ = false;
  std::vector<std::unique_ptr<unsigned char, decltype(&std::free)>> memory_;
};

// To the race detector, what a fiber did in one block comes before what it does in the next. Where
// blocks are apart they are not to be ordered so: each but the first gets new fibers, and the host,
// whose order they take over, learns at the end only what fibers did.
void make_tsan_fibers([[maybe_unused]] bool anew) {
#ifdef CUDA_ON_CPU_TSAN
  m.host.tsan_fiber = __tsan_get_current_fiber();
  for (unsigned i = 0; i < m.n_threads; ++i) {
    void*& fiber = m.threads[i].context.tsan_fiber;
    if (fiber != nullptr && !anew) continue;
    if (fiber != nullptr) {
      __tsan_destroy_fiber(fiber);
      m.threads[i].stack.renew();  // else its frames would race with those of the block before
    }
    fiber = __tsan_create_fiber(0);
  }
#endif
}

// After an error other fibers have been left where they were. What they did comes before what the
// host does next; what sanitizers remember of their frames is forgotten.
void abandon_threads() {
  for (unsigned i = 0; i < m.n_threads; ++i) {
    Thread& t = m.threads[i];
    unpoison(t.stack.bottom(), Stack::kBytes);
#ifdef CUDA_ON_CPU_TSAN
    __tsan_switch_to_fiber(t.context.tsan_fiber, 1 /* no order */);
    tsan_release(&m.end_sync);
    __tsan_switch_to_fiber(m.host.tsan_fiber, 1 /* no order */);
    __tsan_destroy_fiber(t.context.tsan_fiber);
    t.context.tsan_fiber = nullptr;
#endif
  }
  tsan_acquire(&m.end_sync);
}

}  // namespace

void launch(const char* name, dim3 grid, dim3 block, size_t shared_bytes,
            const std::function<void()>& kernel) {
  m.n_threads = block.x * block.y * block.z;
  if (m.n_threads == 0 || m.n_threads > kMostThreads) {
    throw Error(std::string(name) + ": a block of no such size");
  }
  if (shared_bytes > kMostSharedBytes) {
    throw Error(std::string(name) + ": more shared memory than 227 KiB");
  }
  make_threads(m.n_threads);
  m.n_warps = (m.n_threads + kWarp - 1) / kWarp;
  m.kernel = &kernel;
  m.shared = nullptr;
  m.shared_bytes = shared_bytes;
  m.random = m.options.seed * 0x2545f4914f6cdd1du + 1;
  m.error.clear();
  m.host_stack = nullptr;  // it may be another thread's than that of the last launch
  m.host_stack_bytes = 0;
  g_block_dim = block;
  g_grid_dim = grid;

  const std::vector<uint64_t> order = block_order(uint64_t{grid.x} * grid.y * grid.z);
  SharedMemory shared(shared_bytes, order.size());
  const bool apart = shared.are_blocks_apart();
  make_tsan_fibers(false);
  tsan_release(&m.begin_sync);
  for (uint64_t i = 0; i < order.size() && m.error.empty(); ++i) {
    const uint64_t b = order[i];
    g_block_idx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                   static_cast<unsigned>(b / grid.x / grid.y)};
    shared.give(i);
    if (i > 0 && apart) make_tsan_fibers(true);
    run_block(b);
    if (!apart) {
      tsan_acquire(&m.end_sync);
      tsan_release(&m.begin_sync);
    }
  }
  tsan_acquire(&m.end_sync);
  if (m.error.empty()) return;
  abandon_threads();
  throw Error(std::string(name) + ", " + m.error);
}

Registered::Registered(const char* name, unsigned most_threads, size_t params_bytes,
                       void (*body)(const void* params)) {
  kernels()[name] = {name, most_threads, params_bytes, body};
}

const KernelInfo* find_kernel(const std::string& name) {
  const auto found = kernels().find(name);
  return found == kernels().end() ? nullptr : &found->second;
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const auto& [name, kernel] : kernels()) names.push_back(name);
  return names;
}

void launch(const KernelInfo& kernel, dim3 grid, dim3 block, size_t shared_bytes,
            const void* params) {
  if (block.x * block.y * block.z > kernel.most_threads) {
    throw Error(std::string(kernel.name) + ": more threads than it was compiled for");
  }
  launch(kernel.name, grid, block, shared_bytes, [&] { kernel.body(params); });
}

void launch(const std::string& name, dim3 grid, dim3 block, size_t shared_bytes, const void* params,
            size_t params_bytes) {
  const KernelInfo* const kernel = find_kernel(name);
  if (kernel == nullptr) throw Error("there is no kernel " + name);
  if (params_bytes != kernel->params_bytes) throw Error(name + ": parameters of another size");
  launch(*kernel, grid, block, shared_bytes, params);
}

}  // namespace cuda_on_cpu
