// Compiled without sanitizers, also where kernels are compiled with one: what this touches is the
// machine's, not the kernel's. (No memcpy or memset on what a fiber sees: they are intercepted.)
#include "cuda_on_cpu.h"

#include <sys/mman.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#ifdef CUDA_ON_CPU_TSAN
#include <sanitizer/tsan_interface.h>
#endif
#ifdef CUDA_ON_CPU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__) || defined(CUDA_ON_CPU_UCONTEXT)
#include <ucontext.h>
#endif

extern "C" {
extern unsigned char __start_cuda_shared[] __attribute__((weak));  // the linker's
extern unsigned char __stop_cuda_shared[] __attribute__((weak));
}

namespace cuda_on_cpu {
namespace {

constexpr size_t kStack = 256 << 10;
constexpr unsigned kWarp = 32;
constexpr uint64_t kSharedBase = 1024;  // of dynamic shared memory among shared addresses

// -- contexts ----------------------------------------------------------------------------------
#if defined(__x86_64__) && !defined(CUDA_ON_CPU_UCONTEXT)
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
)");
struct Context {
  void* sp = nullptr;
  void start(unsigned char* stack, void (*entry)()) {
    auto** top = reinterpret_cast<void**>(stack + kStack);
    top[-1] = nullptr;
    top[-2] = reinterpret_cast<void*>(entry);
    for (int i = 3; i <= 8; ++i) top[-i] = nullptr;
    sp = top - 8;
  }
  static void change(Context& from, Context& to) { cuda_on_cpu_switch(&from.sp, to.sp); }
};
#else
struct Context {
  ucontext_t u;
  void start(unsigned char* stack, void (*entry)()) {
    getcontext(&u);
    u.uc_stack = {.ss_sp = stack, .ss_flags = 0, .ss_size = kStack};
    u.uc_link = nullptr;
    makecontext(&u, entry, 0);
  }
  static void change(Context& from, Context& to) { swapcontext(&from.u, &to.u); }
};
#endif

enum class State { kReady, kAtBlock, kAtWarp, kDone };

struct Thread {
  Context context;
  unsigned char* stack = nullptr;
  uint3 idx{};
  unsigned number = 0, warp = 0, lane = 0;
  State state = State::kReady;
  Where where{};
  const void* in = nullptr;  // of the warp's operation it waits in
  void* out = nullptr;
  int source = 0;
  std::vector<AsyncCopy> copies;            // noted, in order
  std::vector<size_t> groups;               // ends of committed groups in `copies`
  size_t done = 0, first_group = 0;         // of the two
  size_t wgmma_groups = 0, wgmma_seen = 0;  // committed; finished, as far as this thread has come
  bool needs_proxy_fence = false;
  void* fiber = nullptr;  // the sanitizer's
  void* fake_stack = nullptr;
};

struct Meeting {  // lanes of one mask on their way to one operation
  unsigned mask = 0, arrived = 0;
  Where where{};
};
struct Warp {
  Meeting meetings[8];
  unsigned generation = 0;
  char sync[2];  // addresses for the race detector
};

struct Wgmma {  // under way
  uint64_t tiles[2];
  uint64_t a[128][2], b[128][2];  // operands as they were
  float* d[128];
  bool begins = false;  // d was read and made NaN for it
};
struct Group {  // a warpgroup
  std::vector<Wgmma> started;
  std::vector<size_t> groups;  // ends of committed ones in `started`
  size_t done = 0;
  float acc[128][32];
  unsigned arrived = 0;
};

struct Machine {
  std::vector<Group> warpgroups;
  Options options;
  Counters counters{};
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  unsigned n = 0, n_alive = 0, n_at_block = 0, generation = 0;
  char block_sync[2], begin_sync, end_sync;
  Where block_where{};
  std::vector<Thread*> ready;  // a ring
  size_t head = 0, n_ready = 0;
  Thread* current = nullptr;
  Context host;
  void* host_fiber = nullptr;
  void* host_fake_stack = nullptr;
  const void* host_stack = nullptr;
  size_t host_stack_size = 0;
  const std::function<void()>* kernel = nullptr;
  unsigned char* shared = nullptr;
  size_t shared_bytes = 0;
  std::string error;
  uint64_t random = 0;

