// One GPU: its memory, its one stream, and its kernels by name. The GPU executes the work in the
// order of the calls, after they have returned; finish() waits for it.
//
// Every error of the driver becomes a pb::Error with the function, the code and the text:
// kOutOfMemory if memory is short, else kEngine. Calls may come from any thread, one at a time.
// Memory, events and graphs must not outlive their Device.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "cuda/driver/driver_api.h"
#include "cuda/driver/launch.h"

namespace pb::cuda {

class Device;

// A handle of the driver that is released by one of its functions.
template <typename Handle>
class Owned {
 public:
  Owned() = default;
  Owned(Device& device, const DriverFunction<Handle>& give_back, Handle handle)
      : device_(&device), give_back_(&give_back), handle_(handle) {}
  Owned(Owned&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)),
        give_back_(other.give_back_),
        handle_(other.handle_) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(give_back_, other.give_back_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned();

  bool is_empty() const { return device_ == nullptr; }
  Handle get() const { return handle_; }

 private:
  Device* device_ = nullptr;
  const DriverFunction<Handle>* give_back_ = nullptr;
  Handle handle_{};
};

// Memory of the GPU. Its contents are undefined at first.
class DeviceMemory {
 public:
  DeviceMemory() = default;

  // Returns an address on the GPU, for launches and copies; the host cannot access it.
  template <typename T = void>
  T* as() const {
    return reinterpret_cast<T*>(owned_.get());
  }
  size_t bytes() const { return bytes_; }

 private:
  friend class Device;
  Owned<DevicePointer> owned_;
  size_t bytes_ = 0;
};

// Host memory that the GPU accesses directly. It must not be written during a copy from it, or read
// during a copy to it.
class PinnedMemory {
 public:
  PinnedMemory() = default;

  template <typename T = void>
  T* as() const {
    return static_cast<T*>(owned_.get());
  }
  size_t bytes() const { return bytes_; }

 private:
  friend class Device;
  Owned<void*> owned_;
  size_t bytes_ = 0;
};

using Event = Owned<EventHandle>;
using Graph = Owned<GraphExecHandle>;

struct DeviceProperties {
  std::string name;
  int major = 0;  // compute capability: 9.0
  int minor = 0;
  size_t memory_bytes = 0;
  int n_multiprocessors = 0;
  size_t l2_bytes = 0;
  size_t most_shared_bytes = 0;  // per block
};

struct FreeMemory {
  size_t free = 0;  // bytes
  size_t total = 0;
};

// A matrix of bf16 numbers in device memory, whose tiles kernels copy by a TensorMap. A box has
// box_rows rows and 64 columns; each row has 128 bytes with the layout of swizzled<128>
// (device_code/swizzle.h).
struct TiledMatrix {
  const void* data;  // aligned to 16 bytes
  int n_rows;
  int n_columns;  // a multiple of 8; rows are contiguous
  int box_rows;   // up to 256
};

class Device {
 public:
  // Initialises the driver and a context on the GPU with this number. `api` must outlive the
  // Device.
  explicit Device(const DriverApi& api, int ordinal = 0);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceProperties& properties() const { return properties_; }

  // Returns true after an error that makes every later call in this process fail: only a new
  // process can use the GPU.
  bool is_lost() const { return lost_ != kSuccess; }
  // Returns the message of that error; empty if it occurred while a resource was released.
  const std::string& why_lost() const { return why_lost_; }

  // -- memory ---------------------------------------------------------------------------------

  FreeMemory free_memory();
  // Allocates memory; the result is empty if bytes is 0. Throws kOutOfMemory with the requested and
  // the free bytes.
  DeviceMemory allocate(size_t bytes);
  PinnedMemory allocate_pinned(size_t bytes);

  // Copies are asynchronous, in the order of the stream. Host memory is accessed when the GPU
  // executes the copy, and must stay valid and unchanged until then.
  void copy_to_device(void* to, const void* from, size_t bytes);
  void copy_to_host(void* to, const void* from, size_t bytes);
  void copy_on_device(void* to, const void* from, size_t bytes);
  void fill(void* to, unsigned char byte, size_t bytes);

