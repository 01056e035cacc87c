// A kernel launch as a value, so that the choice of a launch is separate from the launch itself.
#pragma once

#include <cstddef>

namespace pb::cuda {

struct Grid {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

template <typename Params>
struct Launch {
  const char* kernel;   // a PB_KERNEL of csrc/cuda
  Grid grid;            // blocks
  unsigned threads;     // threads per block
  size_t shared_bytes;  // dynamic shared memory per block
  Params params;
};

}  // namespace pb::cuda
