// The functions of the NVIDIA driver that the backend calls, as a table that the system's driver or
// an emulated one fills. The declarations are our own, because builds without a toolkit have no
// cuda.h; the driver's ABI does not change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/device_code/tensor_map.h"

namespace pb::cuda {

using Result = int;              // CUresult
using DeviceId = int;            // CUdevice
using DevicePointer = uint64_t;  // CUdeviceptr
using ContextHandle = struct ContextObject*;
using StreamHandle = struct StreamObject*;
using EventHandle = struct EventObject*;
using ModuleHandle = struct ModuleObject*;
using FunctionHandle = struct FunctionObject*;
using GraphHandle = struct GraphObject*;
using GraphExecHandle = struct GraphExecObject*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kErrorInvalidValue = 1;
inline constexpr Result kErrorOutOfMemory = 2;
inline constexpr Result kErrorNotInitialized = 3;
inline constexpr Result kErrorNoDevice = 100;
inline constexpr Result kErrorInvalidDevice = 101;
inline constexpr Result kErrorInvalidContext = 201;
inline constexpr Result kErrorInvalidHandle = 400;
inline constexpr Result kErrorNotFound = 500;
inline constexpr Result kErrorNotReady = 600;
inline constexpr Result kErrorIllegalAddress = 700;
inline constexpr Result kErrorCaptureUnsupported = 900;

// CU_DEVICE_ATTRIBUTE_*
inline constexpr int kMultiprocessorCount = 16;
inline constexpr int kL2CacheBytes = 38;
inline constexpr int kCapabilityMajor = 75;
inline constexpr int kCapabilityMinor = 76;
inline constexpr int kMostSharedBytesOfBlock = 97;

// CU_FUNC_ATTRIBUTE_*
inline constexpr int kFunctionMostThreads = 0;
inline constexpr int kFunctionStaticSharedBytes = 1;
inline constexpr int kFunctionDynamicSharedBytes = 8;

// CU_TENSOR_MAP_*
inline constexpr int kTensorBf16 = 9;
inline constexpr int kTensorNotInterleaved = 0;
inline constexpr int kTensorSwizzle128 = 3;
inline constexpr int kTensorPromotionTo128 = 2;  // reads of L2 fetch 128 bytes
inline constexpr int kTensorZerosOutside = 0;

inline constexpr unsigned kStreamNonBlocking = 1;   // does not wait for the stream 0
inline constexpr unsigned kEventDisableTiming = 2;  // such events cost least
inline constexpr int kCaptureThreadLocal = 1;       // other threads may go on calling the driver

// Returns true for errors that every later call in the process repeats: those after which,
// according to cuda.h, only a new process can use CUDA again, and two that make the context
// unusable, a failed assertion (710) and an ECC error (214).
bool is_sticky(Result code);

template <typename... Args>
struct DriverFunction {
  const char* name;  // the exported name
  Result (*call)(Args...) = nullptr;
};

struct DriverApi {
  DriverFunction<unsigned> init{"cuInit"};
  DriverFunction<DeviceId*, int> device_get{"cuDeviceGet"};
  DriverFunction<char*, int, DeviceId> device_get_name{"cuDeviceGetName"};
  DriverFunction<int*, int, DeviceId> device_get_attribute{"cuDeviceGetAttribute"};
  DriverFunction<size_t*, DeviceId> device_total_memory{"cuDeviceTotalMem_v2"};
  DriverFunction<ContextHandle*, DeviceId> retain_context{"cuDevicePrimaryCtxRetain"};
  DriverFunction<DeviceId> release_context{"cuDevicePrimaryCtxRelease_v2"};
  DriverFunction<ContextHandle> set_context{"cuCtxSetCurrent"};

  DriverFunction<size_t*, size_t*> memory_info{"cuMemGetInfo_v2"};  // free, total
  DriverFunction<DevicePointer*, size_t> allocate{"cuMemAlloc_v2"};
  DriverFunction<DevicePointer> free{"cuMemFree_v2"};
  DriverFunction<void**, size_t> allocate_host{"cuMemAllocHost_v2"};
  DriverFunction<void*> free_host{"cuMemFreeHost"};
  DriverFunction<DevicePointer, const void*, size_t, StreamHandle> copy_to_device{
      "cuMemcpyHtoDAsync_v2"};
  DriverFunction<void*, DevicePointer, size_t, StreamHandle> copy_to_host{"cuMemcpyDtoHAsync_v2"};
  DriverFunction<DevicePointer, DevicePointer, size_t, StreamHandle> copy_on_device{
      "cuMemcpyDtoDAsync_v2"};
  DriverFunction<DevicePointer, unsigned char, size_t, StreamHandle> fill{"cuMemsetD8Async"};

