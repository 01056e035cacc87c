// AVX2 with the byte dot product in VEX encoding (vpdpbusd of AVX-VNNI).
//
// Compiled, by CMakeLists.txt, with
//   -mavx2 -mfma -mf16c
//   -mavxvnni
#if defined(__x86_64__)

#define PB_CPU_TARGET avx_vnni
#define PB_CPU_VECTORS "cpu/kernels/vec/vec_avx2.h"
#include "cpu/targets/table-inl.h"

#endif
