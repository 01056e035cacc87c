// The tensors that the operations of a backend work on.
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

// A dense weight of y = x W^T + bias in the layout of a backend, in host memory. It can be written
// to a file and mapped from it.
struct PackedMatrix {
  int n_out = 0;
  int n_in = 0;
  DType dtype = DType::kF32;
  AlignedBuffer packed;
  AlignedBuffer bias;       // f32 (n_out), or empty
  AlignedBuffer order;      // as in Matrix
  bool compressed = false;  // as in Matrix
};

// The sizes of the buffers of a PackedMatrix in bytes.
struct MatrixBytes {
  size_t packed = 0;
  size_t bias = 0;  // if the matrix has a bias
};

// A packed matrix on the device.
struct Matrix {
  int n_out = 0;
  int n_in = 0;
  DType dtype = DType::kF32;
  Buffer packed;
  Buffer bias;  // f32 (n_out), or empty
  // i32 (n_in): the input that each column multiplies. permute() brings the inputs into this order
  // before a product. Empty if column c multiplies input c.
  Buffer order;
  // True if a bf16 matrix is compressed without loss.
  bool compressed = false;
  // If several matrices share the rows of y, this matrix writes columns [first_out, first_out +
  // n_out) of n_beside columns. n_beside is 0 if y has the outputs of this matrix only.
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
  // The factor of the sums in norm_add().
  float sum_scale = 1.0f;
};

// The input of a matrix product: rows of `cols` numbers in the layout of the backend. They are
// rounded to the format that products with weights of `dtype` need: f32 for f32, bf16 for bf16, and
// a format of the backend's choice for quantised weights. With kF32 the layout is plain: row r
// consists of `cols` floats at data + r * row_stride. The padding of a row is zero.
struct Activations {
  int max_rows = 0;
  int cols = 0;
  int64_t row_stride = 0;  // in elements
  DType dtype = DType::kF32;
  Buffer data;
  int64_t group_stride = 0;  // number of groups per row, if rows are quantised
  Buffer groups;
};

enum class Store { kSet, kAdd };  // y = ... or y += ...

// The cosines and sines of every position, (n_positions, head_dim / 2) each.
struct RopeTable {
  int n_positions = 0;
  int half_dim = 0;
  Buffer cosines;
  Buffer sines;
  // i32 (head_dim / 2): pair i of a row is rotated by the angle of position
  // rope_positions[axes[i]] of the row. Empty: all pairs by the angle of its position.
  Buffer axes;
};

// The keys and values in all blocks of a group, for those of its layers that have the same shape.
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

// The keys and values of all layers.
struct ModelKv {
  std::vector<KvStorage> storages;
  std::vector<LayerPlace> places;  // indexed by layer
};

}  // namespace pb