  uint64_t draw() {
    random += 0x9e3779b97f4a7c15u;
    uint64_t z = random;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
};
Machine m;

size_t wrap(size_t at) { return at < m.n ? at : at - m.n; }

void make_ready(Thread& t) {
  t.state = State::kReady;
  m.ready[wrap(m.head + m.n_ready++)] = &t;
}

void leave_for(Thread* from, Thread* to) {  // null: the host
  ++m.counters.switches;
  m.current = to;
#ifdef CUDA_ON_CPU_TSAN
  __tsan_switch_to_fiber(to ? to->fiber : m.host_fiber, 1 /* no order */);
#endif
#ifdef CUDA_ON_CPU_ASAN
  const bool ends = from != nullptr && from->state == State::kDone;
  void** save = from ? &from->fake_stack : &m.host_fake_stack;
  __sanitizer_start_switch_fiber(ends ? nullptr : save, to ? to->stack : m.host_stack,
                                 to ? kStack : m.host_stack_size);
#endif
  Context::change(from ? from->context : m.host, to ? to->context : m.host);
#ifdef CUDA_ON_CPU_ASAN
  __sanitizer_finish_switch_fiber(from ? from->fake_stack : m.host_fake_stack, nullptr, nullptr);
#endif
}

// Lets another thread that can go on do so; where there is none, the host, who sees why.
void next(Thread* from) {
  Thread* to = nullptr;
  if (m.error.empty() && m.n_ready > 0) {
    if (m.options.seed != 0) {
      std::swap(m.ready[m.head],
                m.ready[wrap(m.head + (m.draw() >> 32) * m.n_ready / (uint64_t{1} << 32))]);
    }
    to = m.ready[m.head];
    m.head = wrap(m.head + 1);
    --m.n_ready;
  }
  if (to != from) leave_for(from, to);
}

void tsan_release(char* at) {
#ifdef CUDA_ON_CPU_TSAN
  __tsan_release(at);
#else
  (void)at;
#endif
}
void tsan_acquire(char* at) {
#ifdef CUDA_ON_CPU_TSAN
  __tsan_acquire(at);
#else
  (void)at;
#endif
}

bool same(const Where& a, const Where& b) {
  if (a.line != b.line) return false;
  return (a.what == b.what || std::strcmp(a.what, b.what) == 0) &&
         (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

std::string text(const Where& w) {
  return std::string(w.what) + " at " + w.file + ":" + std::to_string(w.line);
}

std::string thread_name(const Thread& t) {
  return "block (" + std::to_string(g_block_idx.x) + "," + std::to_string(g_block_idx.y) + "," +
         std::to_string(g_block_idx.z) + ") thread " + std::to_string(t.number);
}

void release_block() {
  m.n_at_block = 0;
  ++m.generation;
  for (unsigned i = 0; i < m.n; ++i) {
    if (m.threads[i].state == State::kAtBlock) make_ready(m.threads[i]);
  }
}

void entry() {
#ifdef CUDA_ON_CPU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, m.host_stack ? nullptr : &m.host_stack,
                                  m.host_stack_size ? nullptr : &m.host_stack_size);
#endif
  Thread& t = *m.current;
  tsan_acquire(&m.begin_sync);
  (*m.kernel)();
  tsan_release(&m.end_sync);
  if (t.done != t.copies.size()) fail("ends with copies that nobody waited for");
  t.state = State::kDone;
  --m.n_alive;
  if (m.n_alive > 0 && m.n_at_block == m.n_alive) release_block();  // as PTX has it since sm_70
  next(&t);
  std::abort();
}

// The lane's part in an operation of the warp; true to the last lane, which does it for all.
bool meet(unsigned mask, const Where& where) {
  Thread& t = *m.current;
  Warp& w = m.warps[t.warp];
  if ((mask >> t.lane & 1u) == 0) fail(text(where) + ": the lane is not in its mask");
  Meeting* mine = nullptr;
  Meeting* free_one = nullptr;
  for (Meeting& x : w.meetings) {
    if (x.arrived == 0) {
      if (free_one == nullptr) free_one = &x;
    } else if (x.mask == mask) {
      mine = &x;
    } else if ((x.mask & mask) != 0) {
      fail(text(where) + " and " + text(x.where) + ": masks that overlap");
    }
  }
  if (mine == nullptr) {
    mine = free_one;
    mine->mask = mask;
    mine->where = where;
  } else if (!same(mine->where, where)) {
    fail("lanes of a warp diverge: " + text(where) + ", others in " + text(mine->where));
  }
  mine->arrived |= 1u << t.lane;
  t.where = where;
  if (mine->arrived == mask) {
    mine->arrived = 0;
    return true;
  }
  t.state = State::kAtWarp;
  return false;
}

// After meet: waits, or, of the last, lets the others go.
template <typename Combine>
void collective(unsigned mask, const Where& where, Combine combine) {
  if (!meet(mask, where)) {
    next(m.current);
    return;
  }
  Thread* lanes[kWarp] = {};
  const unsigned first = m.current->warp * kWarp;
  for (unsigned l = 0; l < kWarp; ++l) {
    if (mask >> l & 1u) lanes[l] = &m.threads[first + l];
  }
  combine(lanes);
  for (Thread* lane : lanes) {
    if (lane != nullptr && lane != m.current) make_ready(*lane);
  }
  if (m.options.seed != 0 && (m.draw() & 3) == 0) {
    make_ready(*m.current);
    next(m.current);
  }
}

void copy_bytes(void* to, const void* from, unsigned n) {
  auto* a = static_cast<volatile unsigned char*>(to);
  const auto* b = static_cast<const volatile unsigned char*>(from);
  for (unsigned i = 0; i < n; ++i) a[i] = b[i];
}

float number(unsigned bf16) { return std::bit_cast<float>(bf16 << 16); }

// c + sum of products, by the truncating model of tensor cores.
float fused(const float* a, const float* b, int n, float c, int bits) {
  double products[16], total = c;
  int exponents[16], greatest = -1000;
  const auto exponent = [](float x) {
    const int e = static_cast<int>(std::bit_cast<uint32_t>(x) >> 23 & 255u);
    return e == 0 ? -126 : e - 127;
  };
  for (int i = 0; i < n; ++i) {
    products[i] = double{a[i]} * double{b[i]};
    total += products[i];
    exponents[i] = exponent(a[i]) + exponent(b[i]);
    if (products[i] != 0 && exponents[i] > greatest) greatest = exponents[i];
  }
  if (!std::isfinite(total))
    return std::isnan(total) ? __builtin_nanf("") : static_cast<float>(total);
  if (c != 0 && exponent(c) > greatest) greatest = exponent(c);
  if (greatest == -1000) return 0.0f;
  const double up = std::ldexp(1.0, bits - greatest);
  int64_t sum = static_cast<int64_t>(double{c} * up);
  for (int i = 0; i < n; ++i) sum += static_cast<int64_t>(products[i] * up);
  // Cut to the 24 bits of f32 (subnormal results are not modelled).
  const uint64_t magnitude = sum < 0 ? -static_cast<uint64_t>(sum) : static_cast<uint64_t>(sum);
  const int extra = 64 - std::countl_zero(magnitude | 1) - 24;
  const uint64_t cut = extra > 0 ? magnitude >> extra << extra : magnitude;
  const double value = std::ldexp(static_cast<double>(cut), greatest - bits);
  return static_cast<float>(sum < 0 ? -value : value);
}

}  // namespace

uint3 g_block_idx;
dim3 g_block_dim, g_grid_dim;
Options& options() { return m.options; }
const Counters& counters() { return m.counters; }
const uint3& thread_idx() { return m.current->idx; }
unsigned lane() { return m.current->lane; }
void* dynamic_shared() { return m.shared; }
void* take_shared(size_t& offset, size_t& guards, size_t bytes, size_t alignment) {
  (void)guards;
  const size_t at = (offset + alignment - 1) & ~(alignment - 1);
  if (at + bytes > m.shared_bytes) fail("takes more shared memory than the launch gave");
  offset = at + bytes;
  return m.shared + at;
}

void fail(const std::string& what) {
  if (m.current == nullptr) throw Error(what);
  m.error = thread_name(*m.current) + ": " + what;
  next(m.current);
  std::abort();
}

void sync_block(Where where) {
  Thread& t = *m.current;
  if (m.n_at_block == 0) {
    m.block_where = where;
  } else if (!same(m.block_where, where)) {
    fail("threads of a block diverge: " + text(where) + ", others in " + text(m.block_where));
  }
  t.where = where;
  char* const at = &m.block_sync[m.generation % 2];
  tsan_release(at);
  t.state = State::kAtBlock;
  if (++m.n_at_block == m.n_alive) release_block();
  next(&t);
  tsan_acquire(at);
}

void sync_warp(unsigned mask, Where where) {
  Warp& w = m.warps[m.current->warp];
  char* const at = &w.sync[w.generation % 2];
  tsan_release(at);
  collective(mask, where, [&](Thread**) { ++w.generation; });
  tsan_acquire(at);
}

void shuffle(unsigned mask, int source_lane, const void* in, void* out, unsigned bytes,
             Where where) {
  Thread& t = *m.current;
  t.in = in;
  t.out = out;
  t.source = source_lane;
  if ((mask >> source_lane & 1u) == 0) fail(text(where) + ": from a lane that is not in the mask");
  collective(mask, where, [&](Thread** lanes) {
    for (unsigned l = 0; l < kWarp; ++l) {
      if (lanes[l]) copy_bytes(lanes[l]->out, lanes[lanes[l]->source]->in, bytes);
    }
  });
}

unsigned ballot(unsigned mask, bool value, Where where) {
  unsigned out = 0;
  m.current->in = &value;
  m.current->out = &out;
  collective(mask, where, [&](Thread** lanes) {
    unsigned all = 0;
    for (unsigned l = 0; l < kWarp; ++l) {
      if (lanes[l] && *static_cast<const bool*>(lanes[l]->in)) all |= 1u << l;
    }
    for (unsigned l = 0; l < kWarp; ++l) {
      if (lanes[l]) *static_cast<unsigned*>(lanes[l]->out) = all;
    }
  });
  return out;
}

void ldmatrix(int n_matrices, const uint64_t (&row)[2], unsigned* r, bool transposed, Where where) {
  m.current->in = row;
  m.current->out = r;
  collective(~0u, where, [&](Thread** lanes) {
    for (unsigned l = 0; l < kWarp; ++l) {
      auto* out = static_cast<unsigned*>(lanes[l]->out);
      for (unsigned i = 0; i < static_cast<unsigned>(n_matrices); ++i) {
        const auto at = [&](unsigned row_, unsigned column) -> unsigned {
          return static_cast<const uint16_t*>(lanes[8 * i + row_]->in)[column];
        };
        const unsigned g = l / 4, c = 2 * (l % 4);
        out[i] = transposed ? at(c, g) | at(c + 1, g) << 16 : at(g, c) | at(g, c + 1) << 16;
      }
    }
  });
}

void mma_m16n8k16(MmaInput input, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                  Where where) {
  const auto number = [input](unsigned bits) {
    const auto u = static_cast<uint16_t>(bits);
    return input == MmaInput::kF16 ? __half2float({u}) : __bfloat162float({u});
  };
  struct In {
    const unsigned* a;
    const unsigned* b;
  } in{a, b};
  m.current->in = &in;
  m.current->out = c;
  collective(~0u, where, [&](Thread** lanes) {
    ++m.counters.mmas;
    float x[16][16], y[8][16], yt[16][8];
    float z[16][8];
    for (unsigned l = 0; l < kWarp; ++l) {
      const In& from = *static_cast<const In*>(lanes[l]->in);
      const float* acc = static_cast<const float*>(lanes[l]->out);
      const unsigned g = l / 4, k = 2 * (l % 4);
      for (unsigned i = 0; i < 4; ++i) {
        x[g + 8 * (i % 2)][k + 8 * (i / 2)] = number(from.a[i] & 0xffffu);
        x[g + 8 * (i % 2)][k + 8 * (i / 2) + 1] = number(from.a[i] >> 16);
        z[g + 8 * (i / 2)][k + i % 2] = acc[i];
      }
      for (unsigned i = 0; i < 2; ++i) {
        y[g][k + 8 * i] = number(from.b[i] & 0xffffu);
        y[g][k + 8 * i + 1] = number(from.b[i] >> 16);
      }
    }
    if (m.options.mma == MmaModel::kSequential) {
      for (int j = 0; j < 8; ++j)
        for (int k = 0; k < 16; ++k) yt[k][j] = y[j][k];
      for (int i = 0; i < 16; ++i)
        for (int k = 0; k < 16; ++k)
          for (int j = 0; j < 8; ++j) z[i][j] = __builtin_fmaf(x[i][k], yt[k][j], z[i][j]);
    } else {
      const bool ampere = m.options.mma == MmaModel::kAmpere;
      for (int i = 0; i < 16; ++i) {
        for (int j = 0; j < 8; ++j) {
          if (ampere) {
            z[i][j] = fused(x[i], y[j], 8, z[i][j], 24);
            z[i][j] = fused(x[i] + 8, y[j] + 8, 8, z[i][j], 24);
          } else {
            z[i][j] = fused(x[i], y[j], 16, z[i][j], 25);
          }
        }
      }
    }
    for (unsigned l = 0; l < kWarp; ++l) {
      auto* acc = static_cast<float*>(lanes[l]->out);
      for (unsigned i = 0; i < 4; ++i) acc[i] = z[l / 4 + 8 * (i / 2)][2 * (l % 4) + i % 2];
    }
  });
}

void async_note(const AsyncCopy& copy) { m.current->copies.push_back(copy); }
void async_commit() { m.current->groups.push_back(m.current->copies.size()); }
bool async_next(unsigned groups_left, AsyncCopy& copy) {
  Thread& t = *m.current;
  while (t.groups.size() - t.first_group > groups_left) {
    if (t.done < t.groups[t.first_group]) {
      copy = t.copies[t.done++];
      t.needs_proxy_fence = true;
      return true;
    }
    ++t.first_group;
  }
  if (t.first_group == t.groups.size() && t.done == t.copies.size()) {
    t.copies.clear();
    t.groups.clear();
    t.done = t.first_group = 0;
  }
  return false;
}

uint64_t shared_offset(const void* p) {
  return static_cast<uint64_t>(static_cast<const unsigned char*>(p) - m.shared) + kSharedBase;
}
const void* at_shared(uint64_t offset) { return m.shared + (offset - kSharedBase); }
void proxy_fence() { m.current->needs_proxy_fence = false; }

namespace {
// All 128 threads of the warpgroup; the last does it.
template <typename Last>
void warpgroup(Last last) {
  Thread& t = *m.current;
  Group& g = m.warpgroups[t.number / 128];
  t.where = {"", 0, "wgmma"};
  if (++g.arrived < 128) {
    t.state = State::kAtWarp;
    next(&t);
    return;
  }
  g.arrived = 0;
  last(g);
  for (unsigned i = t.number / 128 * 128; i < t.number / 128 * 128 + 128; ++i) {
    if (&m.threads[i] != &t) make_ready(m.threads[i]);
  }
}
}  // namespace

void wgmma_m64n64k16(float (&d)[32], uint64_t a, uint64_t b, const uint64_t (&own_a)[2],
                     const uint64_t (&own_b)[2]) {
  struct In {
    float* d;
    uint64_t a, b;
    const uint64_t* own_a;
    const uint64_t* own_b;
  } in{d, a, b, own_a, own_b};
  m.current->in = &in;
  warpgroup([&](Group& g) {
    for (unsigned i = 0; i < m.n; ++i) {
      if (m.threads[i].needs_proxy_fence)
        fail("wgmma after cp.async without fence.proxy.async in thread " + std::to_string(i));
    }
    const unsigned first = m.current->number / 128 * 128;
    g.started.emplace_back();
    Wgmma& w = g.started.back();
    for (unsigned t = 0; t < 128; ++t) {
      const In& from = *static_cast<const In*>(m.threads[first + t].in);
      if (from.a != a || from.b != b) fail("wgmma: threads name different operands");
      w.d[t] = from.d;
      for (int i = 0; i < 2; ++i) {
        w.a[t][i] = from.own_a[i];
        w.b[t][i] = from.own_b[i];
      }
    }
    w.tiles[0] = a;
    w.tiles[1] = b;
    w.begins = g.started.size() - 1 == g.done;  // nothing is under way: the registers hold the sums
    if (!w.begins) {
      if (g.started[g.started.size() - 2].d[0] != w.d[0])
        fail("wgmma: other accumulators while some are under way: not modelled");
      return;
    }
    for (unsigned t = 0; t < 128; ++t) {
      for (int i = 0; i < 32; ++i) {
        g.acc[t][i] = w.d[t][i];
        w.d[t][i] = std::bit_cast<float>(0xffffffffu);
      }
    }
  });
}

void wgmma_commit() {
  Thread& t = *m.current;
  Group& g = m.warpgroups[t.number / 128];
  ++t.wgmma_groups;
  if (t.wgmma_groups > g.groups.size()) g.groups.push_back(g.started.size());
}

bool wgmma_next(unsigned groups_left, uint64_t (&tiles)[2]) {
  Thread& t = *m.current;
  const Group& g = m.warpgroups[t.number / 128];
  if (t.wgmma_groups <= groups_left) return false;
  if (t.wgmma_seen >= g.groups[t.wgmma_groups - groups_left - 1]) return false;
  tiles[0] = g.started[t.wgmma_seen].tiles[0];
  tiles[1] = g.started[t.wgmma_seen].tiles[1];
  ++t.wgmma_seen;
  return true;
}

void wgmma_finish(const uint64_t (&own_a)[2], const uint64_t (&own_b)[2]) {
  struct In {
    const uint64_t* a;
    const uint64_t* b;
  } in{own_a, own_b};
  m.current->in = &in;
  warpgroup([&](Group& g) {
    const unsigned first = m.current->number / 128 * 128;
    const Wgmma& w = g.started[g.done++];
    float x[64][16], y[64][16];
    for (unsigned t = 0; t < 128; ++t) {
      const In& from = *static_cast<const In*>(m.threads[first + t].in);
      for (int i = 0; i < 2; ++i) {
        if (from.a[i] != w.a[t][i] || from.b[i] != w.b[t][i])
          fail("wgmma: an operand was changed while it was under way");
        for (int j = 0; j < 4; ++j) {
          x[t / 2][t % 2 * 8 + i * 4 + j] = number(w.a[t][i] >> 16 * j & 0xffffu);
          y[t / 2][t % 2 * 8 + i * 4 + j] = number(w.b[t][i] >> 16 * j & 0xffffu);
        }
      }
    }
    for (unsigned t = 0; t < 128; ++t) {
      for (int i = 0; i < 32; ++i) {
        const unsigned r = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
        const unsigned c = i / 4 * 8 + t % 4 * 2 + i % 2;
        float& z = g.acc[t][i];
        if (m.options.mma == MmaModel::kSequential) {
          for (int k = 0; k < 16; ++k) z = __builtin_fmaf(x[r][k], y[c][k], z);
        } else {
          z = fused(x[r], y[c], 16, z, 25);
        }
      }
    }
    if (g.done < g.started.size()) return;  // more are under way
    for (unsigned t = 0; t < 128; ++t) {
      for (int i = 0; i < 32; ++i) w.d[t][i] = g.acc[t][i];
    }
  });
}

void launch(const char* name, dim3 grid, dim3 block, size_t shared_bytes,
            const std::function<void()>& kernel) {
  m.n = block.x * block.y * block.z;
  if (m.n == 0 || m.n > 1024) throw Error(std::string(name) + ": a block of no such size");
  if (shared_bytes > 227 * 1024)
    throw Error(std::string(name) + ": more shared memory than 227 KiB");
  if (m.threads.size() < m.n) m.threads.resize(m.n);
  for (unsigned i = 0; i < m.n; ++i) {
    if (m.threads[i].stack != nullptr) continue;
    m.threads[i].copies.reserve(4096);  // here and not by a fiber, or the race detector sees it
    m.threads[i].groups.reserve(1024);
    m.threads[i].stack = static_cast<unsigned char*>(
        mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  m.warps.assign((m.n + kWarp - 1) / kWarp, Warp{});
  m.ready.assign(m.n, nullptr);
  m.kernel = &kernel;
  m.shared_bytes = shared_bytes;
  m.random = m.options.seed * 0x2545f4914f6cdd1du + 1;
  g_block_dim = block;
  g_grid_dim = grid;
  const uint64_t n_blocks = uint64_t{grid.x} * grid.y * grid.z;
  std::vector<uint64_t> order(n_blocks);
  for (uint64_t i = 0; i < n_blocks; ++i) order[i] = i;
  for (uint64_t i = n_blocks; m.options.seed != 0 && i > 1; --i) {
    std::swap(order[i - 1], order[m.draw() % i]);
  }
  const size_t n_static = static_cast<size_t>(__stop_cuda_shared - __start_cuda_shared);
  const size_t words = (shared_bytes + 3) / 4 * 4;
  std::vector<unsigned char*> shareds;
#ifdef CUDA_ON_CPU_TSAN
  m.host_fiber = __tsan_get_current_fiber();
  const bool blocks_apart = n_static == 0 && words * n_blocks < (size_t{1} << 28);
#else
  const bool blocks_apart = false;
#endif
  const auto give_shared = [&] {
    void* at = nullptr;
    if (words != 0 && posix_memalign(&at, 1024, words) != 0) throw std::bad_alloc();
    shareds.push_back(static_cast<unsigned char*>(at));
  };
  for (uint64_t i = 0; i < (blocks_apart ? n_blocks : 1); ++i) give_shared();
  tsan_release(&m.begin_sync);
  m.error.clear();
  for (uint64_t i = 0; i < n_blocks && m.error.empty(); ++i) {
    ++m.counters.blocks;
    const uint64_t b = order[i];
    g_block_idx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                   static_cast<unsigned>(b / grid.x / grid.y)};
    m.shared = shareds[blocks_apart ? i : 0];
    for (size_t at = 0; at < words; ++at) static_cast<volatile unsigned char*>(m.shared)[at] = 0xff;
    for (size_t at = 0; at < n_static; ++at) {
      static_cast<volatile unsigned char*>(__start_cuda_shared)[at] = 0xff;
    }
    m.n_alive = m.n;
    m.n_at_block = 0;
    m.head = m.n_ready = 0;
    for (Warp& w : m.warps) w = {};
    m.warpgroups.clear();
    m.warpgroups.resize((m.n + 127) / 128);
#ifdef CUDA_ON_CPU_TSAN
    for (Group& g : m.warpgroups) {  // by the host: what fibers free, others must not have touched
      g.started.reserve(512);
      g.groups.reserve(512);
    }
#endif
    for (unsigned j = 0; j < m.n; ++j) {
      Thread& t = m.threads[j];
      t.number = j;
      t.warp = j / kWarp;
      t.lane = j % kWarp;
      t.idx = {j % block.x, j / block.x % block.y, j / block.x / block.y};
      t.copies.clear();
      t.groups.clear();
      t.done = t.first_group = 0;
      t.wgmma_groups = t.wgmma_seen = 0;
      t.needs_proxy_fence = false;
#ifdef CUDA_ON_CPU_ASAN
      __asan_unpoison_memory_region(t.stack, kStack);
      t.fake_stack = nullptr;
#endif
#ifdef CUDA_ON_CPU_TSAN
      if (t.fiber == nullptr || blocks_apart) {
        if (t.fiber != nullptr) __tsan_destroy_fiber(t.fiber);
        t.fiber = __tsan_create_fiber(0);
      }
#endif
      t.context.start(t.stack, entry);
      make_ready(t);
    }
    while (m.n_alive > 0 && m.error.empty()) {
      if (m.n_ready == 0) {
        m.error = "block " + std::to_string(b) + ": nobody can go on:";
        for (unsigned j = 0; j < m.n; ++j) {
          const Thread& t = m.threads[j];
          if (t.state == State::kDone || (j > 0 && j % 32 != 0)) continue;
          m.error += " thread " + std::to_string(j) + " in " + text(t.where) + ";";
        }
        break;
      }
      next(nullptr);
    }
    tsan_acquire(&m.end_sync);
    if (!blocks_apart) tsan_release(&m.begin_sync);
  }
  for (unsigned char* p : shareds) free(p);
  m.current = nullptr;
  if (!m.error.empty()) throw Error(std::string(name) + ", " + m.error);
}

namespace {

struct Kernel {
  unsigned most_threads;
  size_t params_bytes;
  void (*body)(const void* params);
};

std::map<std::string, Kernel>& kernels() {
  static std::map<std::string, Kernel> all;
  return all;
}

}  // namespace

Registered::Registered(const char* name, unsigned most_threads, size_t params_bytes,
                       void (*body)(const void* params)) {
  kernels()[name] = {most_threads, params_bytes, body};
}

void launch(const std::string& name, dim3 grid, dim3 block, size_t shared_bytes, const void* params,
            size_t params_bytes) {
  const auto found = kernels().find(name);
  if (found == kernels().end()) throw Error("there is no kernel " + name);
  const Kernel& kernel = found->second;
  if (params_bytes != kernel.params_bytes) throw Error(name + ": parameters of another size");
  if (block.x * block.y * block.z > kernel.most_threads) {
    throw Error(name + ": more threads than it was compiled for");
  }
  launch(name.c_str(), grid, block, shared_bytes, [&] { kernel.body(params); });
}

}  // namespace cuda_on_cpu
