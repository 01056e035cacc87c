// Functions of the emulated driver: modules, kernels and graphs.
#include <cstring>

#include "emulated_state.h"

namespace cuda_on_cpu {
namespace {

using namespace pb::cuda;

constexpr int kUsualShared = 48 << 10;

// As parameters may want to be aligned: a tensor map's are.
struct alignas(128) AlignedBytes {
  unsigned char bytes[128];
};

Result load_module(ModuleHandle* module, const void*) {
  CUDA_ON_CPU_ENTER("cuModuleLoadData");
  *module = *state().modules.insert(new ModuleObject).first;
  return kSuccess;
}

Result unload_module(ModuleHandle module) {
  CUDA_ON_CPU_ENTER_TO_GIVE_BACK("cuModuleUnload");
  return destroy(state().modules, module);
}

Result get_function(FunctionHandle* function, ModuleHandle module, const char* name) {
  CUDA_ON_CPU_ENTER("cuModuleGetFunction");
  if (!state().modules.contains(module)) return kErrorInvalidHandle;
  const KernelInfo* const kernel = find_kernel(name);
  if (kernel == nullptr) return kErrorNotFound;
  *function =
      &state().functions.try_emplace(name, FunctionObject{kernel, kUsualShared}).first->second;
  return kSuccess;
}

Result set_function_attribute(FunctionHandle function, int which, int value) {
  CUDA_ON_CPU_ENTER("cuFuncSetAttribute");
  if (which != kFunctionDynamicSharedBytes || value < 0 || value > kMostShared) {
    return kErrorInvalidValue;
  }
  function->most_shared_bytes = value;
  return kSuccess;
}

Result get_function_attribute(int* value, int which, FunctionHandle function) {
  CUDA_ON_CPU_ENTER("cuFuncGetAttribute");
  if (which == kFunctionMostThreads) {
    *value = static_cast<int>(function->kernel->most_threads);
  } else if (which == kFunctionStaticSharedBytes) {
    *value = 0;  // the emulator does not know them apart
  } else if (which == kFunctionDynamicSharedBytes) {
    *value = function->most_shared_bytes;
  } else {
    return kErrorInvalidValue;
  }
  return kSuccess;
}

Result get_parameter(FunctionHandle function, size_t index, size_t* offset, size_t* bytes) {
  CUDA_ON_CPU_ENTER("cuFuncGetParamInfo");
  if (index != 0) return kErrorInvalidValue;
  *offset = 0;
  *bytes = function->kernel->params_bytes;
  return kSuccess;
}

Result launch_kernel(FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                     StreamHandle stream, void** arguments, void** extra) {
  CUDA_ON_CPU_ENTER("cuLaunchKernel");
  const KernelInfo& kernel = *function->kernel;
  const dim3 grid(grid_x, grid_y, grid_z);
  const dim3 block(block_x, block_y, block_z);
  if (extra != nullptr || grid_x == 0 || grid_y == 0 || grid_z == 0 || grid_y > 65535 ||
      grid_z > 65535 || block_x * block_y * block_z == 0 ||
      block_x * block_y * block_z > kernel.most_threads ||
      shared_bytes > static_cast<unsigned>(function->most_shared_bytes)) {
    return kErrorInvalidValue;
  }
  const auto* const params = static_cast<const unsigned char*>(arguments[0]);
  auto copy = std::make_shared<std::vector<AlignedBytes>>(
      (kernel.params_bytes + sizeof(AlignedBytes) - 1) / sizeof(AlignedBytes));
  std::memcpy(copy->data(), params, kernel.params_bytes);
  return give(stream, [=, &kernel] { launch(kernel, grid, block, shared_bytes, copy->data()); });
}

Result begin_capture(StreamHandle stream, int) {
  CUDA_ON_CPU_ENTER("cuStreamBeginCapture_v2");
  if (!state().streams.contains(stream)) return kErrorInvalidHandle;
  if (stream->captured != nullptr) return kErrorCaptureUnsupported;
  stream->captured = std::make_unique<GraphObject>();
  return kSuccess;
}

// Ends it even where it fails.
Result end_capture(StreamHandle stream, GraphHandle* graph) {
  const std::lock_guard lock(state().one_call);
  const Result code = enter("cuStreamEndCapture");
  if (!state().streams.contains(stream)) return kErrorInvalidHandle;
  if (stream->captured == nullptr) return kErrorInvalidValue;
  if (code != kSuccess) {
    stream->captured.reset();
    return code;
  }
  *graph = *state().graphs.insert(stream->captured.release()).first;
  return kSuccess;
}

Result instantiate_graph(GraphExecHandle* executable, GraphHandle graph, unsigned long long) {
  CUDA_ON_CPU_ENTER("cuGraphInstantiateWithFlags");
  if (!state().graphs.contains(graph)) return kErrorInvalidHandle;
  *executable = *state().graph_execs.insert(new GraphExecObject{graph->work}).first;
  return kSuccess;
}

Result launch_graph(GraphExecHandle executable, StreamHandle stream) {
  CUDA_ON_CPU_ENTER("cuGraphLaunch");
  if (!state().graph_execs.contains(executable)) return kErrorInvalidHandle;
  for (const auto& work : executable->work) {
    if (const Result code = give(stream, work); code != kSuccess) return code;
  }
  return kSuccess;
}

Result destroy_graph_exec(GraphExecHandle executable) {
  CUDA_ON_CPU_ENTER_TO_GIVE_BACK("cuGraphExecDestroy");
  return destroy(state().graph_execs, executable);
}

Result destroy_graph(GraphHandle graph) {
  CUDA_ON_CPU_ENTER_TO_GIVE_BACK("cuGraphDestroy");
  return destroy(state().graphs, graph);
}

}  // namespace

void add_kernel_functions(DriverApi& table) {
  table.load_module.call = load_module;
  table.unload_module.call = unload_module;
  table.get_function.call = get_function;
  table.set_function_attribute.call = set_function_attribute;
  table.get_function_attribute.call = get_function_attribute;
  table.get_parameter.call = get_parameter;
  table.launch_kernel.call = launch_kernel;
  table.begin_capture.call = begin_capture;
  table.end_capture.call = end_capture;
  table.instantiate_graph.call = instantiate_graph;
  table.launch_graph.call = launch_graph;
  table.destroy_graph_exec.call = destroy_graph_exec;
  table.destroy_graph.call = destroy_graph;
}

}  // namespace cuda_on_cpu
