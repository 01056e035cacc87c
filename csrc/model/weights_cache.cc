#include "model/weights_cache.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>

#include "base/hash64.h"
#include "model/matrix_dtype.h"
#include "model/packed_file.h"

namespace pb {
namespace {

template <typename Values>
uint64_t hash_of(const Values& values) {
  return hash64(std::as_bytes(std::span(values)));
}

}  // namespace

std::string cache_key(const WeightsCache& cache, const TensorMap& tensors, DType dtype,
                      const Backend& backend) {
  std::string key = cache.key + " dtype=" + dtype_name(dtype) + " layout=" + backend.layout() +
                    " file=" + std::to_string(kPackedFileVersion);
  std::string kept;  // dtypes and input orders of tensors that differ from the default
  for (const auto& [name, view] : tensors) {
    const DType own = matrix_dtype(view, dtype, backend);
    if (own != dtype) kept += name + " " + dtype_name(own) + "\n";
    if (view.order) kept += name + " order " + std::to_string(hash_of(*view.order)) + "\n";
  }
  if (kept.empty()) return key;
  return key + " kept=" + std::to_string(hash_of(kept));
}

std::string cache_path(const WeightsCache& cache, const std::string& key) {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx",
                static_cast<unsigned long long>(hash_of(key)));
  return cache.directory + "/" + cache.name + "-" + digits.data() + ".packed";
}

size_t packed_bytes(const TensorMap& tensors, DType dtype, const Backend& backend,
                    bool compressed) {
  size_t bytes = 0;
  for (const auto& [name, view] : tensors) {
    if (view.cols == 1) continue;
    const DType own = matrix_dtype(view, dtype, backend);
    bytes += backend
                 .matrix_bytes(static_cast<int>(view.rows), static_cast<int>(view.cols), own,
                               compressed && backend.compresses(own))
                 .packed;
  }
  return bytes;
}

}  // namespace pb
