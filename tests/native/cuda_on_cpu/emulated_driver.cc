#include "emulated_driver.h"

#include <cstdlib>
#include <cstring>

#include "emulated_state.h"

namespace cuda_on_cpu {
namespace {

using namespace pb::cuda;

constexpr size_t kFirstLimit = size_t{1} << 30;
constexpr DeviceId kDevice = 7;  // not its number: one must not be taken for the other
constexpr int kL2Bytes = 50 << 20;

// A whole number from the environment.
int setting(const char* name, int usual) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::atoi(value) : usual;
}

Result init(unsigned flags) {
  {
    const std::lock_guard lock(state().one_call);
    state().is_initialized = true;
  }
  CUDA_ON_CPU_ENTER("cuInit", false);
  return flags == 0 ? kSuccess : kErrorInvalidValue;
}

Result device_get(DeviceId* id, int ordinal) {
  CUDA_ON_CPU_ENTER("cuDeviceGet", false);
  if (ordinal != 0) return kErrorInvalidDevice;
  *id = kDevice;
  return kSuccess;
}

Result device_get_name(char* name, int size, DeviceId id) {
  CUDA_ON_CPU_ENTER("cuDeviceGetName", false);
  if (id != kDevice) return kErrorInvalidDevice;
  std::strncpy(name, "emulated GPU", static_cast<size_t>(size));
  return kSuccess;
}

Result device_get_attribute(int* value, int which, DeviceId id) {
  CUDA_ON_CPU_ENTER("cuDeviceGetAttribute", false);
  if (id != kDevice) return kErrorInvalidDevice;
  const int architecture = setting("PYBATCHER_EMULATED_ARCHITECTURE", 90);
  const int n_multiprocessors = setting("PYBATCHER_EMULATED_MULTIPROCESSORS", 4);
  const std::map<int, int> values = {{kMultiprocessorCount, n_multiprocessors},
                                     {kL2CacheBytes, kL2Bytes},
                                     {kCapabilityMajor, architecture / 10},
                                     {kCapabilityMinor, architecture % 10},
                                     {kMostSharedBytesOfBlock, kMostShared}};
  const auto found = values.find(which);
  if (found == values.end()) return kErrorInvalidValue;
  *value = found->second;
  return kSuccess;
}

Result device_total_memory(size_t* bytes, DeviceId id) {
  CUDA_ON_CPU_ENTER("cuDeviceTotalMem_v2", false);
  if (id != kDevice) return kErrorInvalidDevice;
  *bytes = state().memory.limit;
  return kSuccess;
}

Result retain_context(ContextHandle* context, DeviceId id) {
  CUDA_ON_CPU_ENTER("cuDevicePrimaryCtxRetain", false);
  if (id != kDevice) return kErrorInvalidDevice;
  ++state().n_retained;
  *context = &state().context;
  return kSuccess;
}

Result release_context(DeviceId id) {
  CUDA_ON_CPU_ENTER("cuDevicePrimaryCtxRelease_v2", false);
  if (id != kDevice || state().n_retained == 0) return kErrorInvalidValue;
  --state().n_retained;
  return kSuccess;
}

Result set_context(ContextHandle context) {
  CUDA_ON_CPU_ENTER("cuCtxSetCurrent", false);
  if (context != nullptr && (context != &state().context || state().n_retained == 0)) {
    return kErrorInvalidContext;
  }
  has_context = context != nullptr;
  return state().sticky;
}

struct ErrorText {
  const char* name;
  const char* text;
};

const ErrorText* text_of_error(Result code) {
  static const std::map<Result, ErrorText> texts = {
      {kErrorInvalidValue, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
      {kErrorOutOfMemory, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
      {kErrorIllegalAddress,
       {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
      {kErrorCaptureUnsupported,
       {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "operation not permitted when stream is capturing"}},
  };
  const auto found = texts.find(code);
  return found == texts.end() ? nullptr : &found->second;
}

Result error_name(Result code, const char** name) {
  const ErrorText* const found = text_of_error(code);
  if (found == nullptr) return kErrorInvalidValue;
  *name = found->name;
  return kSuccess;
}

Result error_text(Result code, const char** text) {
  const ErrorText* const found = text_of_error(code);
  if (found == nullptr) return kErrorInvalidValue;
  *text = found->text;
  return kSuccess;
}

}  // namespace

// Never destroyed: Devices of static storage give things back after main.
DriverState& state() {
  static DriverState& all = *new DriverState;
  return all;
}

namespace {
void drop_work(StreamHandle stream) {
  stream->work.clear();
  stream->n_done = stream->n_given;
}
}  // namespace

Result enter(const char* function, bool needs_context) {
  DriverState& s = state();
  ++s.n_calls[function];
  const auto failure = s.failures.find(function);
  if (failure != s.failures.end() && --failure->second.calls_left == 0) {
    const Result code = failure->second.code;
    s.failures.erase(failure);
    if (is_sticky(code)) {
      s.sticky = code;
      for (const StreamHandle stream : s.streams) drop_work(stream);
    }
    return code;
  }
  if (!s.is_initialized) return kErrorNotInitialized;
  if (!needs_context) return kSuccess;
  if (s.sticky != kSuccess) return s.sticky;
  return has_context ? kSuccess : kErrorInvalidContext;
}

bool is_capturing() {
  for (const StreamHandle stream : state().streams) {
    if (stream->captured != nullptr) return true;
  }
  return false;
}

Result give(StreamHandle stream, std::function<void()> work) {
  if (!state().streams.contains(stream)) return kErrorInvalidHandle;
  if (stream->captured != nullptr) {
    stream->captured->work.push_back(std::move(work));
  } else {
    stream->work.push_back(std::move(work));
    ++stream->n_given;
  }
  return kSuccess;
}

void do_next(StreamHandle stream) {
  const std::function<void()> work = std::move(stream->work.front());
  stream->work.pop_front();
  ++stream->n_done;
  try {
    work();
    state().memory.check_guards();
  } catch (...) {
    drop_work(stream);
    throw;
  }
}

void do_all(StreamHandle stream) {
  while (!stream->work.empty()) do_next(stream);
}

const DriverApi& emulated_driver() {
  static const DriverApi api = [] {
    DriverApi table;
    table.init.call = init;
    table.device_get.call = device_get;
    table.device_get_name.call = device_get_name;
    table.device_get_attribute.call = device_get_attribute;
    table.device_total_memory.call = device_total_memory;
    table.retain_context.call = retain_context;
    table.release_context.call = release_context;
    table.set_context.call = set_context;
    table.error_name.call = error_name;
    table.error_text.call = error_text;
    add_memory_functions(table);
    add_stream_functions(table);
    add_kernel_functions(table);
    add_tensor_map_functions(table);
    return table;
  }();
  return api;
}

void set_memory_limit(size_t bytes) {
  const std::lock_guard lock(state().one_call);
  state().memory.limit = bytes;
}

void fail_call(const std::string& function, int nth, Result code) {
  const std::lock_guard lock(state().one_call);
  state().failures[function] = {nth, code};
}

int count_calls(const std::string& function) {
  const std::lock_guard lock(state().one_call);
  return state().n_calls[function];
}

std::string not_given_back() {
  DriverState& s = state();
  const std::lock_guard lock(s.one_call);
  std::string all;
  const auto add = [&all](size_t n, const char* what) {
    if (n == 0) return;
    all += (all.empty() ? "" : ", ") + std::to_string(n) + " " + what + (n == 1 ? "" : "s");
  };
  add(s.memory.n_allocations(), "allocation");
  add(s.pinned.size(), "pinned allocation");
  add(s.streams.size(), "stream");
  add(s.events.size(), "event");
  add(s.modules.size(), "module");
  add(s.graphs.size(), "graph");
  add(s.graph_execs.size(), "executable graph");
  add(static_cast<size_t>(s.n_retained), "context");
  return all;
}

void reset_emulated_driver() {
  DriverState& s = state();
  const std::lock_guard lock(s.one_call);
  s.sticky = kSuccess;
  s.failures.clear();
  s.n_calls.clear();
  s.memory.limit = kFirstLimit;
}

}  // namespace cuda_on_cpu
