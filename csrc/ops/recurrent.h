// The operations of recurrent layers, which have a state of fixed size for each sequence. Each
// block of a sequence stores the state after the sequence's last row in that block
// (kv/layer_groups.h).
//
// The gated delta rule (Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464). A layer has n_key_heads
// heads of queries and keys, and n_value_heads heads of values, which is a multiple of n_key_heads:
// one or more value heads use the same key head (GatedDeltaNetShape). For each row, in order of
// position, the layer computes:
//   q, k, v   = silu(convolution over the row and the conv_size - 1 rows before it)
//   q, k      = q / |q| / sqrt(key_dim), k / |k|
//   S         = exp(decay softplus(a + decay_bias)) S
//   S         = S + k (sigmoid(b) (v - S^T k))^T
//   y         = RMSNorm(S^T q) silu(z)
// Each value head has a matrix S (key_dim, value_dim). The state consists of S of all value heads,
// followed by the inputs of the convolution of the last conv_size - 1 rows.
// Rows are computed one after another. A chunked form of the rule is not used, because its rounding
// would depend on how passes divide a sequence into chunks.
//
// The gated short convolution (LFM2: Liquid AI 2025, arXiv:2511.23404). For each row it computes:
//   y = c * convolution over u = b * x of the row and of the conv_size - 1 rows before it
// The state consists of u of the last conv_size - 1 rows.
#pragma once

#include <limits>

#include "ops/buffer.h"
#include "ops/tensors.h"

namespace pb {

// The input row of a layer has these columns, in this order:
//   q (n_key_heads, key_dim), k (n_key_heads, key_dim), v (n_value_heads, value_dim): the channels
//   of the convolution
//   z (n_value_heads, value_dim) · b (n_value_heads) · a (n_value_heads)
struct GatedDeltaNetLayer {
  GatedDeltaNetShape shape;
  int layer = 0;  // index of the layer in the storage of states
  // (conv_size, channels): the last row is the factor of the current row
  const Vector* convolution = nullptr;
  const Vector* decay = nullptr;       // (n_value_heads), negative
  const Vector* decay_bias = nullptr;  // (n_value_heads)
  const Norm* norm = nullptr;          // (value_dim), applied to each value head
};

// The input row of a layer has these columns, (width) each: b · c · x
struct ShortConvLayer {
  ShortConvShape shape;
  int layer = 0;  // index of the layer in the storage of states
  // (conv_size, width): the last row is the factor of the current row
  const Vector* convolution = nullptr;
};

class RecurrentOperations {
 public:
  virtual ~RecurrentOperations() = default;

  // The greatest head size of keys that the device supports.
  virtual int max_key_dim() const { return std::numeric_limits<int>::max(); }

  // Called when loading: allocates the states of n_blocks blocks. A state has shape.state_size()
  // floats per layer, plus padding on some devices. All layers have the same shape.
  virtual KvStorage make_states(int n_blocks, int n_layers, const GatedDeltaNetShape& shape) = 0;
  virtual KvStorage make_states(int n_blocks, int n_layers, const ShortConvShape& shape) = 0;

  // Called in a pass: computes y of every row, and updates the states. x (n_rows, shape.row_size())
  // f32 -> y (n_rows, shape.value_size()) f32
  virtual void gated_delta_net(const Buffer& x, int n_rows, const GatedDeltaNetLayer& layer,
                               KvStorage& states, Buffer& y) = 0;
  // Called in a pass: computes y of every row, and updates the states. x (n_rows, shape.row_size())
  // f32 -> y (n_rows, shape.width) f32
  virtual void short_conv(const Buffer& x, int n_rows, const ShortConvLayer& layer,
                          KvStorage& states, Buffer& y) = 0;
};

}  // namespace pb
