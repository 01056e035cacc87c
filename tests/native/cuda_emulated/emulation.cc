// In place of csrc/cuda/no_emulation.cc.
#include "cuda/emulation.h"

#include "emulated_driver.h"

namespace pb::cuda {

const Emulation* emulation() {
  static const Emulation emulated{.driver = &cuda_on_cpu::emulated_driver()};
  return &emulated;
}

}  // namespace pb::cuda
