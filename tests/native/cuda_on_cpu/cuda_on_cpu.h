// Test only: compiles device code with g++ and runs it on the CPU, one fiber a CUDA thread.
//
// The emulator promises kernels what CUDA promises and no more: threads go on in a random order,
// shared memory begins as NaN, what cp.async copies is there when it is waited for and not before
// (until then its destination is NaN), a shuffle or an mma orders no memory. With
// -fsanitize=address every access is checked for its bounds, with -fsanitize=thread for races:
// fibers are threads to it, and only __syncthreads and __syncwarp order anything.
#pragma once

#include "cuda_intrinsics.h"
#include "cuda_numbers.h"
#include "cuda_types.h"
#include "emulator.h"
