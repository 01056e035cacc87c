// The state of the emulated driver, which its functions share.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver/driver_api.h"
#include "emulated_memory.h"
#include "emulator.h"

namespace pb::cuda {

// The driver's objects, of which users have handles only.
struct ContextObject {};
struct ModuleObject {};
struct GraphObject {
  std::vector<std::function<void()>> work;
};
struct GraphExecObject {
  std::vector<std::function<void()>> work;
};
struct StreamObject {
  std::deque<std::function<void()>> work;
  uint64_t n_given = 0;
  uint64_t n_done = 0;
  std::unique_ptr<GraphObject> captured;  // while a graph is captured
};
struct EventObject {
  StreamHandle stream = nullptr;  // null: not recorded
  uint64_t after = 0;             // done when the stream has done so much
};
struct FunctionObject {
  const cuda_on_cpu::KernelInfo* kernel;
  int most_shared_bytes;  // dynamic ones
};

}  // namespace pb::cuda

namespace cuda_on_cpu {

inline constexpr int kMostShared = 227 << 10;  // dynamic shared memory of a block

struct CallFailure {
  int calls_left;
  pb::cuda::Result code;
};

struct DriverState {
  std::mutex one_call;  // is made at a time: kernels run in calls, and share the emulator
  bool is_initialized = false;
  pb::cuda::ContextObject context;
  int n_retained = 0;
  pb::cuda::Result sticky = pb::cuda::kSuccess;
  std::map<std::string, CallFailure> failures;
  std::map<std::string, int> n_calls;
  EmulatedMemory memory;
  std::set<void*> pinned;
  std::set<pb::cuda::StreamHandle> streams;
  std::set<pb::cuda::EventHandle> events;
  std::set<pb::cuda::ModuleHandle> modules;
  std::set<pb::cuda::GraphHandle> graphs;
  std::set<pb::cuda::GraphExecHandle> graph_execs;
  std::map<std::string, pb::cuda::FunctionObject> functions;
};
DriverState& state();

inline thread_local bool has_context = false;  // current in this thread

// Begins every function, whose caller has locked one_call: counts the call, and says what it is to
// fail with.
pb::cuda::Result enter(const char* function, bool needs_context = true);

#define CUDA_ON_CPU_ENTER(...)                                  \
  const std::lock_guard lock_(::cuda_on_cpu::state().one_call); \
  if (const Result code_ = ::cuda_on_cpu::enter(__VA_ARGS__); code_ != kSuccess) return code_
// Begins a function that gives something back: after a sticky error that is done all the same.
#define CUDA_ON_CPU_ENTER_TO_GIVE_BACK(function)                   \
  const std::lock_guard lock_(::cuda_on_cpu::state().one_call);    \
  if (const Result code_ = ::cuda_on_cpu::enter(function);         \
      code_ != kSuccess && code_ != ::cuda_on_cpu::state().sticky) \
  return code_

bool is_capturing();

// Adds work to a stream, or to the graph that is captured from it.
pb::cuda::Result give(pb::cuda::StreamHandle stream, std::function<void()> work);
void do_next(pb::cuda::StreamHandle stream);
void do_all(pb::cuda::StreamHandle stream);

template <typename Handles, typename Handle>
pb::cuda::Result destroy(Handles& handles, Handle handle) {
  if (handles.erase(handle) == 0) return pb::cuda::kErrorInvalidHandle;
  delete handle;
  return state().sticky;
}

// Fill the table.
void add_memory_functions(pb::cuda::DriverApi& table);
void add_stream_functions(pb::cuda::DriverApi& table);
void add_kernel_functions(pb::cuda::DriverApi& table);
void add_tensor_map_functions(pb::cuda::DriverApi& table);

}  // namespace cuda_on_cpu
