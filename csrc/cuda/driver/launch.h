// What the host decides about a launch of a kernel, as a value: chosen apart from being launched.
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
  unsigned threads;     // of a block
  size_t shared_bytes;  // dynamic shared memory of a block
  Params params;
};

}  // namespace pb::cuda
