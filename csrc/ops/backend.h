// The operations a model may call. The only virtual class of the native code; one
// implementation a device.
//
// Contract of every operation: a row's result depends on that row (and, in attention, on the
// KV of its own sequence) alone, bit for bit: never on how many rows there are, which rows they
// are, how threads share them, or what lies in padding. Nothing here allocates after the make_*
// calls, and nothing throws but the make_* calls.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/aligned_buffer.h"
#include "base/dtype.h"
#include "base/function_ref.h"
#include "model/config.h"

namespace pb {

// A tensor of a checkpoint where it lies, strided. Element (r, c) is number r * row_stride + c *
// col_stride from `data`. Of kInt8 and kInt4, rows are blocks of 32 neighbours (Int8Group and
// Int4Group of base/quantise.h) and strides still count elements.
struct TensorView {
  std::string name;  // for messages
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 1;  // a vector is (n, 1)
  int64_t row_stride = 1;
  int64_t col_stride = 1;
  int64_t bytes = 0;  // of its elements, which progress counts
  // Around it in a mapped file, which can be dropped once it is read; empty where it is in memory.
  std::span<const std::byte> pages = {};
  // For a matrix that is made when it is needed, and not before: makes it, of this dtype and these
  // sizes, to be kept as long as it is read. May throw. Null: it lies at `data`.
  std::function<std::shared_ptr<const TensorView>()> make = {};
};

// A dense weight y = x W^T + bias in the backend's own layout.
struct Matrix {
  int n_out = 0;
  int n_in = 0;
  DType dtype = DType::kF32;
  AlignedBuffer packed;
  AlignedBuffer bias;  // f32 (n_out), or empty
};

// Sizes of a Matrix's buffers in bytes.
struct MatrixBytes {
  size_t packed = 0;
  size_t bias = 0;  // where there is one
};

struct Vector {
  int size = 0;
  AlignedBuffer values;  // f32 (size)
};

struct Norm {
  NormKind kind = NormKind::kRms;
  float eps = 0.0f;
  Vector weight;  // (hidden)
  Vector bias;    // (hidden) with kLayer, else empty
};

// What enters a matrix product: rows of `cols` numbers, rounded to what products of `dtype`
// weights take (f32 for f32, bf16 for bf16, what suits the backend for int8 and int4), in the
// backend's layout. With kF32 that is plain: row r is the `cols` floats from data + r * row_stride.
// What pads a row is zero.
struct Activations {
  int max_rows = 0;
  int cols = 0;
  int64_t row_stride = 0;  // elements
  DType dtype = DType::kF32;
  AlignedBuffer data;
  int64_t group_stride = 0;  // groups of a row, where rows are quantised
  AlignedBuffer groups;
};

// cos and sin of every position: (n_positions, head_dim / 2) each.
struct RopeTable {
  int n_positions = 0;
  int half_dim = 0;
  AlignedBuffer cosines;
  AlignedBuffer sines;
};

// Keys and values of every block and layer.
struct KvStorage {
  int n_blocks = 0;
  int block_size = 0;  // a divisor of kAttentionSegment
  int n_layers = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kF32;
  size_t block_bytes = 0;
  AlignedBuffer data;
};

// The rows of one sequence in a pass: neighbours in the batch, neighbours in position.
struct SequenceRows {
  int first_row = 0;
  int n_rows = 0;
  int first_position = 0;                // of first_row
  const int32_t* block_table = nullptr;  // position p lies in KV block block_table[p / block_size]
};

// One physical pass: at most n_ubatch rows, planned once, used by every layer.
struct RowBatch {
  int n_rows = 0;
  const int32_t* tokens = nullptr;     // (n_rows)
  const int32_t* positions = nullptr;  // (n_rows)
  std::span<const SequenceRows> sequences;
};

// The per-layer inputs of attention besides the rows.
struct AttentionLayer {
  int layer = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  float scale = 1.0f;
  int sliding_window = 0;           // 0 = full
  const RopeTable* rope = nullptr;  // null = no rotation
  const Norm* q_norm = nullptr;     // null = none; weight (head_dim)
  const Norm* k_norm = nullptr;
};

enum class Store { kSet, kAdd };  // y = ..., y += ...

// Softmax is taken over fixed segments of this many positions, by absolute position, and the
// segments' partial states are merged in order.
inline constexpr int kAttentionSegment = 256;

class Backend {
 public:
  virtual ~Backend() = default;

