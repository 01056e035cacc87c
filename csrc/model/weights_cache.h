// Where packed weights lie in a WeightsCache, and what their bytes depend on.
#pragma once

#include <cstddef>
#include <string>

#include "model/weights.h"

namespace pb {

// All that the bytes of packed weights depend on.
std::string cache_key(const WeightsCache& cache, const TensorMap& tensors, DType dtype,
                      const Backend& backend);

// The file of the weights with that key.
std::string cache_path(const WeightsCache& cache, const std::string& key);

// What all matrices take once they are packed, in bytes.
size_t packed_bytes(const TensorMap& tensors, DType dtype, const Backend& backend);

}  // namespace pb
