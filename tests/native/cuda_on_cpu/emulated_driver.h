// An NVIDIA driver with one GPU, the emulator. What is given to a stream (copies, kernels, events)
// runs only when somebody waits for the stream or asks whether it is done: one piece of work a
// question. Host memory is read and written then, pinned or not: who reuses a staging buffer too
// early finds out.
//
// The environment says what the GPU is, whenever somebody asks: PYBATCHER_EMULATED_ARCHITECTURE
// (90: sm_90, which is usual) and PYBATCHER_EMULATED_MULTIPROCESSORS (4). With one, no grid is too
// small for the kernels of large tiles.
//
// One context. Calls may come from any thread, and wait for each other: one kernel runs at a time,
// of whichever engine. A kernel that does what CUDA forbids throws cuda_on_cpu::Error out of the
// call that waits for it.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/driver/driver_api.h"

namespace cuda_on_cpu {

// Kernels are those of the program (PB_KERNEL), whatever image a module is loaded from.
const pb::cuda::DriverApi& emulated_driver();

// Bytes of device memory: what more is allocated fails with CUDA_ERROR_OUT_OF_MEMORY. 1 GiB at
// first.
void set_memory_limit(size_t bytes);

// Makes the nth call of a function from now on (1: the next) fail with this code. After a sticky
// code every later call fails with it, of any function that needs a context. function: by the name
// that the driver exports.
void fail_call(const std::string& function, int nth, pb::cuda::Result code);

// How often a function was called.
int count_calls(const std::string& function);

// What has not been given back: "2 allocations, 1 event"; empty if nothing.
std::string not_given_back();

// Forgets failures and counts, and sets the memory limit to what it was at first. Memory and
// handles stay as they are.
void reset_emulated_driver();

}  // namespace cuda_on_cpu