  // "avx512_bf16", "avx2", "scalar", ...
  virtual std::string target() const = 0;
  virtual int n_threads() const = 0;

  // -- at load ------------------------------------------------------------------------------

  // Stacks `parts` (each (n_i, n_in)) into one weight of sum(n_i) rows. `biases`: one a part, with
  // data == nullptr for none. Throws kModelFormat where a part or bias holds a number that is not
  // finite. Blocks of the same dtype are taken as they are, all else is rounded to it.
  virtual Matrix make_matrix(std::span<const TensorView> parts, std::span<const TensorView> biases,
                             DType dtype) = 0;
  // The layout of what make_matrix makes, its version included: where two backends say the same,
  // one can compute with what the other has packed.
  virtual std::string layout() const = 0;
  // What make_matrix makes of n_out rows of n_in.
  virtual MatrixBytes matrix_bytes(int n_out, int n_in, DType dtype) const = 0;
  virtual Vector make_vector(const TensorView& view) = 0;
  virtual Activations make_activations(int max_rows, int cols, DType weights) = 0;
  virtual RopeTable make_rope(std::span<const float> inv_freq, float attention_factor,
                              int n_positions) = 0;
  virtual KvStorage make_kv(int n_blocks, int block_size, int n_layers, int n_kv_heads,
                            int head_dim, DType dtype) = 0;
  // Scratch of attention for passes of at most max_rows rows. Called once, before any pass.
  virtual void prepare(int max_rows, int n_heads, int n_kv_heads, int head_dim) = 0;

  // -- in the forward pass --------------------------------------------------------------------

  // Once a pass, before its layers: how rope_and_store and attention will go about the batch, which
  // must stay as it is until the pass is over.
  virtual void plan(const RowBatch& batch, const KvStorage& kv) = 0;

  // x[r] = table[ids[r]].  x (n, n_in) f32
  virtual void embed(std::span<const int32_t> ids, const Matrix& table, float* x) = 0;

  // x[r] += table[ids[r]]: learned positions.
  virtual void embed_add(std::span<const int32_t> ids, const Matrix& table, float* x) = 0;

  // out[i] = norm(x[rows[i]]).  x (*, hidden) f32 -> out (rows.size(), hidden)
  virtual void norm(const float* x, std::span<const int32_t> rows, const Norm& norm,
                    Activations& out) = 0;

  // y[r] (=|+=) x[r] W^T + bias.  x (n_rows, n_in), y (n_rows, n_out) f32
  virtual void matmul(const Activations& x, int n_rows, const Matrix& w, float* y, Store store) = 0;

  // Norms (if any) and rotates q and k in place and writes k and v of every row to its block.
  // qkv (n_rows, (n_heads + 2 * n_kv_heads) * head_dim) f32: q heads, then k heads, then v heads
  virtual void rope_and_store(float* qkv, const RowBatch& batch, const AttentionLayer& layer,
                              KvStorage& kv) = 0;

  // Causal attention of every row's q over its sequence's KV up to its own position.
  // qkv as above -> out (n_rows, n_heads * head_dim)
  virtual void attention(const float* qkv, const RowBatch& batch, const AttentionLayer& layer,
                         const KvStorage& kv, Activations& out) = 0;

  // gated: out = act(gate_up[:, :n]) * gate_up[:, n:], gate_up (n_rows, 2n); else out =
  // act(gate_up), (n_rows, n).  n = out.cols
  virtual void activate(const float* gate_up, int n_rows, Activation kind, bool gated,
                        Activations& out) = 0;

  // Copies all layers of a block.
  virtual void copy_block(KvStorage& kv, int from, int to) = 0;

  // -- on the host ----------------------------------------------------------------------------

  // task(item, worker) for each item of [0, n), on the backend's threads; 0 <= worker <
  // n_threads(), one item of a worker at a time. Returns when all are done. work: the numbers
  // touched in all, by which threads are woken or left alone. `task` may neither throw nor call
  // the backend.
  virtual void for_each(int64_t n, int64_t work,
                        FunctionRef<void(int64_t item, int worker)> task) = 0;
};

// Factories of the devices. n_threads 0 = the cores this process may use. Throw kConfig.
std::unique_ptr<Backend> make_cpu_backend(int n_threads);
std::unique_ptr<Backend> make_cuda_backend();  // cuda/no_cuda.cc: always throws, as yet

}  // namespace pb
