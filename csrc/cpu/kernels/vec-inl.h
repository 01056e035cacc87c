// The vectors of the target that is being compiled: see table-inl.h.
#pragma once

#include PB_CPU_VECTORS
