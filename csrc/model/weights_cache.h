// Computes the key and the path of the cache file of packed weights in a WeightsCache.
#pragma once

#include <cstddef>
#include <string>

#include "model/weights.h"

namespace pb {

// Returns a text that contains everything on which the bytes of packed weights depend.
std::string cache_key(const WeightsCache& cache, const TensorMap& tensors, DType dtype,
                      const Backend& backend);

// Returns the path of the file for the weights with that key.
std::string cache_path(const WeightsCache& cache, const std::string& key);

// Returns the total size in bytes of all matrices once they are packed: the most, or with
// `compressed` the size if all matrices that the backend may compress are compressed.
size_t packed_bytes(const TensorMap& tensors, DType dtype, const Backend& backend,
                    bool compressed = false);

}  // namespace pb
