#include "cuda/driver/device.h"

#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/size_text.h"

namespace pb::cuda {
namespace {

// The shared memory, static and dynamic together, that a launch may use without an opt-in.
constexpr size_t kUsualSharedBytes = size_t{48} << 10;

constexpr unsigned kBoxColumns = 64;  // of a TiledMatrix

DevicePointer pointer(const void* at) { return reinterpret_cast<DevicePointer>(at); }

}  // namespace

Device::Device(const DriverApi& api, int ordinal) : api_(api) {
  check(api_.init.name, api_.init.call(0));
  check(api_.device_get.name, api_.device_get.call(&id_, ordinal));
  char name[256] = {};
  check(api_.device_get_name.name,
        api_.device_get_name.call(&name[0], static_cast<int>(sizeof name) - 1, id_));
  properties_.name = name;
  properties_.major = attribute(kCapabilityMajor);
  properties_.minor = attribute(kCapabilityMinor);
  properties_.n_multiprocessors = attribute(kMultiprocessorCount);
  properties_.l2_bytes = static_cast<size_t>(attribute(kL2CacheBytes));
  properties_.most_shared_bytes = static_cast<size_t>(attribute(kMostSharedBytesOfBlock));
  check(api_.device_total_memory.name,
        api_.device_total_memory.call(&properties_.memory_bytes, id_));

  ContextHandle context = nullptr;
  check(api_.retain_context.name, api_.retain_context.call(&context, id_));
  retained_context_ = {*this, api_.release_context, id_};
  context_ = context;
  StreamHandle stream = nullptr;
  call(api_.create_stream, &stream, kStreamNonBlocking);
  stream_ = {*this, api_.destroy_stream, stream};
}

// The members free their resources, the context last.
Device::~Device() = default;

int Device::attribute(int which) {
  int value = 0;
  check(api_.device_get_attribute.name, api_.device_get_attribute.call(&value, which, id_));
  return value;
}

// -- errors -----------------------------------------------------------------------------------

// The context is always set: another Device, or another user of CUDA in this process, may have made
// its own current.
void Device::make_current() { check(api_.set_context.name, api_.set_context.call(context_)); }

void Device::note(Result code) {
  if (lost_ == kSuccess && is_sticky(code)) lost_ = code;
}

void Device::check(const char* function, Result code) {
  if (code == kSuccess) return;
  const bool was_lost = is_lost();
  note(code);
  std::string what = "the GPU failed, " + describe_error(api_, function, code);
  if (is_lost()) what += "; this process cannot use it any more, a new one can";
  if (is_lost() && !was_lost) why_lost_ = what;
  throw Error(code == kErrorOutOfMemory ? ErrorCode::kOutOfMemory : ErrorCode::kEngine, what);
}

void Device::out_of_memory(const char* function, size_t bytes) {
  FreeMemory memory;
  api_.memory_info.call(&memory.free, &memory.total);  // the limit if the call fails
  throw Error(
      ErrorCode::kOutOfMemory,
      "out of GPU memory: " + size_text(bytes) + " wanted, " + size_text(memory.free) + " of " +
          size_text(memory.total) +
          " free; lower n_ctx (KV), n_ubatch (buffers) or n_parallel, or load with a smaller "
          "dtype; where another process or worker holds the GPU's memory (nvidia-smi lists "
          "them), lower its n_ctx (" +
          describe_error(api_, function, kErrorOutOfMemory) + ")");
}

// -- memory -----------------------------------------------------------------------------------

FreeMemory Device::free_memory() {
  FreeMemory memory;
  call(api_.memory_info, &memory.free, &memory.total);
  return memory;
}

DeviceMemory Device::allocate(size_t bytes) {
  DeviceMemory memory;
  if (bytes == 0) return memory;
  make_current();
  DevicePointer at = 0;
  const Result code = api_.allocate.call(&at, bytes);
  if (code == kErrorOutOfMemory) out_of_memory(api_.allocate.name, bytes);
  check(api_.allocate.name, code);
  memory.owned_ = {*this, api_.free, at};
  memory.bytes_ = bytes;
  return memory;
}

PinnedMemory Device::allocate_pinned(size_t bytes) {
  PinnedMemory memory;
  if (bytes == 0) return memory;
  void* at = nullptr;
  call(api_.allocate_host, &at, bytes);
  memory.owned_ = {*this, api_.free_host, at};
  memory.bytes_ = bytes;
  return memory;
}

void Device::copy_to_device(void* to, const void* from, size_t bytes) {
  if (bytes != 0) call(api_.copy_to_device, pointer(to), from, bytes, stream_.get());
}

void Device::copy_to_host(void* to, const void* from, size_t bytes) {
  if (bytes != 0) call(api_.copy_to_host, to, pointer(from), bytes, stream_.get());
}

void Device::copy_on_device(void* to, const void* from, size_t bytes) {
  if (bytes != 0) call(api_.copy_on_device, pointer(to), pointer(from), bytes, stream_.get());
}

void Device::fill(void* to, unsigned char byte, size_t bytes) {
  if (bytes != 0) call(api_.fill, pointer(to), byte, bytes, stream_.get());
}

// -- kernels ----------------------------------------------------------------------------------

void Device::load_module(const void* image) {
  ModuleHandle module = nullptr;
  call(api_.load_module, &module, image);
  modules_.push_back({*this, api_.unload_module, module});
}

Device::Kernel& Device::find_kernel(std::string_view name) {
  const auto known = kernels_.find(name);
  if (known != kernels_.end()) return known->second;
  std::string own_name(name);
  Kernel kernel{};
  Result code = kErrorNotFound;
  for (const auto& module : modules_) {
    make_current();
    code = api_.get_function.call(&kernel.function, module.get(), own_name.c_str());
    if (code != kErrorNotFound) break;
  }
  if (code == kErrorNotFound) {
    throw Error(ErrorCode::kEngine, "no GPU kernel is called " + own_name);
  }
  check(api_.get_function.name, code);
  int static_bytes = 0;
  call(api_.get_function_attribute, &static_bytes, kFunctionStaticSharedBytes, kernel.function);
  kernel.static_shared_bytes = static_cast<size_t>(static_bytes);
  kernel.allowed_shared_bytes = kUsualSharedBytes - kernel.static_shared_bytes;
  if (api_.get_parameter.call != nullptr) {
    size_t offset = 0;
    call(api_.get_parameter, kernel.function, 0, &offset, &kernel.params_bytes);
  }
  return kernels_.emplace(std::move(own_name), kernel).first->second;
}

void Device::launch_kernel(const char* name, Grid grid, unsigned threads, size_t shared_bytes,
                           const void* params, size_t params_bytes) {
  Kernel& kernel = find_kernel(name);
  if (kernel.params_bytes != 0 && kernel.params_bytes != params_bytes) {
    throw Error(ErrorCode::kEngine, "the GPU kernel " + std::string(name) + " takes " +
                                        std::to_string(kernel.params_bytes) +
                                        " bytes of parameters, not " +
                                        std::to_string(params_bytes));
  }
  if (shared_bytes > kernel.allowed_shared_bytes) {
    call(api_.set_function_attribute, kernel.function, kFunctionDynamicSharedBytes,
         static_cast<int>(shared_bytes));
    kernel.allowed_shared_bytes = shared_bytes;
  }
  void* arguments[] = {const_cast<void*>(params)};
  make_current();
  const Result code = api_.launch_kernel.call(kernel.function, grid.x, grid.y, grid.z, threads, 1,
                                              1, static_cast<unsigned>(shared_bytes), stream_.get(),
                                              &arguments[0], nullptr);
  if (code != kSuccess) check((std::string("cuLaunchKernel of ") + name).c_str(), code);
}

std::optional<TensorMap> Device::make_tensor_map(const TiledMatrix& matrix) {
  if (api_.encode_tensor_map.call == nullptr) return {};
  const uint64_t sizes[] = {static_cast<uint64_t>(matrix.n_columns),
                            static_cast<uint64_t>(matrix.n_rows)};
  const uint64_t row_bytes = sizes[0] * sizeof(uint16_t);
  const unsigned box[] = {kBoxColumns, static_cast<unsigned>(matrix.box_rows)};
  const unsigned steps[] = {1, 1};
  TensorMap map;
  make_current();
  const Result code =
      api_.encode_tensor_map.call(&map, kTensorBf16, 2, const_cast<void*>(matrix.data), &sizes[0],
                                  &row_bytes, &box[0], &steps[0], kTensorNotInterleaved,
                                  kTensorSwizzle128, kTensorPromotionTo128, kTensorZerosOutside);
  note(code);
  if (code != kSuccess) return {};
  return map;
}

Graph Device::capture(FunctionRef<void()> give_work) {
  call(api_.begin_capture, stream_.get(), kCaptureThreadLocal);
  is_capturing_ = true;
  GraphHandle graph = nullptr;
  const auto end = [&] {
    is_capturing_ = false;
    note(api_.set_context.call(context_));  // errors are only noted: a capture must be ended
    return api_.end_capture.call(stream_.get(), &graph);
  };
  try {
    give_work();
  } catch (...) {
    note(end());
    if (graph != nullptr) note(api_.destroy_graph.call(graph));
    throw;
  }
  check(api_.end_capture.name, end());
  const Owned<GraphHandle> captured(*this, api_.destroy_graph, graph);
  GraphExecHandle executable = nullptr;
  call(api_.instantiate_graph, &executable, captured.get(), 0ULL);
  return {*this, api_.destroy_graph_exec, executable};
}

void Device::launch(const Graph& graph) { call(api_.launch_graph, graph.get(), stream_.get()); }

// -- waiting ----------------------------------------------------------------------------------

Event Device::make_event() {
  EventHandle event = nullptr;
  call(api_.create_event, &event, kEventDisableTiming);
  return {*this, api_.destroy_event, event};
}

void Device::record(const Event& event) { call(api_.record_event, event.get(), stream_.get()); }

bool Device::is_done(const Event& event) {
  make_current();
  const Result code = api_.query_event.call(event.get());
  if (code == kErrorNotReady) return false;
  check(api_.query_event.name, code);
  return true;
}

void Device::poll(const char* function, FunctionRef<Result()> ask) {
  make_current();
  Result code = ask();
  for (int i = 0; code == kErrorNotReady; ++i) {
    // A decode pass takes some 100 us, which polling covers; a long prefill must not keep a core
    // busy.
    if (i < 2000) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    code = ask();
  }
  check(function, code);
}

void Device::wait(const Event& event) {
  poll(api_.query_event.name, [&] { return api_.query_event.call(event.get()); });
}

void Device::mark() {
  if (is_capturing_) return;
  if (n_marks_ == marks_.size()) marks_.push_back(make_event());
  record(marks_[n_marks_]);
  ++n_marks_;
}

void Device::finish(FunctionRef<void()> on_progress) {
  const size_t n_marks = std::exchange(n_marks_, 0);
  for (size_t i = 0; i < n_marks; ++i) {
    wait(marks_[i]);
    on_progress();
  }
  poll(api_.query_stream.name, [&] { return api_.query_stream.call(stream_.get()); });
  on_progress();
}

void Device::finish() {
  finish([] {});
}

}  // namespace pb::cuda
