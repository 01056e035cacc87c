// AVX-512 with AMX for products of bf16 and of bytes.
//
// Compiled, by CMakeLists.txt, with
//   -mavx2 -mfma -mf16c
//   -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
//   -mavx512vbmi -mavx512vnni -mavx512bf16 -mamx-tile -mamx-bf16 -mamx-int8
#if defined(__x86_64__)

#define PB_CPU_TARGET avx512_amx
#define PB_CPU_VECTORS "cpu/kernels/vec/vec_avx512.h"
#include "cpu/targets/table-inl.h"

#endif
