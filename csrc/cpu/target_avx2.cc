// AVX2, FMA and F16C.
#if defined(__x86_64__)

#define PB_CPU_TARGET avx2
#define PB_CPU_VECTORS "cpu/vec_avx2.h"
#include "cpu/table-inl.h"

#endif
