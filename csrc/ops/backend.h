// The operations a model may call, and the memory they work on. With ExpertOperations, which is
// a part of it, the only virtual class of the native code; one implementation a device.
//
// Contract of every operation: a row's result depends on that row (and, in attention, on the
// KV of its own sequence) alone, bit for bit: never on how many rows there are, which rows they
// are, how threads share them, or what lies in padding.
//
// Time: operations take effect in the order of the calls, but a device may be at work on them long
// after they have returned. Results in the host's memory (sample, download) are valid once finish()
// has returned, and not before.
//
// Errors: operations of a pass, from plan to copy_block, allocate nothing and throw nothing. If one
// of them fails on a device, the next finish() throws, and the results of the pass are invalid. All
// others may throw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "base/function_ref.h"
#include "base/heartbeat.h"
#include "config/config.h"
#include "formats/dtype.h"
#include "formats/tensors/tensor_view.h"
#include "ops/buffer.h"
#include "ops/experts.h"
#include "ops/kv_segments.h"
#include "ops/recurrent.h"
#include "ops/row_batch.h"
#include "ops/tensors.h"
#include "ops/xielu.h"

namespace pb {

// The most that passes will have, and the sizes that all of them share.
struct PassShape {
  int max_rows = 0;
  int max_sequences = 0;
  int n_positions = 0;  // of a sequence
  int n_heads = 0;
  bool causal = true;                       // as in AttentionLayer, in all layers
  std::vector<LayerStorage> storages = {};  // of keys and values; at least one
  GatedDeltaNetShape gated_delta_net = {};  // of recurrent layers, if there are any of the kind
  ShortConvShape short_conv = {};           // likewise
  int state_group = 0;                      // whose block tables say where their states are
  int vocab_size = 0;
  int block_size = 0;  // of KV
  DType kv_dtype = DType::kF32;

  bool has_states() const { return gated_delta_net.n_value_heads > 0 || short_conv.width > 0; }
};

// The per-layer inputs of attention besides the rows.
struct AttentionLayer {
  int group = 0;    // of layers, which share block tables
  int storage = 0;  // number of PassShape::storages
  int layer = 0;    // of the storage
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  float scale = 1.0f;
  float softcap = 0.0f;               // scores s become softcap * tanh(s / softcap); 0 = none
  int sliding_window = 0;             // 0 = full; if not causal, on each side
  bool causal = true;                 // else queries see the rows after them in the pass, too
  const RopeTable* rope = nullptr;    // null = no rotation
  const RopeTable* q_rope = nullptr;  // of q; null = rope
  // Null = none. A weight of (head_dim) norms each head; one of all heads of q, or of k, norms them
  // as one row: RMSNorm only.
  const Norm* q_norm = nullptr;
  const Norm* k_norm = nullptr;
  bool norms_after_rope = false;  // the norms of heads of q and k; else before it
  // (n_heads), null = none: a logit of each head that is added to its softmax's sum, so that what
  // a query gets of all values may be less than 1.
  const Vector* sinks = nullptr;
  const Norm* v_norm = nullptr;  // of (head_dim) alone
  bool writes_kv = true;         // else k and v are those of an earlier layer, and not in qkv
};

class Backend {
 public:
  virtual ~Backend() = default;

  // "cpu", "cuda": as users name it.
  virtual std::string device() const = 0;
  // "avx512_bf16", "avx2", "scalar", ...
  virtual std::string target() const = 0;
  // Threads on the host.
  virtual int n_threads() const = 0;
  // Rows that the head takes at once, at most: what bounds the buffer of logits, and how often a
  // pass reads the head.
  virtual int output_rows() const { return 32; }
  // How many groups of layers (kv/layer_groups.h) it can keep block tables for.
  virtual int max_layer_groups() const { return kMostLayerGroups; }
  // The dtype of a matrix that keeps what tensors of dtype `tensor` hold: there are products of it.
  virtual DType native_dtype(DType tensor) const {
    return tensor == DType::kF16 ? DType::kBF16 : tensor;
  }
  // The widest heads that attention takes, and whether their size may be odd.
  virtual int max_head_dim() const { return std::numeric_limits<int>::max(); }
  virtual bool takes_odd_heads() const { return true; }
  // True if activations made for weights of dtype `a` can be used with weights of `b`, too.
  virtual bool shares_activations(DType a, DType b) const { return a == b; }

