// A kernel's launch as a value: made by the plans of the kernel families, run by the device.
#pragma once

#include <cstddef>

namespace pb::cuda {

// One launch of a kernel: what the host decides about it.
struct Grid {
  unsigned x = 1, y = 1, z = 1;
};
template <typename Params>
struct Launch {
  const char* kernel;
  Grid grid;
  unsigned threads;
  size_t shared_bytes;
  Params params;
};

}  // namespace pb::cuda
