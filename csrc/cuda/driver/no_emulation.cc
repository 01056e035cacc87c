#include "cuda/driver/emulation.h"

namespace pb::cuda {

const Emulation* emulation() { return nullptr; }

}  // namespace pb::cuda
