// The rows of a pass in host memory, and references of operations to subsets of them.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "config/config.h"
#include "kv/layer_groups.h"
#include "sampling/sample.h"

namespace pb {

// The rows of one sequence in a pass. They are contiguous in the batch and have consecutive
// positions.
struct SequenceRows {
  int first_row = 0;
  int n_rows = 0;
  int first_position = 0;  // position of first_row
  // One block table per group of layers: position p is stored in the KV block block_tables[group][p
  // / block_size]. Blocks that the group has freed have the number 0, and their positions are never
  // read.
  std::array<const int32_t*, kMostLayerGroups> block_tables = {};
  // The block with the state from which the first row continues. -1: the sequence starts with this
  // row, or the model has no recurrent layers.
  int state_from = -1;
  // The number of positions after the last row whose keys and values are stored. Only a tower has
  // them, which stores those of a whole tile before it computes attention; queries see them.
  int n_later = 0;

  int end_position() const { return first_position + n_rows + n_later; }
};

// Rows of the batch that are given by the host instead of tokens: rows of images.
struct GivenRows {
  int first_row = 0;
  int n_rows = 0;
  const float* values = nullptr;  // (n_rows, stride), in host memory
  int64_t stride = 0;
};

// One physical pass of at most n_ubatch rows. It is planned once, and every layer uses it.
struct RowBatch {
  int model = 0;  // PassShape::model of the pass
  int n_rows = 0;
  const int32_t* tokens = nullptr;     // (n_rows)
  const int32_t* positions = nullptr;  // (n_rows)
  // (n_rows, kRopeAxes), each below the positions of the rope tables. Null if no rope has axes.
  const int32_t* rope_positions = nullptr;
  std::span<const SequenceRows> sequences = {};
  std::span<const int32_t> logits_rows = {};  // the rows whose logits are computed
  // The samples to take after each of logits_rows; empty: none.
  std::span<const SampleRequest> requests = {};
  // The rows whose hidden states are pooled after the final norm.
  std::span<const int32_t> pooled_rows = {};
  std::span<const GivenRows> given = {};
};

// n contiguous rows of the planned batch, or n contiguous entries of one of its lists of rows,
// starting at `first`.
struct Rows {
  enum class Of { kBatch, kLogitsRows, kPooledRows };

  Of of = Of::kBatch;
  int first = 0;
  int n = 0;
};

// The numbers of rows that the operations of a pass process: rows of the batch, and entries of its
// logits_rows.
struct PassRows {
  int n_rows = 0;
  int n_logits_rows = 0;
};

}  // namespace pb