  // -- at load ------------------------------------------------------------------------------

  // Stacks `parts` (each (n_i, n_in)) into one weight of sum(n_i) rows. `biases`: one a part, with
  // data == nullptr for none. Throws kModelFormat where a part or bias holds a number that is not
  // finite. Blocks of the same dtype are taken as they are, all else is rounded to it.
  virtual PackedMatrix pack(std::span<const TensorView> parts, std::span<const TensorView> biases,
                            DType dtype) = 0;
  // The layout of what pack makes, its version included: where two backends say the same, one can
  // compute with what the other has packed.
  virtual std::string layout() const = 0;
  // The sizes of the buffers that pack() makes of n_out rows of n_in.
  virtual MatrixBytes matrix_bytes(int n_out, int n_in, DType dtype, bool compressed) const = 0;
  // True if pack() may compress matrices of this dtype; whether it does depends on their numbers.
  virtual bool compresses(DType) const { return false; }
  // Brings what pack made, now or at an earlier start, to the device.
  virtual Matrix place(PackedMatrix packed) = 0;
  virtual Vector make_vector(const TensorView& view) = 0;
  // Makes a buffer of zeros.
  virtual Buffer make_buffer(size_t bytes) = 0;
  virtual Activations make_activations(int max_rows, int cols, DType weights) = 0;
  // inv_freq (head_dim / 2); factors (n_positions): of the cosines and sines of each position. A
  // pair whose frequency is 0 stays as it is, whatever the factor.
  virtual RopeTable make_rope(std::span<const float> inv_freq, std::span<const float> factors) = 0;
  virtual KvStorage make_kv(int n_blocks, int block_size, int n_layers, int n_kv_heads,
                            int head_dim, DType dtype) = 0;
  // Makes the scratch of passes. Called once, before any pass.
  virtual void prepare(const PassShape& shape) = 0;
  // Bytes of the device's memory that KV may take now: what is free, less what has to stay free.
  // mapped_weights: bytes of weights that lie in a mapped file, and so may not be in memory yet.
  virtual size_t memory_for_kv(size_t mapped_weights) = 0;

  // -- in the forward pass --------------------------------------------------------------------

  // Once a pass, before its operations, which know the rows from here. The batch and all that it
  // points to must stay as they are until the finish() after the last of them.
  virtual void plan(const RowBatch& batch, const KvStorage& kv) = 0;

  // Calls `operations` for those of the planned pass, from embed to the last sample; they may
  // download nothing. In all passes they must be the same, on the same buffers, but for the numbers
  // of rows that they are called with. So a device may keep what they were and repeat that, and it
  // may call them with more rows than `rows`: those after them are padding, whose results are
  // nobody's. samples (rows.n_logits_rows): where the samples go, which operations then have alike.
  virtual void run_pass(PassRows rows, std::span<Sample> /*samples*/,
                        FunctionRef<void(PassRows)> operations) {
    operations(rows);
  }

  // x[r] = table[tokens[r]] * scale for every row of the batch.  x (n_rows, n_in) f32
  virtual void embed(const Matrix& table, float scale, Buffer& x) = 0;

  // x[r] += table[positions[r]]: learned positions.
  virtual void embed_add(const Matrix& table, Buffer& x) = 0;

  // out[i] = norm(x[row i of rows]).  x (*, hidden) f32 -> out (rows.n, hidden)
  virtual void norm(const Buffer& x, Rows rows, const Norm& norm, Activations& out) = 0;

  // x[r] = norm(x[r]).  x (n_rows, hidden) f32
  virtual void norm_in_place(Buffer& x, int n_rows, const Norm& norm) = 0;

  // x[r] = (x[r] + norm(y[r])) * norm.sum_scale, an RMSNorm.  y, x (n_rows, hidden) f32
  virtual void norm_add(const Buffer& y, int n_rows, const Norm& norm, Buffer& x) = 0;

  // out[r] = x[r], rounded as products take it.  x (n_rows, hidden) f32 -> out (n_rows, hidden)
  virtual void round(const Buffer& x, int n_rows, Activations& out) = 0;

