// The emulator of CUDA's execution model: what kernels, the wrappers of device_code.h and tests
// call. One fiber is one CUDA thread, and one block runs at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda_types.h"
#include "mbarrier.h"

namespace cuda_on_cpu {

// What a kernel did wrong, with the kernel, the block, the thread and the place.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The place of a barrier or a warp operation in the source.
struct Where {
  const char* file;
  int line;
  const char* what;
};

// How an mma adds: in f32, one product after the other, each rounded (fast); or as tensor cores do
// by the models of arXiv:2511.10909: so many exact products and the sum so far are cut to a number
// of bits below the greatest exponent, added exactly and cut to f32. Zeros have no exponent, as an
// H100 showed.
enum class MmaModel { kSequential, kAmpere /* 8, 24 bits */, kHopper /* 16, 25 bits: wgmma too */ };

struct Options {
  uint64_t seed = 0;  // of the order of threads and blocks; 0: as numbered
  MmaModel mma = MmaModel::kSequential;
};
Options& options();

struct Counters {
  uint64_t blocks, switches, mmas, wgmmas, bulk_copies;
};
const Counters& counters();

// -- for kernels ------------------------------------------------------------------------------

struct ThreadPlace {
  uint3 idx;
  unsigned lane;
};
extern const ThreadPlace* g_thread;  // the one that runs; null between launches
inline const uint3& thread_idx() { return g_thread->idx; }
inline unsigned lane() { return g_thread->lane; }
extern uint3 g_block_idx;
extern dim3 g_block_dim, g_grid_dim;
void* dynamic_shared();
// The next array of SharedArrays: `bytes` from `offset` on, which is moved behind them. Under
// AddressSanitizer a guard that nobody may touch lies between two arrays; guards: bytes of those so
// far, 0 at first.
void* take_shared(size_t& offset, size_t& guards, size_t bytes, size_t alignment);

void sync_block(Where where);
void sync_warp(unsigned mask, Where where);
void shuffle(unsigned mask, int source_lane, const void* in, void* out, unsigned bytes,
             Where where);
unsigned ballot(unsigned mask, bool value, Where where);

// n_matrices (2 or 4) of 8x8. The first 8 * n_matrices lanes give a row of 16 bytes each; every
// lane gets one word of each matrix: out (n_matrices).
void ldmatrix(int n_matrices, const uint64_t (&row)[2], unsigned* out, bool transposed,
              Where where);

enum class MmaInput { kBf16, kF16 };
void mma_m16n8k16(MmaInput input, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                  Where where);

// A copy of cp.async. The wrapper does it when it is waited for, so that sanitizers see who writes.
struct AsyncCopy {
  void* to;
  const void* from;
  unsigned bytes;
};
void async_note(const AsyncCopy& copy);
void async_commit();
bool async_next(unsigned groups_left, AsyncCopy& copy);  // to be done now, one by one

// wgmma: a warpgroup's products are done when they are waited for; until then their accumulators
// are NaN. Operands that have changed by then are an error, and so is a copy of cp.async that no
// proxy fence follows.
uint64_t shared_offset(const void* p);
const void* at_shared(uint64_t offset);
void proxy_fence();
// d (64, n) (+)= a (64, 16) b (16, n).
struct WgmmaCall {
  unsigned n = 0;
  MmaInput input = MmaInput::kBf16;
  bool adds = true;
  bool b_in_rows = false;                 // rows of b are rows of the tile, else its columns are
  const unsigned* a_registers = nullptr;  // the thread's (4); else a is in shared memory
  uint64_t a = 0;                         // descriptors, the same in all threads
  uint64_t b = 0;
};
// What thread t of the warpgroup has read of the operands. Of a: its registers, or half t % 2 of
// row t / 2. Of b: column t, or 16 columns of a row, of which n / 16 threads have one.
struct WgmmaPart {
  uint64_t a[2];
  uint64_t b[2][2];
  bool operator==(const WgmmaPart&) const = default;
};
void wgmma(float* d, const WgmmaCall& call, const WgmmaPart& part);
void wgmma_commit();
bool wgmma_next(unsigned groups_left, WgmmaCall& call);
void wgmma_finish(const WgmmaPart& part);

// Ends the launch with an Error of this text.
[[noreturn]] void fail(const std::string& what);

// -- for tests --------------------------------------------------------------------------------

// A kernel of the program.
struct KernelInfo {
  const char* name;
  unsigned most_threads;
  size_t params_bytes;
  void (*body)(const void* params);
};

// Adds a kernel to those that are found by name: PB_KERNEL makes one.
struct Registered {
  Registered(const char* name, unsigned most_threads, size_t params_bytes,
             void (*body)(const void* params));
};

// Null where there is none of the name.
const KernelInfo* find_kernel(const std::string& name);

// The names of all kernels of the program.
std::vector<std::string> kernel_names();

// Runs a kernel. params: the struct that it takes. Throws Error where the block has too many
// threads or the kernel does what CUDA forbids.
void launch(const KernelInfo& kernel, dim3 grid, dim3 block, size_t shared_bytes,
            const void* params);

// The same by name. Throws Error, too, where there is none of the name, or params is not of the
// size that the kernel takes.
void launch(const std::string& name, dim3 grid, dim3 block, size_t shared_bytes, const void* params,
            size_t params_bytes);

// Runs any function as a kernel. name: for errors.
void launch(const char* name, dim3 grid, dim3 block, size_t shared_bytes,
            const std::function<void()>& kernel);

}  // namespace cuda_on_cpu
