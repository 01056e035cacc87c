// AVX-512 with the byte dot product (vpdpbusd).
//
// Compiled, by CMakeLists.txt, with
//   -mavx2 -mfma -mf16c
//   -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
//   -mavx512vnni
#if defined(__x86_64__)

#define PB_CPU_TARGET avx512_vnni
#define PB_CPU_VECTORS "cpu/kernels/vec/vec_avx512.h"
#include "cpu/targets/table-inl.h"

#endif