  // out[r, c] = x[r, order[c]], rounded as products take it: what products take whose matrix has
  // its columns in that order.  x (n_rows, out.cols) of kF32, order (out.cols) i32, which names
  // every column once -> out (n_rows, out.cols)
  virtual void permute(const Activations& x, int n_rows, const Buffer& order, Activations& out) = 0;

  // y[r] (=|+=) x[r] W^T + bias.  x (n_rows, n_in), y (n_rows, w.y_columns()) f32
  virtual void matmul(const Activations& x, int n_rows, const Matrix& w, Buffer& y,
                      Store store) = 0;

  // Norms (if any) and rotates q and k in place, in the layer's order, norms v, and writes k and v
  // of every row to its block; of a layer that writes none, q alone. qkv (n_rows, (n_heads + 2 *
  // n_kv_heads) * head_dim) f32: q heads, then k heads, then v heads
  virtual void rope_and_store(Buffer& qkv, const AttentionLayer& layer, KvStorage& kv) = 0;

  // Attention of every row's q over its sequence's KV up to its own position, or, if not causal, up
  // to the sequence's last row of the pass.
  // qkv as above -> out (n_rows, n_heads * head_dim)
  virtual void attention(const Buffer& qkv, const AttentionLayer& layer, const KvStorage& kv,
                         Activations& out) = 0;

  // gated: out = act(gate_up[:, :n]) * gate_up[:, n:], gate_up (n_rows, 2n); else out =
  // act(gate_up), (n_rows, n).  n = out.cols. `kind` is not kXielu.
  virtual void activate(const Buffer& gate_up, int n_rows, Activation kind, bool gated,
                        Activations& out) = 0;

  // out = f(x), the activation with the numbers `of_layer`.  x (n_rows, out.cols) f32
  virtual void xielu(const Buffer& x, int n_rows, const Xielu& of_layer, Activations& out) = 0;

  // out = act(gate) * factors[:, first : first + out.cols].
  // gate (n_rows, out.cols), factors (n_rows, n_factors) f32
  virtual void multiply_activated(const Buffer& gate, int n_rows, Activation kind,
                                  const Buffer& factors, int n_factors, int first,
                                  Activations& out) = 0;

  // logits *= scale, then softcap * tanh(logits / softcap) unless softcap is 0.
  // logits (n_rows, vocab_size) f32
  virtual void scale_logits(Buffer& logits, int n_rows, float scale, float softcap) = 0;

  // samples[rows.first + i] = what request rows.first + i of the batch asks of row i of the logits.
  // logits (rows.n, vocab_size) f32, of kLogitsRows; samples (logits_rows.size()): the same in all
  // calls of a pass, which go through the rows in order. Samples after a draft token that was wrong
  // are to be ignored, and may be anything: a device samples all rows at once, the CPU stops there.
  virtual void sample(const Buffer& logits, Rows rows, std::span<Sample> samples) = 0;

  // Copies the first to.size() bytes of `from` to the host's memory.
  virtual void download(const Buffer& from, std::span<std::byte> to) = 0;

  // The operations of mixtures of experts. They live as long as the backend.
  virtual ExpertOperations& experts() = 0;

  // The operations of recurrent layers. They live as long as the backend.
  virtual RecurrentOperations& recurrent() = 0;

  // Copies all layers of a block.
  virtual void copy_block(KvStorage& kv, int from, int to) = 0;

  // -- around a pass --------------------------------------------------------------------------

  // Waits until all operations so far are done. Throws kEngine where one of them has failed. Beats
  // `heartbeat` when it sees the device get on, and never because time has gone by.
  virtual void finish(Heartbeat& heartbeat) = 0;

  // Forgets what a pass that failed has left behind, but for KV. Throws kEngine where the device
  // will not compute again, std::bad_alloc; then nothing has changed.
  virtual void restart() = 0;
};

// Factories of the devices. n_threads 0 = available_cores(). Throw kConfig.
std::unique_ptr<Backend> make_cpu_backend(int n_threads);
std::unique_ptr<Backend> make_cuda_backend(int n_threads);

}  // namespace pb
