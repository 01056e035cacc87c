// Parameters of the kernels of mixtures of experts. A pair is a row and one of its experts; pairs
// are numbered expert by expert, and within an expert by row. Pointers are to device memory.
#pragma once

#include <cstdint>

namespace pb::cuda {

// -- routing --------------------------------------------------------------------------------------

inline constexpr int kMostExperts = 4096;  // of a layer: kMaxExperts

// The choice of each row's experts: a block, which is one warp, a row.
struct RouteParams {
  const float* logits;  // (n_rows, n_experts)
  const float* bias;    // (n_experts), or null: of scores, where experts are chosen
  const float* scales;  // (n_experts), or null: all 1
  float scale;          // multiplies weights
  float sum_eps;        // added to the sum of sigmoids
  int n_experts;
  int n_per_row;
  int sigmoid;       // 1: scores are sigmoids of logits; 0: they are the logits
  int normalised;    // 1: weights are divided by the sum over the chosen; 0: over all, or not
  int32_t* experts;  // (n_rows, n_per_row): ascending
  float* weights;    // (n_rows, n_per_row)
};

// Some of an expert's pairs: the rows of one block's tile.
struct ExpertTile {
  int32_t expert;
  int32_t first;   // pair
  int32_t n_rows;  // at least 1, at most the tile's
};

// Which pairs the blocks of a product have. What lies behind the first n_tiles is nothing.
struct ExpertTiles {
  int32_t n_tiles;
  ExpertTile tiles[];
};

inline constexpr int kNumberPairsThreads = 256;

// Numbers the pairs, and cuts each expert's into tiles: a block an expert.
struct NumberPairsParams {
  const int32_t* experts;  // (n_pairs): of each row, ascending
  int n_pairs;
  int n_experts;
  int tile_rows;
  int32_t* pairs;   // (n_pairs): number of the pair
  int32_t* begins;  // (n_experts + 1): the first pair of each expert; then that of nobody
  ExpertTiles* tiles;
};

// -- rows -----------------------------------------------------------------------------------------

inline constexpr int kGatherPairsThreads = 128;

// out[pair] = x[row of the pair]. Grid: rows, parts of kGatherPairsThreads * 16 bytes.
struct GatherPairsParams {
  const void* x;         // (n_rows, row_bytes)
  const int32_t* pairs;  // (n_rows, n_per_row)
  int n_per_row;
  int row_bytes;  // a multiple of 16
  void* out;      // (n_pairs, row_bytes)
};

inline constexpr int kCombinePairsThreads = 256;

// x[row] (=|+=) the sum over its experts, ascending and from zero, of weight * y[pair], a fused
// multiply-add each. Grid: rows, parts of kCombinePairsThreads columns.
struct CombinePairsParams {
  const float* y;        // (n_pairs, hidden)
  const int32_t* pairs;  // (n_rows, n_per_row)
  const float* weights;  // (n_rows, n_per_row)
  int n_per_row;
  int hidden;
  float* x;  // (n_rows, hidden)
  int adds;  // 0 or 1
};

// x[row] += sigmoid(logits[row]) * y[row], a fused multiply-add each. Grid: rows, parts of
// kCombinePairsThreads columns.
struct AddSharedParams {
  const float* y;       // (n_rows, hidden)
  const float* logits;  // (n_rows)
  int hidden;
  float* x;  // (n_rows, hidden)
};

// out = g sigmoid(alpha g) (u + 1), g = min(gate, limit), u = up between -limit and limit. Blocks
// as ActivateParams has them.
struct ClampedSwigluParams {
  const float* gate_up;  // (n_pairs, 2 cols)
  float alpha;
  float limit;
  int cols;
  void* out;           // (n_pairs, row_stride), bf16 or f32 by the kernel's name
  int64_t row_stride;  // numbers, at least `cols`
};

// -- products -------------------------------------------------------------------------------------

// The matrix of one expert.
struct ExpertWeight {
  const void* w;           // as GemmParams has them
  const uint16_t* scales;  // null with bf16 and f32
  const float* bias;       // (n_out), or null
};

// y[pair] = x[pair] w^T + bias, w being the expert's. The arithmetic, the tiles and the meaning of
// all sizes are those of GemmParams; sums are never split over k.
// Grid: tiles of pairs, as many as there may be; tiles of columns; of f32, parts of kF32Rows rows
// of a tile.
struct ExpertGemmParams {
  const void* x;                // (n_pairs, x_stride)
  const ExpertWeight* weights;  // (n_experts)
  const ExpertTiles* tiles;
  float* y;  // (n_pairs, n_out)
  int n_out;
  int x_stride;
  int k_padded;
  int scale_stride;
};

}  // namespace pb::cuda
