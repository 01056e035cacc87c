// AVX2, FMA and F16C.
//
// Compiled, by CMakeLists.txt, with
//   -mavx2 -mfma -mf16c
#if defined(__x86_64__)

#define PB_CPU_TARGET avx2
#define PB_CPU_VECTORS "cpu/kernels/vec/vec_avx2.h"
#include "cpu/targets/table-inl.h"

#endif
