// The target for any CPU.
#define PB_CPU_TARGET scalar
#define PB_CPU_VECTORS "cpu/kernels/vec/vec_scalar.h"
#include "cpu/targets/table-inl.h"
