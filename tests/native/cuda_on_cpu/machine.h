// The state of the emulator: the block that runs, its warps and its threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "context.h"
#include "emulator.h"
#include "mbarrier.h"
#include "mma.h"
#include "sanitizers.h"
#include "wgmma.h"

namespace cuda_on_cpu {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kMostThreads = 1024;  // of a block

enum class State { kReady, kAtBlock, kAtWarp, kDone };

struct Thread : ThreadPlace {
  unsigned number = 0;  // in its block
  unsigned warp = 0;
  State state = State::kReady;
  Where where{};  // what it waits in
  Context context;
  Stack stack;
  // Copies of cp.async in the order they were noted, and where each committed group ends.
  std::vector<AsyncCopy> copies;
  std::vector<size_t> copy_groups;
  size_t copies_done = 0;
  size_t copy_groups_done = 0;
  bool needs_proxy_fence = false;
  size_t wgmma_groups = 0;  // committed by this thread
  size_t wgmma_seen = 0;    // products that it has waited for
  const Mbarrier* waits_for = nullptr;
};

// What the lanes of one mask bring to one operation. It is theirs until each has read the result:
// a lane is in one meeting at most, so that a warp has enough of them.
struct Meeting {
  unsigned mask = 0;
  unsigned arrived = 0;
  unsigned unread = 0;  // lanes that have yet to read the result
  Where where{};
};

union MeetingData {
  alignas(64) unsigned char bytes[kWarp][16];
  uint16_t rows[kWarp][8];
  MmaTile mma;
};

struct Warp {
  unsigned ready = 0;     // lanes that can go on
  unsigned at_block = 0;  // lanes that wait in __syncthreads
  unsigned waiting = 0;   // meetings that some lanes have yet to come to
  unsigned taken = 0;     // meetings that wait or are not read
  Meeting meetings[kWarp];
  MeetingData data[kWarp];
  unsigned generation = 0;  // of __syncwarp
  char sync[2] = {};        // addresses for the race detector
};

struct Machine {
  Options options;
  Counters counters{};

  // The launch.
  const std::function<void()>* kernel = nullptr;
  std::string error;
  uint64_t random = 0;

  // The block.
  std::vector<Thread> threads;
  std::unique_ptr<Warp[]> warps;
  std::vector<Warpgroup> warpgroups;
  Mbarrier mbarriers[kMostMbarriers];
  unsigned n_mbarriers = 0;
  unsigned n_threads = 0, n_warps = 0;
  unsigned n_alive = 0, n_at_block = 0;
  unsigned warps_ready = 0;  // warps with lanes that can go on
  unsigned warp = 0;         // that ran last
  unsigned generation = 0;   // of __syncthreads
  Where block_where{};
  char block_sync[2] = {}, begin_sync = 0, end_sync = 0;  // addresses for the race detector

  // Dynamic shared memory of the block.
  unsigned char* shared = nullptr;
  size_t shared_bytes = 0;
  bool is_carved = false;  // into arrays, with guards between them

  // What launched it.
  Context host;
  const void* host_stack = nullptr;
  size_t host_stack_bytes = 0;
};
extern Machine& m;

inline Thread& current() { return *const_cast<Thread*>(static_cast<const Thread*>(g_thread)); }

inline uint64_t sample() {
  m.random += 0x9e3779b97f4a7c15u;
  uint64_t z = m.random;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

inline void make_ready(unsigned warp, unsigned lanes) {
  m.warps[warp].ready |= lanes;
  m.warps_ready |= 1u << warp;
}

// Lets another thread go on; returns when the current one is chosen. Where no thread can go on, or
// there is an error, the host does.
void yield();
// The same, of the host: returns where no thread can go on.
void run_threads();

bool same_place(const Where& a, const Where& b);
std::string text_of(const Where& where);

// Runs one block of the launch. number: for errors.
void run_block(uint64_t number);

// Room for guards between arrays of shared memory.
inline constexpr size_t kMostAlignment = 1024;
inline constexpr size_t kGuard = 64;
inline constexpr size_t kMostGuards = kAsan ? size_t{24} << 10 : 0;

// Makes `bytes` of the block's shared memory NaN.
void fill_with_nan(void* at, size_t bytes);

}  // namespace cuda_on_cpu
