#include "cuda/emulation.h"

namespace pb::cuda {

const Emulation* emulation() { return nullptr; }

}  // namespace pb::cuda
