// The data that the operations of a backend work on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/aligned_buffer.h"
#include "config/config.h"
#include "formats/dtype.h"
#include "kv/layer_groups.h"
#include "ops/buffer.h"

namespace pb {

// A dense weight y = x W^T + bias in the layout of a backend, still in the host's memory, where it
// can be written to a file and mapped from one.
struct PackedMatrix {
  int n_out = 0;
  int n_in = 0;
  DType dtype = DType::kF32;
  AlignedBuffer packed;
  AlignedBuffer bias;       // f32 (n_out), or empty
  AlignedBuffer order;      // as of Matrix
  bool compressed = false;  // as of Matrix
};

// Sizes of a PackedMatrix's buffers in bytes.
struct MatrixBytes {
  size_t packed = 0;
  size_t bias = 0;  // where there is one
};

// The same on the device.
struct Matrix {
  int n_out = 0;
  int n_in = 0;
  DType dtype = DType::kF32;
  Buffer packed;
  Buffer bias;  // f32 (n_out), or empty
  // i32 (n_in): the input that each column multiplies, to be put there by permute before a product;
  // empty where columns lie as inputs do.
  Buffer order;
  // True if a bf16 matrix is compressed without loss.
  bool compressed = false;
  // Where its outputs lie in rows that several matrices share: columns [first_out, first_out +
  // n_out) of n_beside; 0 of 0 where the rows are its own.
  int first_out = 0;
  int n_beside = 0;

  int y_columns() const { return n_beside == 0 ? n_out : n_beside; }
};

struct Vector {
  int size = 0;
  Buffer values;  // f32 (size)
};

struct Norm {
  NormKind kind = NormKind::kRms;
  float eps = 0.0f;
  Vector weight;  // (hidden)
  Vector bias;    // (hidden) with kLayer, else empty
  // norm_add multiplies its sums by it.
  float sum_scale = 1.0f;
};

// The input of a matrix product: rows of `cols` numbers, rounded to what products of `dtype`
// weights take (f32 for f32, bf16 for bf16, what suits the backend for int8 and int4), in the
// backend's layout. With kF32 that is plain: row r is the `cols` floats from data + r * row_stride.
// The padding of a row is zero.
struct Activations {
  int max_rows = 0;
  int cols = 0;
  int64_t row_stride = 0;  // elements
  DType dtype = DType::kF32;
  Buffer data;
  int64_t group_stride = 0;  // groups of a row, where rows are quantised
  Buffer groups;
};

enum class Store { kSet, kAdd };  // y = ..., y += ...

// cos and sin of every position: (n_positions, head_dim / 2) each.
struct RopeTable {
  int n_positions = 0;
  int half_dim = 0;
  Buffer cosines;
  Buffer sines;
};

// Keys and values of every block of a group, of those layers that have one shape.
struct KvStorage {
  int group = 0;
  int n_blocks = 0;
  int block_size = 0;  // a divisor of kAttentionSegment
  int n_layers = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kF32;
  size_t block_bytes = 0;
  Buffer data;
};

// Keys and values of all layers.
struct ModelKv {
  std::vector<KvStorage> storages;
  std::vector<LayerPlace> places;  // by layer
};

}  // namespace pb