  DriverFunction<StreamHandle*, unsigned> create_stream{"cuStreamCreate"};
  DriverFunction<StreamHandle> destroy_stream{"cuStreamDestroy_v2"};
  DriverFunction<StreamHandle> synchronize_stream{"cuStreamSynchronize"};
  DriverFunction<StreamHandle> query_stream{"cuStreamQuery"};
  DriverFunction<EventHandle*, unsigned> create_event{"cuEventCreate"};
  DriverFunction<EventHandle, StreamHandle> record_event{"cuEventRecord"};
  DriverFunction<EventHandle> query_event{"cuEventQuery"};
  DriverFunction<EventHandle> synchronize_event{"cuEventSynchronize"};
  DriverFunction<EventHandle> destroy_event{"cuEventDestroy_v2"};

  DriverFunction<ModuleHandle*, const void*> load_module{"cuModuleLoadData"};
  DriverFunction<ModuleHandle> unload_module{"cuModuleUnload"};
  DriverFunction<FunctionHandle*, ModuleHandle, const char*> get_function{"cuModuleGetFunction"};
  DriverFunction<FunctionHandle, int, int> set_function_attribute{"cuFuncSetAttribute"};
  DriverFunction<int*, int, FunctionHandle> get_function_attribute{"cuFuncGetAttribute"};
  // Returns the offset and size of a parameter by its number. Null for drivers before 12.4.
  DriverFunction<FunctionHandle, size_t, size_t*, size_t*> get_parameter{"cuFuncGetParamInfo"};
  // The parameters are: function; grid; block; bytes of dynamic shared memory; stream; parameters;
  // extra.
  DriverFunction<FunctionHandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                 unsigned, StreamHandle, void**, void**>
      launch_kernel{"cuLaunchKernel"};

  // The parameters are: map; data type; rank; address; sizes; strides in bytes from the second
  // dimension on; sizes of a box; strides of its elements; interleave; swizzle; promotion in L2;
  // fill of parts outside. Null for drivers before 12.0.
  DriverFunction<TensorMap*, int, unsigned, void*, const uint64_t*, const uint64_t*,
                 const unsigned*, const unsigned*, int, int, int, int>
      encode_tensor_map{"cuTensorMapEncodeTiled"};

  DriverFunction<StreamHandle, int> begin_capture{"cuStreamBeginCapture_v2"};
  DriverFunction<StreamHandle, GraphHandle*> end_capture{"cuStreamEndCapture"};
  DriverFunction<GraphExecHandle*, GraphHandle, unsigned long long> instantiate_graph{
      "cuGraphInstantiateWithFlags"};
  DriverFunction<GraphExecHandle, StreamHandle> launch_graph{"cuGraphLaunch"};
  DriverFunction<GraphExecHandle> destroy_graph_exec{"cuGraphExecDestroy"};
  DriverFunction<GraphHandle> destroy_graph{"cuGraphDestroy"};

  DriverFunction<Result, const char**> error_name{"cuGetErrorName"};
  DriverFunction<Result, const char**> error_text{"cuGetErrorString"};

  // Calls visit(function) for each function of the table.
  template <typename Visit>
  void for_each(Visit visit);
};

// Loads the functions of a library. Throws kConfig if it cannot be opened or lacks one of them.
DriverApi load_driver_api(const char* library);

// Returns the table that this process's backends use: the one of use_driver_api(), else the
// system's driver, which the first call opens. Throws the errors of load_driver_api.
const DriverApi& driver_api();

// Makes driver_api() return another table, which must outlive its users; null restores the system's
// driver. Tests call this before they make a backend.
void use_driver_api(const DriverApi* api);

// Returns for example "cuMemAlloc_v2 gave 2 (CUDA_ERROR_OUT_OF_MEMORY: out of memory)".
std::string describe_error(const DriverApi& api, const char* function, Result code);

template <typename Visit>
void DriverApi::for_each(Visit visit) {
  const auto visit_all = [&visit](auto&... functions) { (visit(functions), ...); };
  visit_all(init, device_get, device_get_name, device_get_attribute, device_total_memory,
            retain_context, release_context, set_context, memory_info, allocate, free,
            allocate_host, free_host, copy_to_device, copy_to_host, copy_on_device, fill,
            create_stream, destroy_stream, synchronize_stream, query_stream, create_event,
            record_event, query_event, synchronize_event, destroy_event, load_module, unload_module,
            get_function, set_function_attribute, get_function_attribute, get_parameter,
            launch_kernel, encode_tensor_map, begin_capture, end_capture, instantiate_graph,
            launch_graph, destroy_graph_exec, destroy_graph, error_name, error_text);
  static_assert(sizeof(DriverApi) == 42 * sizeof(DriverFunction<>), "a function is left out");
}

}  // namespace pb::cuda
