// The gated delta rule (ops/recurrent.h), row by row.
//
// A block has kDeltaRuleColumns columns of a state and a warp has 8 of them, in registers from the
// first to the last row of a sequence: four lanes per column, lane g with the keys 16 j + 4 g to 16
// j + 4 g + 3 for all j. So a state is read once per pass, and written where a block of the cache
// ends. A column is computed independently, over its rows in order, so that its bits do not depend
// on anything else.
#pragma once

#include "cuda/device_code/device_code.h"
#include "cuda/recurrent/kept_inputs.cuh"
#include "cuda/recurrent/params_recurrent.h"

namespace pb::cuda {
namespace {

// Returns the sum of a column's four lanes; each of them gets it.
__device__ __forceinline__ float column_sum(const float4& parts) {
  float sum = (parts.x + parts.y) + (parts.z + parts.w);
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  return sum;
}

__device__ __forceinline__ void add_product(float4& sum, const float4& a, const float4& b) {
  sum.x = __fmaf_rn(a.x, b.x, sum.x);
  sum.y = __fmaf_rn(a.y, b.y, sum.y);
  sum.z = __fmaf_rn(a.z, b.z, sum.z);
  sum.w = __fmaf_rn(a.w, b.w, sum.w);
}

// A block's columns of a state with up to 16 kSteps keys.
template <int kSteps>
class DeltaRuleColumns {
 public:
  static constexpr int kKeys = 16 * kSteps;

  __device__ __forceinline__ DeltaRuleColumns(const DeltaRuleParams& p, int head, int first_column)
      : p_(p),
        head_(head),
        first_column_(first_column),
        group_(static_cast<int>(threadIdx.x % 4)),
        own_column_(static_cast<int>(threadIdx.x / 4)) {
    SharedArrays arrays;
    stages_ = take_delta_rule_stages(arrays, kKeys);
  }

  __device__ __forceinline__ void run(const StateSequence& sequence) {
    clear_padding();
    stage(sequence, 0);
    cp_async_commit();
    load(sequence.from);
    int place = sequence.first_place;
    const int32_t* block = p_.blocks + sequence.first_block;
    for (int first = 0; first < sequence.n_rows; first += kDeltaRuleRows) {
      stage(sequence, first + kDeltaRuleRows);
      cp_async_commit();
      cp_async_wait<1>();
      __syncthreads();
      const int left = sequence.n_rows - first;
      const int n = left < kDeltaRuleRows ? left : kDeltaRuleRows;
      for (int i = 0; i < n; ++i) {
        step(sequence.first_row + first + i, first / kDeltaRuleRows % 2 * kDeltaRuleRows + i);
        ++place;
        if (place < p_.block_size && first + i + 1 < sequence.n_rows) continue;
        store(*block++);
        place = 0;
      }
      __syncthreads();  // the rows in shared memory are overwritten next
    }
  }

 private:
  // Sets the padding of keys to zero.
  __device__ __forceinline__ void clear_padding() {
    const int n = kKeys - p_.sizes.key_stride;
    if (n == 0) return;
    for (int i = static_cast<int>(threadIdx.x); i < 2 * kDeltaRuleRows * n;
         i += kDeltaRuleThreads) {
      const int at = i / n * kKeys + p_.sizes.key_stride + i % n;
      stages_.queries[at] = stages_.keys[at] = 0.0f;
    }
  }

  // Starts the copies of rows from number `first` of the sequence on, if there are any.
  __device__ __forceinline__ void stage(const StateSequence& sequence, int first) {
    const int left = sequence.n_rows - first;
    const int n = left < kDeltaRuleRows ? left : kDeltaRuleRows;
    const int to = first / kDeltaRuleRows % 2 * kDeltaRuleRows;
    const int64_t row = sequence.first_row + first;
    const GatedDeltaNetSizes& sizes = p_.sizes;
    const int n_chunks = sizes.key_stride / 4;
    const int key_head = sizes.key_head_of(head_);
    for (int i = static_cast<int>(threadIdx.x); i < n * n_chunks; i += kDeltaRuleThreads) {
      const int r = i / n_chunks;
      const int at = (to + r) * kKeys + 4 * (i % n_chunks);
      const int64_t from =
          ((row + r) * sizes.n_key_heads + key_head) * sizes.key_stride + 4 * (i % n_chunks);
      cp_async_16(stages_.queries + at, p_.scratch.queries + from, 16);
      cp_async_16(stages_.keys + at, p_.scratch.keys + from, 16);
    }
    constexpr int kValueChunks = kDeltaRuleColumns / 4;
    for (int i = static_cast<int>(threadIdx.x); i < n * kValueChunks; i += kDeltaRuleThreads) {
      const int r = i / kValueChunks;
      const int column = 4 * (i % kValueChunks);
      if (first_column_ + column >= sizes.value_stride) continue;
      cp_async_16(stages_.values + (to + r) * kDeltaRuleColumns + column,
                  p_.scratch.values + value_at(row + r) + column, 16);
    }
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kDeltaRuleThreads) {
      cp_async_16(stages_.gates + (to + i) * 4,
                  p_.scratch.gates + ((row + i) * sizes.n_value_heads + head_) * 4, 16);
    }
  }

