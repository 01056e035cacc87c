// Parameters of the kernels of mixtures of experts. A pair is a row and one of its experts; pairs
// are numbered expert by expert, and within an expert by row. All pointers are to device memory.
#pragma once

#include <cstdint>

namespace pb::cuda {

// -- routing --------------------------------------------------------------------------------------

inline constexpr int kMostExperts = 4096;  // per layer: kMaxExperts

// The choice of each row's experts: a block, which is one warp, handles a row.
struct RouteParams {
  const float* logits;  // (n_rows, n_experts)
  const float* bias;    // (n_experts), or null: added to the scores for the choice only
  const float* scales;  // (n_experts), or null: all 1
  float scale;          // multiplies weights
  float sum_eps;        // added to the sum of sigmoids
  int n_experts;
  int n_per_row;
  // 1: scores are sigmoids of logits; 0: they are the logits, or with a bias their parts of a
  // softmax over all experts
  int sigmoid;
  // 1: weights are divided by their sum over the chosen experts; 0: not, or by the sum over all
  int normalised;
  int32_t* experts;  // (n_rows, n_per_row): ascending
  float* weights;    // (n_rows, n_per_row)
};

// A part of an expert's pairs: the rows of one block's tile.
struct ExpertTile {
  int32_t expert;
  int32_t first;   // number of the first pair
  int32_t n_rows;  // from 1 to the rows per tile
};

// The pairs of each block of a product. Only the first n_tiles entries are set.
struct ExpertTiles {
  int32_t n_tiles;
  ExpertTile tiles[];
};

inline constexpr int kNumberPairsThreads = 256;

// Numbers the pairs, and cuts each expert's pairs into tiles. One block per expert.
struct NumberPairsParams {
  const int32_t* experts;  // (n_pairs): ascending for each row
  int n_pairs;
  int n_experts;
  int tile_rows;
  int32_t* pairs;   // (n_pairs): number of the pair
  int32_t* begins;  // (n_experts + 1): the first pair of each expert, then the number of pairs
  ExpertTiles* tiles;
};

// -- rows -----------------------------------------------------------------------------------------

inline constexpr int kGatherPairsThreads = 128;

// out[pair] = x[row of the pair]. The grid is rows by parts of kGatherPairsThreads * 16 bytes.
struct GatherPairsParams {
  const void* x;         // (n_rows, row_bytes)
  const int32_t* pairs;  // (n_rows, n_per_row)
  int n_per_row;
  int row_bytes;  // a multiple of 16
  void* out;      // (n_pairs, row_bytes)
};

inline constexpr int kCombinePairsThreads = 256;

// x[row] (=|+=) the sum over its experts, in ascending order from zero, of weight * y[pair], by
// fused multiply-adds. The grid is rows by parts of kCombinePairsThreads columns.
struct CombinePairsParams {
  const float* y;        // (n_pairs, hidden)
  const int32_t* pairs;  // (n_rows, n_per_row)
  const float* weights;  // (n_rows, n_per_row)
  int n_per_row;
  int hidden;
  float* x;  // (n_rows, hidden)
  int adds;  // 0 or 1
};

// x[row] += sigmoid(logits[row]) * y[row], by fused multiply-adds. The grid is rows by parts of
// kCombinePairsThreads columns.
struct AddSharedParams {
  const float* y;       // (n_rows, hidden)
  const float* logits;  // (n_rows)
  int hidden;
  float* x;  // (n_rows, hidden)
};

// out = g sigmoid(alpha g) (u + 1), where g = min(gate, limit), and u is up clamped to [-limit,
// limit]. The grid is that of ActivateParams.
struct ClampedSwigluParams {
  const float* gate_up;  // (n_pairs, 2 cols)
  float alpha;
  float limit;
  int cols;
  void* out;           // (n_pairs, row_stride), bf16 or f32 as the kernel's name says
  int64_t row_stride;  // numbers per row, at least `cols`
};

// -- products -------------------------------------------------------------------------------------

// The weights of one expert.
struct ExpertWeight {
  const void* w;           // as in GemmParams
  const uint16_t* scales;  // null for bf16 and f32
  const float* bias;       // (n_out), or null
};

// y[pair] = x[pair] w^T + bias, where w is the expert's matrix. The arithmetic, the tiles and all
// sizes are those of GemmParams; sums are never split over k. The grid is the greatest number of
// tiles of pairs, by tiles of columns, and for f32 by parts of kF32Rows rows of a tile.
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
