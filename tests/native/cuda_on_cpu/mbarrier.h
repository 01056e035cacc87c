// Barriers in shared memory that count arrivals of threads and bytes of copies.
#pragma once

#include <cstdint>

#include "tensor_map.h"

namespace cuda_on_cpu {

struct Where;

// A barrier's place in shared memory and what the thread has read there.
struct MbarrierWord {
  const uint64_t* at;
  uint64_t word;
};

// Returns what is to be written to `at`: who overwrites it has no barrier any more.
uint64_t mbarrier_init(const uint64_t* at, unsigned n_arrivals);
// bytes: that are expected before.
void mbarrier_arrive(const MbarrierWord& barrier, unsigned bytes);
// Notes a copy whose bytes count for the phase that is under way.
void mbarrier_note(const MbarrierWord& barrier, const BulkCopy& copy);
// True when the phase of this parity is over. False where one of its copies is to be done now, by
// the caller: any of them, no sooner than somebody waits, and others may go on before.
bool mbarrier_wait(const MbarrierWord& barrier, unsigned parity, BulkCopy& copy,
                   const Where& where);
void mbarrier_copied(const MbarrierWord& barrier, const BulkCopy& copy);

// -- for the emulator -----------------------------------------------------------------------------

inline constexpr unsigned kMostMbarriers = 32;   // of a block
inline constexpr unsigned kMostBulkCopies = 16;  // under way for one of them

struct Mbarrier {
  const uint64_t* at = nullptr;
  unsigned n_arrivals = 0;
  unsigned pending = 0;    // arrivals of this phase still to come
  int64_t bytes = 0;       // likewise; below 0 where copies came before who expects them
  unsigned phase = 0;      // how many are over
  unsigned made_by = 0;    // number of the thread
  bool is_fenced = false;  // against the async proxy
  unsigned n_copies = 0;
  BulkCopy copies[kMostBulkCopies];  // under way
  char copy_sync = 0;                // addresses for the race detector
  char phase_sync[2] = {};
};

// Of a new block.
void forget_mbarriers();
// What the current thread has made is fenced.
void fence_mbarriers();
// Whether there are copies under way that nobody has waited for.
bool has_bulk_copies();

}  // namespace cuda_on_cpu
