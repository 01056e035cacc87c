#include "os/truncation_guard.h"

#ifndef _WIN32
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <mutex>
#endif

namespace pb {

#ifdef _WIN32  // the system does not truncate a file that is mapped

TruncationGuard::TruncationGuard(const std::vector<std::span<const std::byte>>&) {}
TruncationGuard::~TruncationGuard() = default;

#else

namespace {

// A signal handler may read only what needs no lock, therefore the table has a fixed size. Ranges
// that find no free slot are not guarded.
struct Range {
  std::atomic<uintptr_t> begin{0};  // 0 = the slot is free
  std::atomic<uintptr_t> end{0};
};
std::array<Range, 4096> g_ranges;
std::atomic<size_t> g_used_slots{0};  // all slots from here on are free

std::mutex g_mutex;  // guards the variables below, and changes of the table
int g_guards = 0;
struct sigaction g_before;

uintptr_t page_size() { return static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)); }

// Replaces the range's pages from `address` on by zeros. Returns false if no range has it.
bool replace_by_zeros(uintptr_t address) {
  const size_t n = g_used_slots.load(std::memory_order_acquire);
  for (size_t i = 0; i < n; ++i) {
    const uintptr_t begin = g_ranges[i].begin.load(std::memory_order_acquire);
    const uintptr_t end = g_ranges[i].end.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address >= end) continue;
    const uintptr_t first = address / page_size() * page_size();
    void* made = mmap(reinterpret_cast<void*>(first), end - first, PROT_READ,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return made != MAP_FAILED;
  }
  return false;
}

void on_fault(int signal, siginfo_t* info, void* context) {
  if (replace_by_zeros(reinterpret_cast<uintptr_t>(info->si_addr))) return;
  if ((g_before.sa_flags & SA_SIGINFO) != 0) {
    g_before.sa_sigaction(signal, info, context);
  } else if (g_before.sa_handler != SIG_DFL && g_before.sa_handler != SIG_IGN) {
    g_before.sa_handler(signal);
  } else {
    sigaction(signal, &g_before, nullptr);  // the same access faults again, and ends the process
  }
}

}  // namespace

TruncationGuard::TruncationGuard(const std::vector<std::span<const std::byte>>& mapped) {
  const std::scoped_lock lock(g_mutex);
  size_t slot = 0;
  for (const auto& bytes : mapped) {
    if (bytes.empty()) continue;
    while (slot < g_ranges.size() && g_ranges[slot].begin != 0) ++slot;
    if (slot == g_ranges.size()) break;
    const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
    const uintptr_t end = (begin + bytes.size() + page_size() - 1) / page_size() * page_size();
    g_ranges[slot].end.store(end, std::memory_order_release);
    g_ranges[slot].begin.store(begin, std::memory_order_release);
    if (slot >= g_used_slots) g_used_slots.store(slot + 1, std::memory_order_release);
    slots_.push_back(slot);
  }
  if (g_guards++ > 0) return;
  struct sigaction ours{};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGBUS, &ours, &g_before);
}

TruncationGuard::~TruncationGuard() {
  const std::scoped_lock lock(g_mutex);
  for (const size_t slot : slots_) g_ranges[slot].begin.store(0, std::memory_order_release);
  if (--g_guards > 0) return;
  g_used_slots.store(0, std::memory_order_release);
  struct sigaction current{};
  sigaction(SIGBUS, nullptr, &current);
  const bool is_ours = (current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == on_fault;
  if (is_ours) sigaction(SIGBUS, &g_before, nullptr);
}

#endif

}  // namespace pb
