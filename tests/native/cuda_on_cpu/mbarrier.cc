// mbarriers and the copies that they count.
#include "mbarrier.h"

#include "machine.h"

namespace cuda_on_cpu {
namespace {

constexpr uint64_t kWord = 0x6d62617272696500;  // and the barrier's number

Mbarrier& find(const MbarrierWord& barrier) {
  const uint64_t number = barrier.word - kWord;
  if (number >= m.n_mbarriers || m.mbarriers[number].at != barrier.at) {
    fail("there is no mbarrier: not made yet, not seen yet or overwritten");
  }
  return m.mbarriers[number];
}

void wake(const Mbarrier& barrier) {
  for (unsigned i = 0; i < m.n_threads; ++i) {
    if (m.threads[i].waits_for != &barrier) continue;
    m.threads[i].waits_for = nullptr;
    make_ready(m.threads[i].warp, 1u << m.threads[i].lane);
  }
}

// Ends the phase if nothing is missing.
void end_phase(Mbarrier& barrier) {
  if (barrier.pending > 0) return;
  if (barrier.bytes < 0) fail("mbarrier: more bytes are copied than the phase expects");
  if (barrier.bytes > 0) return;
  if (barrier.n_copies > 0) {
    fail("mbarrier: a phase is over while its copies are under way: it expects too few bytes");
  }
  ++barrier.phase;
  barrier.pending = barrier.n_arrivals;
  wake(barrier);
}

}  // namespace

uint64_t mbarrier_init(const uint64_t* at, unsigned n_arrivals) {
  if (reinterpret_cast<uintptr_t>(at) % 8 != 0) fail("mbarrier.init: not on 8 bytes");
  if (n_arrivals == 0) fail("mbarrier.init: of no arrivals");
  for (unsigned i = 0; i < m.n_mbarriers; ++i) {
    if (m.mbarriers[i].at == at) fail("mbarrier.init: there is one already");
  }
  if (m.n_mbarriers == kMostMbarriers) fail("mbarrier.init: too many for the emulator");
  Mbarrier& barrier = m.mbarriers[m.n_mbarriers];
  barrier.at = at;
  barrier.n_arrivals = barrier.pending = n_arrivals;
  barrier.bytes = 0;
  barrier.phase = 0;
  barrier.made_by = current().number;
  barrier.is_fenced = false;
  barrier.n_copies = 0;
  return kWord + m.n_mbarriers++;
}

void mbarrier_arrive(const MbarrierWord& word, unsigned bytes) {
  Mbarrier& barrier = find(word);
  tsan_release(&barrier.phase_sync[barrier.phase % 2]);
  if (barrier.pending == 0) fail("mbarrier.arrive: more arrivals than the phase has");
  barrier.bytes += bytes;
  --barrier.pending;
  end_phase(barrier);
}

void mbarrier_note(const MbarrierWord& word, const BulkCopy& copy) {
  Mbarrier& barrier = find(word);
  if (!barrier.is_fenced) {
    fail("cp.async.bulk: for an mbarrier that was made without fence.proxy.async after it");
  }
  if (barrier.n_copies == kMostBulkCopies) fail("cp.async.bulk: too many for the emulator");
  barrier.copies[barrier.n_copies++] = copy;
  tsan_release(&barrier.copy_sync);
  wake(barrier);  // those that wait do the copies
}

bool mbarrier_wait(const MbarrierWord& word, unsigned parity, BulkCopy& copy, const Where& where) {
  Mbarrier& barrier = find(word);
  Thread& t = current();
  t.where = where;
  while (barrier.phase % 2 == parity) {
    const bool others_first = m.options.seed != 0 && sample() % 2 == 0;
    if (barrier.n_copies > 0 && !others_first) {
      const uint64_t any = m.options.seed == 0 ? 0 : sample() % barrier.n_copies;
      copy = barrier.copies[any];
      barrier.copies[any] = barrier.copies[--barrier.n_copies];
      tsan_acquire(&barrier.copy_sync);
      return false;
    }
    if (barrier.n_copies > 0) {
      make_ready(t.warp, 1u << t.lane);
    } else {
      t.state = State::kAtWarp;
      t.waits_for = &barrier;
    }
    yield();
    t.state = State::kReady;
  }
  tsan_acquire(&barrier.phase_sync[parity]);
  return true;
}

void mbarrier_copied(const MbarrierWord& word, const BulkCopy& copy) {
  Mbarrier& barrier = find(word);
  tsan_release(&barrier.phase_sync[barrier.phase % 2]);
  ++m.counters.bulk_copies;
  barrier.bytes -= copy.bytes();
  end_phase(barrier);
}

void forget_mbarriers() { m.n_mbarriers = 0; }

void fence_mbarriers() {
  for (unsigned i = 0; i < m.n_mbarriers; ++i) {
    if (m.mbarriers[i].made_by == current().number) m.mbarriers[i].is_fenced = true;
  }
}

bool has_bulk_copies() {
  for (unsigned i = 0; i < m.n_mbarriers; ++i) {
    if (m.mbarriers[i].n_copies > 0) return true;
  }
  return false;
}

}  // namespace cuda_on_cpu
