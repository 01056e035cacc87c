// What of CUDA this build was made with.
#pragma once

#include <string>
#include <vector>

namespace pb::cuda {

struct Build {
  std::string toolkit;             // nvcc's version, "13.0.88"; empty: made without CUDA
  std::vector<int> architectures;  // that kernels are compiled for: 80 is sm_80
  std::string problem;             // why it was made without CUDA; else empty
};

// Written by CMake, from build.cc.in.
const Build& this_build();

}  // namespace pb::cuda
