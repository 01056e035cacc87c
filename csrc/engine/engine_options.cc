#include <initializer_list>
#include <string>

#include "base/error.h"
#include "engine/context_by_memory.h"
#include "engine/engine.h"

namespace pb {
namespace {

void check_range(const char* field, int value, int low, int high) {
  if (value < low || value > high) {
    throw Error(ErrorCode::kConfig, std::string(field) + " is " + std::to_string(value) +
                                        "; it must be from " + std::to_string(low) + " to " +
                                        std::to_string(high));
  }
}

void check_dtype(const char* field, DType dtype, std::initializer_list<DType> allowed) {
  std::string names;
  for (const DType one : allowed) {
    if (dtype == one) return;
    names += (names.empty() ? "'" : ", '") + std::string(dtype_name(one)) + "'";
  }
  throw Error(ErrorCode::kConfig,
              std::string(field) + " is '" + dtype_name(dtype) + "'; it must be one of " + names);
}

}  // namespace

void EngineOptions::validate() const {
  check_dtype("dtype", dtype, {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4});
  check_dtype("kv_dtype", kv_dtype, {DType::kF32, DType::kBF16, DType::kF16, DType::kInt8});
  if (n_ctx != kAutoContext) check_range("n_ctx", n_ctx, 1, kMostContext);
  check_range("n_parallel", n_parallel, 1, 1 << 16);
  check_range("n_ubatch", n_ubatch, 1, 1 << 16);
  check_range("block_size", block_size, 1, kAttentionSegment);
  if (kAttentionSegment % block_size != 0) {
    throw Error(ErrorCode::kConfig, "block_size is " + std::to_string(block_size) +
                                        "; it must be a divisor of " +
                                        std::to_string(kAttentionSegment));
  }
}

}  // namespace pb
