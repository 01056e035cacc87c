// The CUDA toolkit and the architectures of this build.
#pragma once

#include <string>
#include <vector>

namespace pb::cuda {

struct Build {
  std::string toolkit;             // nvcc's version, "13.0.88"; empty in a build without CUDA
  std::vector<int> architectures;  // compute capabilities with compiled kernels: 80 is sm_80
  std::string problem;             // the reason for a build without CUDA; else empty
};

// Returns the facts that CMake wrote to build.cc.
const Build& this_build();

}  // namespace pb::cuda
