// The rows of a pass, in the host's memory, and how operations name some of them.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kv/layer_groups.h"
#include "sampling/sample.h"

namespace pb {

// The rows of one sequence in a pass: neighbours in the batch, neighbours in position.
struct SequenceRows {
  int first_row = 0;
  int n_rows = 0;
  int first_position = 0;  // of first_row
  // One a group of layers: position p lies in its KV block block_tables[group][p / block_size].
  // Blocks that the group has given back are named 0: their positions are not looked at.
  std::array<const int32_t*, kMostLayerGroups> block_tables = {};
  // The block of the states that the first row goes on from; -1: the sequence begins here, or the
  // model has none.
  int state_from = -1;

  int end_position() const { return first_position + n_rows; }
};

// One physical pass: at most n_ubatch rows, planned once, used by every layer.
struct RowBatch {
  int n_rows = 0;
  const int32_t* tokens = nullptr;     // (n_rows)
  const int32_t* positions = nullptr;  // (n_rows)
  std::span<const SequenceRows> sequences = {};
  std::span<const int32_t> logits_rows = {};  // those whose logits are wanted
  std::span<const SampleRequest> requests =
      {};                                     // what is sampled after each of these; empty: nothing
  std::span<const int32_t> pooled_rows = {};  // those whose states after the final norm are wanted
};

// n rows of the planned batch: neighbours in it, or in one of its lists, from number `first` on.
struct Rows {
  enum class Of { kBatch, kLogitsRows, kPooledRows };

  Of of = Of::kBatch;
  int first = 0;
  int n = 0;
};

// How many rows the operations of a pass are for: of the batch, and of its logits_rows.
struct PassRows {
  int n_rows = 0;
  int n_logits_rows = 0;
};

}  // namespace pb
