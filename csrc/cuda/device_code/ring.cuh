// A ring of stages in shared memory whose barriers go from phase to phase.
#pragma once

#include "cuda/device_code/tma.h"

namespace pb::cuda {
namespace {

// A place in a ring of kStages, and the parity of its barriers' phase there.
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
