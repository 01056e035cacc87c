// Parameters of the kernels of recurrent layers: the gated delta rule and the gated short
// convolution, which ops/recurrent.h defines. All pointers are to device memory.
//
// For the delta rule, a layer's part of a block of states is S (n_value_heads, value_dim,
// key_stride), column by column, followed by the inputs of the last rows (conv_size - 1,
// n_channels). For a short convolution it is only these inputs, (conv_size - 1, width).
#pragma once

#include <cstdint>

#include "cuda/device_code/shared_bytes.h"

namespace pb::cuda {

// -- passes of all kinds --------------------------------------------------------------------------

// A row of a pass.
struct StateRow {
  int32_t n_before;  // rows of its sequence before it in the pass
  int32_t from;      // the block with the state before the sequence's first row; -1: none
};

// A sequence of a pass. A sequence without rows is padding, and nothing is written for it.
struct StateSequence {
  int32_t first_row;
  int32_t n_rows;
  int32_t first_place;  // index of its first row in that row's block
  int32_t from;         // as in StateRow
  int32_t first_block;  // offset of the blocks of its rows among the blocks of the pass
};

// The states of a layer.
struct StateBlocks {
  float* data;           // of block 0, aligned to 16 bytes
  int64_t block_stride;  // numbers, a multiple of 4
};

// -- the gated delta rule -------------------------------------------------------------------------

// Sizes of a layer.
struct GatedDeltaNetSizes {
  int n_key_heads;
  int n_value_heads;
  int key_dim;
  int value_dim;
  int conv_size;
  int in_turn;       // 1: value head h uses key head h % n_key_heads; 0: neighbours share one
  int key_stride;    // numbers, a multiple of 16; from key_dim on they are zero
  int value_stride;  // numbers per row of values, a multiple of 4

  PB_HOST_DEVICE int n_channels() const {
    return 2 * n_key_heads * key_dim + n_value_heads * value_dim;
  }
  PB_HOST_DEVICE int row_size() const {
    return n_channels() + n_value_heads * value_dim + 2 * n_value_heads;
  }
  PB_HOST_DEVICE int heads_of_key() const { return n_value_heads / n_key_heads; }
  PB_HOST_DEVICE int key_head_of(int value_head) const {
    return in_turn != 0 ? value_head % n_key_heads : value_head / heads_of_key();
  }
  // Returns the i-th value head of a key head.
  PB_HOST_DEVICE int value_head_of(int key_head, int i) const {
    return in_turn != 0 ? key_head + i * n_key_heads : key_head * heads_of_key() + i;
  }
  // Returns the offset of the inputs of the last rows.
  PB_HOST_DEVICE int64_t history() const {
    return static_cast<int64_t>(n_value_heads) * value_dim * key_stride;
  }
};

// The intermediate results of rows before the rule.
struct GatedDeltaNetScratch {
  float* queries;  // (n_rows, n_key_heads, key_stride)
  float* keys;     // (n_rows, n_key_heads, key_stride)
  // (n_rows, n_value_heads, value_stride); the rule overwrites them with its results
  float* values;
  float* gates;  // (n_rows, n_value_heads, 4): decay, beta, q k, 0
};

inline constexpr unsigned kGatedDeltaNetRowThreads = 128;  // each warp handles a head
inline constexpr int kMostKeyDim = 256;

// Computes convolutions, unit queries and keys, and gates. The grid is rows by parts of 4 heads,
// first those of keys and then those of values.
struct GatedDeltaNetInputsParams {
  GatedDeltaNetSizes sizes;
  const float* x;  // (n_rows, row_size)
  const StateRow* rows;
  StateBlocks states;
  const float* convolution;  // (conv_size, n_channels)
  const float* decay;        // (n_value_heads)
  const float* decay_bias;   // (n_value_heads)
  GatedDeltaNetScratch scratch;
};

inline constexpr unsigned kDeltaRuleThreads = 128;
inline constexpr int kDeltaRuleColumns = 32;  // columns of a state per block
inline constexpr int kDeltaRuleRows = 8;  // rows in shared memory at once, in each of two stages

// Computes the rule, and stores the states after each block's last row. The grid is sequences, by
// tiles of kDeltaRuleColumns columns of each value head followed by parts of kDeltaRuleThreads
// channels, whose inputs are stored.
struct DeltaRuleParams {
  GatedDeltaNetSizes sizes;
  const float* x;  // (n_rows, row_size)
  const StateSequence* sequences;
  const int32_t* blocks;
  int block_size;
  StateBlocks states;
  GatedDeltaNetScratch scratch;
};

// The stages of rows in shared memory; each array is (2, kDeltaRuleRows, ...).
struct DeltaRuleStages {
  float* queries;  // key_size
  float* keys;     // key_size
  float* values;   // kDeltaRuleColumns
  float* gates;    // 4
};
template <typename Arrays>
PB_HOST_DEVICE DeltaRuleStages take_delta_rule_stages(Arrays& arrays, int key_size) {
  const auto rows = static_cast<size_t>(2 * kDeltaRuleRows);
  const auto of_keys = rows * static_cast<size_t>(key_size);
  return {arrays.template take<float>(of_keys), arrays.template take<float>(of_keys),
          arrays.template take<float>(rows * kDeltaRuleColumns),
          arrays.template take<float>(rows * 4)};
}

// y = RMSNorm(values) silu(z) for each value head. The grid is rows by parts of 4 heads.
struct GatedDeltaNetOutputsParams {
  GatedDeltaNetSizes sizes;
  const float* x;       // (n_rows, row_size)
  const float* values;  // as in GatedDeltaNetScratch
  const float* weight;  // (value_dim)
  float eps;
  float* y;  // (n_rows, n_value_heads, value_dim)
};

// -- the gated short convolution ------------------------------------------------------------------

inline constexpr unsigned kConvThreads = 128;

// Computes y for each row. The grid is rows by parts of kConvThreads channels.
struct ShortConvParams {
  int width;
  int conv_size;
  const float* x;  // (n_rows, 3 width): b, c, x
  const StateRow* rows;
  StateBlocks states;
  const float* convolution;  // (conv_size, width)
  float* y;                  // (n_rows, width)
};

// Stores the states after each block's last row. The grid is sequences by parts of kConvThreads
// channels.
struct ShortConvStatesParams {
  int width;
  int conv_size;
  const float* x;  // as in ShortConvParams
  const StateSequence* sequences;
  const int32_t* blocks;
  int block_size;
  StateBlocks states;
};

}  // namespace pb::cuda
