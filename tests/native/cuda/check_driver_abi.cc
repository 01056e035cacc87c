// Compiled where there is a toolkit: our declarations of the driver's functions are those of
// cuda.h, by their exported names and the sizes of their arguments, and our numbers are its
// numbers.
#include <cuda.h>

#include <string_view>
#include <type_traits>

#include "cuda/driver/driver_api.h"

namespace {

namespace ours = pb::cuda;

// Values of the same size; pointers to what has the same size, where both say what they point to.
template <typename A, typename B>
constexpr bool is_passed_alike() {
  if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    using ToA = std::remove_pointer_t<A>;
    using ToB = std::remove_pointer_t<B>;
    if constexpr (std::is_object_v<ToA> && std::is_object_v<ToB>) {
      if constexpr (requires { sizeof(ToA) + sizeof(ToB); }) return sizeof(ToA) == sizeof(ToB);
    }
    return true;
  }
  return sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;
}

template <typename... Ours, typename... Theirs>
constexpr bool is_same_call(ours::DriverFunction<Ours...>, CUresult (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
    return (is_passed_alike<Ours, Theirs>() && ...);
  }
  return false;
}

constexpr ours::DriverApi kApi;

// cuda.h renames functions by macros: what comes out is the name that the library exports.
#define TEXT_OF(name) #name
#define EXPORTED(name) TEXT_OF(name)
#define CHECK_FUNCTION(field, function)                                                   \
  static_assert(std::string_view(EXPORTED(function)) == kApi.field.name, "another name"); \
  static_assert(is_same_call(kApi.field, decltype(&function){}), "other arguments")

CHECK_FUNCTION(init, cuInit);
CHECK_FUNCTION(device_get, cuDeviceGet);
CHECK_FUNCTION(device_get_name, cuDeviceGetName);
CHECK_FUNCTION(device_get_attribute, cuDeviceGetAttribute);
CHECK_FUNCTION(device_total_memory, cuDeviceTotalMem);
CHECK_FUNCTION(retain_context, cuDevicePrimaryCtxRetain);
CHECK_FUNCTION(release_context, cuDevicePrimaryCtxRelease);
CHECK_FUNCTION(set_context, cuCtxSetCurrent);
CHECK_FUNCTION(memory_info, cuMemGetInfo);
CHECK_FUNCTION(allocate, cuMemAlloc);
CHECK_FUNCTION(free, cuMemFree);
CHECK_FUNCTION(allocate_host, cuMemAllocHost);
CHECK_FUNCTION(free_host, cuMemFreeHost);
CHECK_FUNCTION(copy_to_device, cuMemcpyHtoDAsync);
CHECK_FUNCTION(copy_to_host, cuMemcpyDtoHAsync);
CHECK_FUNCTION(copy_on_device, cuMemcpyDtoDAsync);
CHECK_FUNCTION(fill, cuMemsetD8Async);
CHECK_FUNCTION(create_stream, cuStreamCreate);
CHECK_FUNCTION(destroy_stream, cuStreamDestroy);
CHECK_FUNCTION(synchronize_stream, cuStreamSynchronize);
CHECK_FUNCTION(query_stream, cuStreamQuery);
CHECK_FUNCTION(create_event, cuEventCreate);
CHECK_FUNCTION(record_event, cuEventRecord);
CHECK_FUNCTION(query_event, cuEventQuery);
CHECK_FUNCTION(synchronize_event, cuEventSynchronize);
CHECK_FUNCTION(destroy_event, cuEventDestroy);
CHECK_FUNCTION(load_module, cuModuleLoadData);
CHECK_FUNCTION(unload_module, cuModuleUnload);
CHECK_FUNCTION(get_function, cuModuleGetFunction);
CHECK_FUNCTION(set_function_attribute, cuFuncSetAttribute);
CHECK_FUNCTION(get_function_attribute, cuFuncGetAttribute);
#if CUDA_VERSION >= 12040
CHECK_FUNCTION(get_parameter, cuFuncGetParamInfo);
#endif
CHECK_FUNCTION(launch_kernel, cuLaunchKernel);
CHECK_FUNCTION(encode_tensor_map, cuTensorMapEncodeTiled);
CHECK_FUNCTION(begin_capture, cuStreamBeginCapture);
CHECK_FUNCTION(end_capture, cuStreamEndCapture);
CHECK_FUNCTION(instantiate_graph, cuGraphInstantiate);
CHECK_FUNCTION(launch_graph, cuGraphLaunch);
CHECK_FUNCTION(destroy_graph_exec, cuGraphExecDestroy);
CHECK_FUNCTION(destroy_graph, cuGraphDestroy);
CHECK_FUNCTION(error_name, cuGetErrorName);
CHECK_FUNCTION(error_text, cuGetErrorString);

static_assert(ours::kErrorInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(ours::kErrorOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(ours::kErrorNotInitialized == CUDA_ERROR_NOT_INITIALIZED);
static_assert(ours::kErrorNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(ours::kErrorInvalidDevice == CUDA_ERROR_INVALID_DEVICE);
static_assert(ours::kErrorInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(ours::kErrorInvalidHandle == CUDA_ERROR_INVALID_HANDLE);
static_assert(ours::kErrorNotFound == CUDA_ERROR_NOT_FOUND);
static_assert(ours::kErrorNotReady == CUDA_ERROR_NOT_READY);
static_assert(ours::kErrorIllegalAddress == CUDA_ERROR_ILLEGAL_ADDRESS);
static_assert(ours::kErrorCaptureUnsupported == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
static_assert(ours::kMultiprocessorCount == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(ours::kL2CacheBytes == CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
static_assert(ours::kCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(ours::kCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(ours::kMostSharedBytesOfBlock ==
              CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
static_assert(ours::kFunctionMostThreads == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
static_assert(ours::kFunctionStaticSharedBytes == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
static_assert(ours::kFunctionDynamicSharedBytes == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(sizeof(ours::TensorMap) == sizeof(CUtensorMap) &&
              alignof(ours::TensorMap) >= alignof(CUtensorMap));  // 64 before CUDA 13
static_assert(ours::kTensorBf16 == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
static_assert(ours::kTensorNotInterleaved == CU_TENSOR_MAP_INTERLEAVE_NONE);
static_assert(ours::kTensorSwizzle128 == CU_TENSOR_MAP_SWIZZLE_128B);
static_assert(ours::kTensorPromotionTo128 == CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
static_assert(ours::kTensorZerosOutside == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
static_assert(ours::kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(ours::kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(ours::kCaptureThreadLocal == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);

}  // namespace