  // -- kernels --------------------------------------------------------------------------------

  // Loads the kernels of an image that nvcc made (a cubin or a fatbin).
  void load_module(const void* image);

  // Launches a kernel. Throws kEngine if no module has a kernel of that name, or its parameters
  // differ.
  template <typename Params>
  void launch(const Launch<Params>& launch) {
    static_assert(std::is_trivially_copyable_v<Params>);
    launch_kernel(launch.kernel, launch.grid, launch.threads, launch.shared_bytes, &launch.params,
                  sizeof(Params));
  }

  // Returns nothing if the driver lacks the function or rejects the matrix.
  std::optional<TensorMap> make_tensor_map(const TiledMatrix& matrix);

  // Captures the launches and copies of give_work as a graph, without executing them. give_work may
  // neither allocate nor wait. The graph stores the parameters and addresses of the capture.
  Graph capture(FunctionRef<void()> give_work);
  void launch(const Graph& graph);

  // -- waiting --------------------------------------------------------------------------------

  Event make_event();
  void record(const Event& event);   // in the order of the stream
  bool is_done(const Event& event);  // true if the GPU has reached the event
  void wait(const Event& event);

  // Adds a mark to the stream for finish(). Does nothing during a capture.
  void mark();

  // Waits for all work so far, and throws the GPU's errors. on_progress is called when the GPU
  // reaches each mark, in order, and at the end; if the GPU hangs, it is not called.
  void finish(FunctionRef<void()> on_progress);
  void finish();

  // -- the driver -----------------------------------------------------------------------------

  // Calls a function of the table in this Device's context; throws unless it succeeds.
  template <typename... Args>
  void call(const DriverFunction<Args...>& function, std::type_identity_t<Args>... args) {
    make_current();
    check(function.name, function.call(args...));
  }

 private:
  template <typename Handle>
  friend class Owned;

  struct Kernel {
    FunctionHandle function;
    size_t params_bytes;  // 0: unknown
    size_t static_shared_bytes;
    size_t allowed_shared_bytes;  // of dynamic shared memory
  };

  // Releases a handle in a destructor: an error is recorded and not thrown. Before host memory is
  // freed, this waits for copies that may access it; for device memory the driver does so itself.
  template <typename Handle>
  void give_back(const DriverFunction<Handle>& function, Handle handle) noexcept {
    if (context_ != nullptr) api_.set_context.call(context_);
    if constexpr (std::is_same_v<Handle, void*>) note(api_.synchronize_stream.call(stream_.get()));
    note(function.call(handle));
  }

  void make_current();
  void note(Result code);
  void check(const char* function, Result code);
  [[noreturn]] void out_of_memory(const char* function, size_t bytes);
  // Calls ask() until it no longer returns kErrorNotReady.
  void poll(const char* function, FunctionRef<Result()> ask);
  int attribute(int which);
  Kernel& find_kernel(std::string_view name);
  void launch_kernel(const char* name, Grid grid, unsigned threads, size_t shared_bytes,
                     const void* params, size_t params_bytes);

  const DriverApi& api_;
  DeviceId id_ = 0;
  Result lost_ = kSuccess;
  std::string why_lost_;
  DeviceProperties properties_;
  ContextHandle context_ = nullptr;
  bool is_capturing_ = false;
  size_t n_marks_ = 0;  // marks since the last finish()
  Owned<DeviceId> retained_context_;
  Owned<StreamHandle> stream_;
  std::vector<Owned<ModuleHandle>> modules_;
  std::map<std::string, Kernel, std::less<>> kernels_;  // the kernels that have been launched
  std::vector<Event> marks_;
};

template <typename Handle>
Owned<Handle>::~Owned() {
  if (device_ != nullptr) device_->give_back(*give_back_, handle_);
}

}  // namespace pb::cuda