  // Returns the offset of a row's first value in these columns.
  __device__ __forceinline__ int64_t value_at(int64_t row) const {
    return (row * p_.sizes.n_value_heads + head_) * p_.sizes.value_stride + first_column_;
  }

  __device__ __forceinline__ bool is_there() const {
    return first_column_ + own_column_ < p_.sizes.value_dim;
  }

  // Returns this lane's part of the state in a block of the cache.
  __device__ __forceinline__ float4* state_in(int block) const {
    const int64_t column =
        static_cast<int64_t>(head_) * p_.sizes.value_dim + first_column_ + own_column_;
    return reinterpret_cast<float4*>(p_.states.data + block * p_.states.block_stride +
                                     column * p_.sizes.key_stride) +
           group_;
  }

  __device__ __forceinline__ void load(int block) {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      state_[j] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (block >= 0 && is_there() && 16 * j < p_.sizes.key_stride) {
        state_[j] = state_in(block)[4 * j];
      }
    }
  }

  __device__ __forceinline__ void store(int block) const {
    if (!is_there()) return;
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      if (16 * j < p_.sizes.key_stride) state_in(block)[4 * j] = state_[j];
    }
  }

  // Processes a row, which is at index `at` of the stage.
  __device__ __forceinline__ void step(int64_t row, int at) {
    const int first_of_warp = first_column_ + own_column_ / 8 * 8;
    if (first_of_warp >= p_.sizes.value_dim) return;
    const auto* const queries =
        reinterpret_cast<const float4*>(stages_.queries + at * kKeys) + group_;
    const auto* const keys = reinterpret_cast<const float4*>(stages_.keys + at * kKeys) + group_;
    float4 of_key = {0.0f, 0.0f, 0.0f, 0.0f};
    float4 of_query = of_key;
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      add_product(of_key, keys[4 * j], state_[j]);
      add_product(of_query, queries[4 * j], state_[j]);
    }
    const float known = column_sum(of_key);
    const float got = column_sum(of_query);
    const float4 gates = *reinterpret_cast<const float4*>(stages_.gates + at * 4);
    const float kept = gates.x;
    const float value = is_there() ? stages_.values[at * kDeltaRuleColumns + own_column_] : 0.0f;
    const float delta = __fmaf_rn(-kept, known, value) * gates.y;
    if (group_ == 0 && is_there()) {
      p_.scratch.values[value_at(row) + own_column_] = __fmaf_rn(gates.z, delta, kept * got);
    }
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      const float4 key = keys[4 * j];
      float4& s = state_[j];
      s.x = __fmaf_rn(key.x, delta, kept * s.x);
      s.y = __fmaf_rn(key.y, delta, kept * s.y);
      s.z = __fmaf_rn(key.z, delta, kept * s.z);
      s.w = __fmaf_rn(key.w, delta, kept * s.w);
    }
  }

  const DeltaRuleParams& p_;
  int head_;
  int first_column_;
  int group_;
  int own_column_;  // index in the block
  DeltaRuleStages stages_;
  float4 state_[kSteps];
};

template <int kSteps>
__device__ __forceinline__ void delta_rule(const DeltaRuleParams& p) {
  const StateSequence sequence = p.sequences[blockIdx.x];
  if (sequence.n_rows == 0) return;
  const int n_tiles = (p.sizes.value_dim + kDeltaRuleColumns - 1) / kDeltaRuleColumns;
  const int part = static_cast<int>(blockIdx.y);
  const int n_parts = p.sizes.n_value_heads * n_tiles;
  if (part < n_parts) {
    DeltaRuleColumns<kSteps>(p, part / n_tiles, part % n_tiles * kDeltaRuleColumns).run(sequence);
  } else {
    const GatedDeltaNetSizes& sizes = p.sizes;
    const int channel = static_cast<int>((part - n_parts) * kDeltaRuleThreads + threadIdx.x);
    if (channel >= sizes.n_channels()) return;
    const StateBlocks kept{p.states.data + sizes.history() + channel, p.states.block_stride};
    keep_inputs(kept, sizes.n_channels(), sizes.conv_size - 1, sequence, p.blocks, p.block_size,
                [&](int64_t row) { return p.x[row * sizes.row_size() + channel]; });
  }
}

PB_KERNEL(delta_rule_128, DeltaRuleParams, kDeltaRuleThreads) { delta_rule<8>(p); }
PB_KERNEL(delta_rule_256, DeltaRuleParams, kDeltaRuleThreads) { delta_rule<16>(p); }

}  // namespace
}  // namespace pb::cuda
