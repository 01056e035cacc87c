// NEON with products of small matrices of bytes (usmmla) and of bf16 (bfmmla).
//
// Compiled, by CMakeLists.txt, with
//   -march=armv8.2-a+dotprod+i8mm+bf16
#if defined(__aarch64__)

#define PB_CPU_TARGET neon_i8mm
#define PB_CPU_VECTORS "cpu/kernels/vec/vec_neon.h"
#include "cpu/targets/table-inl.h"

#endif
