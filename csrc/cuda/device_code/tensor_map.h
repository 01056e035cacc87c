// What the driver makes of the description of a matrix in global memory, for copies of its tiles by
// the tensor memory accelerator (tma.h). A kernel takes it as a part of its parameters.
#pragma once

namespace pb::cuda {

struct alignas(128) TensorMap {  // CUtensorMap
  unsigned char opaque[128];
};

}  // namespace pb::cuda
