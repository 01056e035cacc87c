// One block: its threads take turns, meet in __syncthreads and end.
#include <bit>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "machine.h"

#ifdef CUDA_ON_CPU_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_on_cpu {

namespace {
// Never destroyed: to the race detector, that would be an access which nothing orders.
union Forever {
  Machine machine;
  Forever() : machine() {}
  ~Forever() {}
} forever;
}  // namespace

Machine& m = forever.machine;
const ThreadPlace* g_thread = nullptr;
uint3 g_block_idx;
dim3 g_block_dim, g_grid_dim;

Options& options() { return m.options; }
const Counters& counters() { return m.counters; }

bool same_place(const Where& a, const Where& b) {
  if (a.line != b.line) return false;
  return (a.what == b.what || std::strcmp(a.what, b.what) == 0) &&
         (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

std::string text_of(const Where& where) {
  return std::string(where.what) + " at " + where.file + ":" + std::to_string(where.line);
}

namespace {

std::string name_of(const Thread& t) {
  return "block (" + std::to_string(g_block_idx.x) + "," + std::to_string(g_block_idx.y) + "," +
         std::to_string(g_block_idx.z) + ") thread " + std::to_string(t.number);
}

// Any of the bits that are set: not each with the same probability where there are gaps.
unsigned random_bit(unsigned bits) {
  const int turn = static_cast<int>(sample() >> 59);
  return (static_cast<unsigned>(std::countr_zero(std::rotr(bits, turn))) +
          static_cast<unsigned>(turn)) %
         32;
}

// A thread that can go on, which is ready no more; null where there is none. In order, a warp runs
// until it waits for another one. Half of the random orders are alike, so that warps get far apart
// from each other; in the others any thread of any warp is next.
Thread* take_ready() {
  if (!m.error.empty() || m.warps_ready == 0) return nullptr;
  const bool is_warp_ready = (m.warps_ready >> m.warp & 1u) != 0;
  unsigned lane = 0;
  if (m.options.seed == 0) {
    if (!is_warp_ready) m.warp = static_cast<unsigned>(std::countr_zero(m.warps_ready));
    lane = static_cast<unsigned>(std::countr_zero(m.warps[m.warp].ready));
  } else {
    const bool stays = m.options.seed % 2 == 0 && is_warp_ready && sample() % 64 != 0;
    if (!stays) m.warp = random_bit(m.warps_ready);
    lane = random_bit(m.warps[m.warp].ready);
  }
  Warp& warp = m.warps[m.warp];
  warp.ready &= ~(1u << lane);
  if (warp.ready == 0) m.warps_ready &= ~(1u << m.warp);
  return &m.threads[m.warp * kWarp + lane];
}

void leave_for(Thread* from, Thread* to) {  // null: the host
  ++m.counters.switches;
  g_thread = to;
  Context& old_context = from != nullptr ? from->context : m.host;
  Context& new_context = to != nullptr ? to->context : m.host;
#ifdef CUDA_ON_CPU_TSAN
  __tsan_switch_to_fiber(new_context.tsan_fiber, 1 /* no order */);
#endif
#ifdef CUDA_ON_CPU_ASAN
  const bool ends = from != nullptr && from->state == State::kDone;
  __sanitizer_start_switch_fiber(ends ? nullptr : &old_context.asan_fake_stack,
                                 to != nullptr ? to->stack.bottom() : m.host_stack,
                                 to != nullptr ? Stack::kBytes : m.host_stack_bytes);
#endif
  Context::change(old_context, new_context);
#ifdef CUDA_ON_CPU_ASAN
  __sanitizer_finish_switch_fiber(old_context.asan_fake_stack, nullptr, nullptr);
#endif
}

void release_block() {
  m.n_at_block = 0;
  ++m.generation;
  for (unsigned w = 0; w < m.n_warps; ++w) {
    if (m.warps[w].at_block == 0) continue;
    make_ready(w, m.warps[w].at_block);
    m.warps[w].at_block = 0;
  }
}

// The first function of every fiber.
void run_thread() {
#ifdef CUDA_ON_CPU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, m.host_stack != nullptr ? nullptr : &m.host_stack,
                                  m.host_stack_bytes != 0 ? nullptr : &m.host_stack_bytes);
#endif
  Thread& t = current();
  tsan_acquire(&m.begin_sync);
  try {
    (*m.kernel)();
    if (t.copies_done != t.copies.size()) fail("ends with copies that nobody waited for");
  } catch (const std::exception& error) {
    if (m.error.empty()) m.error = error.what();
  }
  tsan_release(&m.end_sync);
  t.state = State::kDone;
  --m.n_alive;
  // Since sm_70 a barrier is for the threads that have not ended.
  if (m.n_alive > 0 && m.n_at_block == m.n_alive) release_block();
  yield();
  std::abort();
}

void start_thread(unsigned number) {
  Thread& t = m.threads[number];
  t.number = number;
  t.warp = number / kWarp;
  t.lane = number % kWarp;
  t.idx = {number % g_block_dim.x, number / g_block_dim.x % g_block_dim.y,
           number / g_block_dim.x / g_block_dim.y};
  t.state = State::kReady;
  t.copies.clear();
  t.copy_groups.clear();
  t.copies_done = t.copy_groups_done = 0;
  t.needs_proxy_fence = false;
  t.wgmma_groups = t.wgmma_seen = 0;
  t.waits_for = nullptr;
  t.context.asan_fake_stack = nullptr;
  t.context.start(t.stack, run_thread);
  make_ready(t.warp, 1u << t.lane);
}

// Says who waits where, of each warp the first lane.
std::string stuck_threads() {
  std::string who;
  for (unsigned i = 0; i < m.n_threads; ++i) {
    const Thread& t = m.threads[i];
    if (t.state == State::kDone || (i > 0 && i % kWarp != 0)) continue;
    who += " thread " + std::to_string(i) + " in " + text_of(t.where);
    if (t.waits_for != nullptr) {
      who += " (" + std::to_string(t.waits_for->pending) + " arrivals and " +
             std::to_string(t.waits_for->bytes) + " bytes are missing)";
    }
    who += ";";
  }
  return who;
}

}  // namespace

void yield() {
  Thread* const from = &current();
  Thread* const to = take_ready();
  if (to != from) leave_for(from, to);
}

void run_threads() {
  Thread* const to = take_ready();
  if (to != nullptr) leave_for(nullptr, to);
}

void fail(const std::string& what) {
  if (g_thread == nullptr) throw Error(what);
  throw Error(name_of(current()) + ": " + what);
}

void sync_block(Where where) {
  Thread& t = current();
  if (m.n_at_block == 0) {
    m.block_where = where;
  } else if (!same_place(m.block_where, where)) {
    fail("threads of a block diverge: " + text_of(where) + ", others in " + text_of(m.block_where));
  }
  t.where = where;
  char* const at = &m.block_sync[m.generation % 2];
  tsan_release(at);
  t.state = State::kAtBlock;
  m.warps[t.warp].at_block |= 1u << t.lane;
  if (++m.n_at_block == m.n_alive) release_block();
  yield();
  t.state = State::kReady;
  tsan_acquire(at);
}

void run_block(uint64_t number) {
  ++m.counters.blocks;
  m.n_alive = m.n_threads;
  m.n_at_block = 0;
  m.warps_ready = 0;
  m.warp = 0;
  for (unsigned w = 0; w < m.n_warps; ++w) {
    Warp& warp = m.warps[w];
    warp.ready = warp.at_block = warp.waiting = warp.taken = 0;
  }
  for (Warpgroup& group : m.warpgroups) {
    group.groups.clear();
    group.n_started = group.n_done = 0;
    for (WgmmaAccumulators& accumulators : group.accumulators) accumulators.n_products = 0;
    group.arrived = 0;
  }
  forget_mbarriers();
  for (unsigned i = 0; i < m.n_threads; ++i) start_thread(i);
  run_threads();
  if (m.n_alive > 0 && m.error.empty()) {
    m.error = "block " + std::to_string(number) + ": nobody can go on:" + stuck_threads();
  }
  if (m.error.empty() && has_bulk_copies()) {
    m.error = "block " + std::to_string(number) + ": ends with bulk copies that nobody waited for";
  }
  g_thread = nullptr;
}

}  // namespace cuda_on_cpu
