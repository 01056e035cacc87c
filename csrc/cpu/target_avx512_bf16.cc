// AVX-512 with the dot products of bytes (vpdpbusd) and of bf16 (vdpbf16ps).
#if defined(__x86_64__)

#define PB_CPU_TARGET avx512_bf16
#define PB_CPU_VECTORS "cpu/vec_avx512.h"
#include "cpu/table-inl.h"

#endif
