// The kernels of kernels.cu, compiled for every architecture of the build, inside the
// library.
#pragma once

#include <cstddef>
#include <span>

namespace pb::cuda {

// Returns a fatbin for Device::load_module(); empty in a build without CUDA.
std::span<const std::byte> kernel_image();

}  // namespace pb::cuda
