// The driver's opaque description of a matrix in global memory, by which the tensor memory
// accelerator (tma.h) copies tiles. It is a part of a kernel's parameters.
#pragma once

namespace pb::cuda {

struct alignas(128) TensorMap {  // CUtensorMap
  unsigned char opaque[128];
};

}  // namespace pb::cuda
