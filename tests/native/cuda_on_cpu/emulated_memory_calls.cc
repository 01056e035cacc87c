// Functions of the emulated driver: memory and copies.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "emulated_state.h"

namespace cuda_on_cpu {
namespace {

using namespace pb::cuda;

void* address(DevicePointer at) { return reinterpret_cast<void*>(at); }

Result memory_info(size_t* free, size_t* total) {
  CUDA_ON_CPU_ENTER("cuMemGetInfo_v2");
  *total = state().memory.limit;
  *free = *total - std::min(*total, state().memory.used());
  return kSuccess;
}

Result allocate(DevicePointer* at, size_t bytes) {
  CUDA_ON_CPU_ENTER("cuMemAlloc_v2");
  if (bytes == 0) return kErrorInvalidValue;
  if (is_capturing()) return kErrorCaptureUnsupported;
  void* const memory = state().memory.allocate(bytes);
  if (memory == nullptr) return kErrorOutOfMemory;
  *at = reinterpret_cast<DevicePointer>(memory);
  return kSuccess;
}

// Waits for all work first: the real one does so too.
Result free_memory(DevicePointer at) {
  CUDA_ON_CPU_ENTER_TO_GIVE_BACK("cuMemFree_v2");
  if (is_capturing()) return kErrorCaptureUnsupported;
  for (const StreamHandle stream : state().streams) do_all(stream);
  return state().memory.free(address(at)) ? state().sticky : kErrorInvalidValue;
}

Result allocate_host(void** at, size_t bytes) {
  CUDA_ON_CPU_ENTER("cuMemAllocHost_v2");
  if (bytes == 0) return kErrorInvalidValue;
  if (is_capturing()) return kErrorCaptureUnsupported;
  *at = std::malloc(bytes);
  std::memset(*at, 0xff, bytes);
  state().pinned.insert(*at);
  return kSuccess;
}

Result free_host(void* at) {
  CUDA_ON_CPU_ENTER_TO_GIVE_BACK("cuMemFreeHost");
  if (state().pinned.erase(at) == 0) return kErrorInvalidValue;
  std::free(at);
  return state().sticky;
}

Result copy_to_device(DevicePointer to, const void* from, size_t bytes, StreamHandle stream) {
  CUDA_ON_CPU_ENTER("cuMemcpyHtoDAsync_v2");
  const EmulatedMemory& memory = state().memory;
  if (!memory.holds(address(to), bytes) || memory.touches(from, bytes)) return kErrorInvalidValue;
  return give(stream, [=] { std::memcpy(address(to), from, bytes); });
}

Result copy_to_host(void* to, DevicePointer from, size_t bytes, StreamHandle stream) {
  CUDA_ON_CPU_ENTER("cuMemcpyDtoHAsync_v2");
  const EmulatedMemory& memory = state().memory;
  if (!memory.holds(address(from), bytes) || memory.touches(to, bytes)) return kErrorInvalidValue;
  return give(stream, [=] { std::memcpy(to, address(from), bytes); });
}

Result copy_on_device(DevicePointer to, DevicePointer from, size_t bytes, StreamHandle stream) {
  CUDA_ON_CPU_ENTER("cuMemcpyDtoDAsync_v2");
  const EmulatedMemory& memory = state().memory;
  if (!memory.holds(address(to), bytes) || !memory.holds(address(from), bytes)) {
    return kErrorInvalidValue;
  }
  return give(stream, [=] { std::memmove(address(to), address(from), bytes); });
}

Result fill(DevicePointer to, unsigned char byte, size_t bytes, StreamHandle stream) {
  CUDA_ON_CPU_ENTER("cuMemsetD8Async");
  if (!state().memory.holds(address(to), bytes)) return kErrorInvalidValue;
  return give(stream, [=] { std::memset(address(to), byte, bytes); });
}

}  // namespace

void add_memory_functions(DriverApi& table) {
  table.memory_info.call = memory_info;
  table.allocate.call = allocate;
  table.free.call = free_memory;
  table.allocate_host.call = allocate_host;
  table.free_host.call = free_host;
  table.copy_to_device.call = copy_to_device;
  table.copy_to_host.call = copy_to_host;
  table.copy_on_device.call = copy_on_device;
  table.fill.call = fill;
}

}  // namespace cuda_on_cpu
