// Includes the vectors of the target that is being compiled (targets/table-inl.h).
#pragma once

#include PB_CPU_VECTORS
