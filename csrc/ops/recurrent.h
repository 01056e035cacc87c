// The operations of recurrent layers, which keep a state of fixed size for a sequence. The state
// after the sequence's last row of a block is kept in that block (kv/layer_groups.h).
//
// The gated delta rule (Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464). A layer has n_key_heads
// heads of queries and keys, and n_value_heads of values, a multiple: several go with a key head
// (GatedDeltaNetShape). Each row, in order of position, computes:
//   q, k, v   = silu(convolution over the row and the conv_size - 1 rows before it)
//   q, k      = q / |q| / sqrt(key_dim), k / |k|
//   S         = exp(decay softplus(a + decay_bias)) S
//   S         = S + k (sigmoid(b) (v - S^T k))^T
//   y         = RMSNorm(S^T q) silu(z)
// with S (key_dim, value_dim) of each value head.
// The state is S of all value heads, then the inputs of the last conv_size - 1 rows.
// Rows are computed one after another, whatever the pass: chunked forms of the rule would round
// otherwise at every other chunk.
//
// The gated short convolution (LFM2: Liquid AI 2025, arXiv:2511.23404). Each row computes:
//   y = c * convolution over u = b * x of the row and of the conv_size - 1 rows before it
// The state is u of the last conv_size - 1 rows.
#pragma once

#include <limits>

#include "ops/buffer.h"
#include "ops/tensors.h"

namespace pb {

// The columns of a row of a layer's products, in this order:
//   q (n_key_heads, key_dim), k likewise, v (n_value_heads, value_dim): what is convolved
//   z (n_value_heads, value_dim) · b (n_value_heads) · a (n_value_heads)
struct GatedDeltaNetLayer {
  GatedDeltaNetShape shape;
  int layer = 0;                        // of the storage of states
  const Vector* convolution = nullptr;  // (conv_size, channels): the last is of the row itself
  const Vector* decay = nullptr;        // (n_value_heads), below 0
  const Vector* decay_bias = nullptr;   // (n_value_heads)
  const Norm* norm = nullptr;           // (value_dim), of each value head
};

// The columns of a row of a layer's product, (width) each: b · c · x
struct ShortConvLayer {
  ShortConvShape shape;
  int layer = 0;                        // of the storage of states
  const Vector* convolution = nullptr;  // (conv_size, width): the last is of the row itself
};

class RecurrentOperations {
 public:
  virtual ~RecurrentOperations() = default;

  // The widest heads of keys.
  virtual int max_key_dim() const { return std::numeric_limits<int>::max(); }

  // At load: states of n_blocks blocks, shape.state_size() floats a layer or a little more where
  // that is padded. All of one shape.
  virtual KvStorage make_states(int n_blocks, int n_layers, const GatedDeltaNetShape& shape) = 0;
  virtual KvStorage make_states(int n_blocks, int n_layers, const ShortConvShape& shape) = 0;

  // In a pass: y of every row, and the states.
  // x (n_rows, shape.row_size()) f32 -> y (n_rows, shape.value_size()) f32
  virtual void gated_delta_net(const Buffer& x, int n_rows, const GatedDeltaNetLayer& layer,
                               KvStorage& states, Buffer& y) = 0;
  // x (n_rows, shape.row_size()) f32 -> y (n_rows, shape.width) f32
  virtual void short_conv(const Buffer& x, int n_rows, const ShortConvLayer& layer,
                          KvStorage& states, Buffer& y) = 0;
};

}  // namespace pb
