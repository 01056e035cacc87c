// The partial state of a softmax: its only addition of two states, and the final result.
//
// A state is a weighted sum of values, the greatest score, and the sum of the weights exp(score -
// greatest). Segments are added in ascending order, whether a block still has them in registers or
// reads them from memory.
#pragma once

#include "cuda/attention/attention_shared.h"
#include "cuda/device_code/device_code.h"

namespace pb::cuda {
namespace {

__device__ __forceinline__ float minus_infinity() {
  return __int_as_float(static_cast<int>(0xff800000u));
}

// Returns the number that is subtracted from scores. If all scores are minus infinity, as for a
// query that sees nothing, the weights are 0 and not NaN.
__device__ __forceinline__ float softmax_base(float greatest) {
  return greatest == minus_infinity() ? 0.0f : greatest;
}

// Adds a segment's greatest score and sum to the total's, which start as minus infinity and 0.
// Returns the factors for the values.
__device__ __forceinline__ MergeFactors merge_sums(float& greatest, float& sum, float part_greatest,
                                                   float part_sum) {
  const float next = part_greatest > greatest ? part_greatest : greatest;
  const float base = softmax_base(next);
  const MergeFactors factors{exp_of(greatest - base), exp_of(part_greatest - base)};
  sum = __fmaf_rn(part_sum, factors.part, sum * factors.total);
  greatest = next;
  return factors;
}

__device__ __forceinline__ float merge_value(const MergeFactors& factors, float total, float part) {
  return __fmaf_rn(part, factors.part, total * factors.total);
}

// Adds a head's sink, if any, to the sum of weights of all segments; a sink is a score without a
// value. Returns the factor for the values before the division by the sum.
__device__ __forceinline__ float add_sink(const float* sinks, int64_t head, float greatest,
                                          float& sum) {
  return sinks == nullptr ? 1.0f : merge_sums(greatest, sum, sinks[head], 1.0f).total;
}

// out[at] = x
__device__ __forceinline__ void store_output(void* out, int out_bf16, int64_t at, float x) {
  if (out_bf16 != 0) {
    static_cast<uint16_t*>(out)[at] = static_cast<uint16_t>(pack_bf16(x, 0.0f));
  } else {
    static_cast<float*>(out)[at] = x;
  }
}

// Returns the first position that a query sees.
__device__ __forceinline__ int begin_of(int end, int sliding_window) {
  return sliding_window > 0 && end > sliding_window ? end - sliding_window : 0;
}

// Returns 1 + the last position that a query sees.
__device__ __forceinline__ int end_of(int end, int limit, int after) {
  return limit - end < after ? limit : end + after;
}

__device__ __forceinline__ bool sees_segment(int begin, int end, int segment) {
  return begin < (segment + 1) * kSegment && end > segment * kSegment;
}

}  // namespace
}  // namespace pb::cuda
