// NEON with the dot products of bytes (sdot).
//
// Compiled, by CMakeLists.txt, with
//   -march=armv8.2-a+dotprod
#if defined(__aarch64__)

#define PB_CPU_TARGET neon
#define PB_CPU_VECTORS "cpu/kernels/vec/vec_neon.h"
#include "cpu/targets/table-inl.h"

#endif
