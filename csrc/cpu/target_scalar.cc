// Any CPU.
#define PB_CPU_TARGET scalar
#define PB_CPU_VECTORS "cpu/vec_scalar.h"
#include "cpu/table-inl.h"
