// AVX-512 with the tile unit (Intel AMX) for products of bf16.
#if defined(__x86_64__)

#define PB_CPU_TARGET avx512_amx
#define PB_CPU_VECTORS "cpu/vec_avx512.h"
#include "cpu/table-inl.h"

#endif
