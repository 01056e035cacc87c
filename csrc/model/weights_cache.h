// The file of packed weights in a WeightsCache, and its key.
#pragma once

#include <cstddef>
#include <string>

#include "model/weights.h"

namespace pb {

// Returns a text of everything that the bytes of packed weights depend on.
std::string cache_key(const WeightsCache& cache, const TensorMap& tensors, DType dtype,
                      const Backend& backend);

// The file of the weights with that key.
std::string cache_path(const WeightsCache& cache, const std::string& key);

// Returns the bytes of all matrices once they are packed.
size_t packed_bytes(const TensorMap& tensors, DType dtype, const Backend& backend);

}  // namespace pb
