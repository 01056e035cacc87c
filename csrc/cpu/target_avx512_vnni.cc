// AVX-512 with the byte dot product (vpdpbusd).
#if defined(__x86_64__)

#define PB_CPU_TARGET avx512_vnni
#define PB_CPU_VECTORS "cpu/vec_avx512.h"
#include "cpu/table-inl.h"

#endif
