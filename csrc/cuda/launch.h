// One launch of a kernel: what the host decides about it.
#pragma once

#include <cstddef>

namespace pb::cuda {

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
