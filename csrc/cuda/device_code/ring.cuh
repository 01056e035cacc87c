// The position in a ring of stages in shared memory, and the phase of its barriers.
#pragma once

#include "cuda/device_code/tma.h"

namespace pb::cuda {
namespace {

// A position in a ring of kStages stages, and the parity of the barriers' phase there.
template <int kStages>
struct RingPlace {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

}  // namespace
}  // namespace pb::cuda
