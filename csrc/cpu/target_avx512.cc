// AVX-512 F, BW, DQ and VL.
#if defined(__x86_64__)

#define PB_CPU_TARGET avx512
#define PB_CPU_VECTORS "cpu/vec_avx512.h"
#include "cpu/table-inl.h"

#endif
