// The operations that a model calls, and the device memory that they work on. Each device has one
// implementation of Backend, and of its parts ExpertOperations and RecurrentOperations.
//
// Contract of every operation: the result of a row depends on that row alone, bit for bit. In
// attention and recurrent layers it also depends on the KV or the state of the row's sequence. It
// does not depend on the number of rows, on the other rows, on how threads share the rows, or on
// the contents of padding.
//
// Time: operations take effect in the order of the calls, but a device may still execute them long
// after the calls have returned. Results in host memory (sample, download) are valid only after
// finish() has returned.
//
// Errors: the operations of a pass, from plan to copy_block, neither allocate nor throw. If one of
// them fails on a device, the next finish() throws, and the results of the pass are invalid. All
// other functions may throw.
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

// The models of a backend: the text model, and a vision tower.
inline constexpr int kMostModels = 2;

// The maximum sizes of the passes of a model, and the sizes that all its passes share.
struct PassShape {
  int model = 0;  // 0: the text model; 1: the vision tower
  int max_rows = 0;
  int max_sequences = 0;
  int n_positions = 0;  // per sequence
  int n_heads = 0;
  bool causal = true;                       // as in AttentionLayer, for all layers
  std::vector<LayerStorage> storages = {};  // at least one for keys and values
  GatedDeltaNetShape gated_delta_net = {};  // set if the model has such layers
  ShortConvShape short_conv = {};           // set if the model has such layers
  int state_group = 0;                      // the group whose block tables locate the states
  int vocab_size = 0;
  int block_size = 0;  // positions per KV block
  DType kv_dtype = DType::kF32;

  int given_columns = 0;  // most columns of RowBatch::given; 0: passes have no given rows

  bool has_states() const { return gated_delta_net.n_value_heads > 0 || short_conv.width > 0; }
};

// The parameters of attention in one layer.
struct AttentionLayer {
  int group = 0;    // the group of layers, which share block tables
  int storage = 0;  // index into PassShape::storages
  int layer = 0;    // index of the layer within the storage
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  float scale = 1.0f;
  float softcap = 0.0f;  // scores s become softcap * tanh(s / softcap); 0 = none
  // 0 = full attention; if not causal, the window applies on each side
  int sliding_window = 0;
  bool causal = true;                 // false: queries also attend to later rows of the pass
  const RopeTable* rope = nullptr;    // null = no rotation
  const RopeTable* q_rope = nullptr;  // rotation of q; null = same as rope
  // Null = no norm. A weight of size head_dim norms each head. A weight of the size of all heads of
  // q, or of k, norms these heads as one row, with RMSNorm only.
  const Norm* q_norm = nullptr;
  const Norm* k_norm = nullptr;
  bool norms_after_rope = false;  // true: q and k are normed after the rotation, else before it
  // (n_heads), or null for none. Attention sinks: the softmax of each head has one more logit that
  // belongs to no value, so that the weights of the values sum to less than 1.
  const Vector* sinks = nullptr;
  const Norm* v_norm = nullptr;  // its weight has the size head_dim
  // False: k and v are those of an earlier layer, and qkv contains q only.
  bool writes_kv = true;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // The name of the device for users: "cpu" or "cuda".
  virtual std::string device() const = 0;
  // The name of the instruction set or device architecture: "avx512_bf16", "avx2", "scalar", ...
  virtual std::string target() const = 0;
  // The number of threads on the host.
  virtual int n_threads() const = 0;
  // The greatest number of rows whose logits are computed at once. It bounds the buffer of logits,
  // and it determines how often a pass reads the weights of the head.
  virtual int output_rows() const { return 32; }
  // The greatest number of layer groups (kv/layer_groups.h) with block tables.
  virtual int max_layer_groups() const { return kMostLayerGroups; }
  // Returns the dtype of a matrix that represents tensors of dtype `tensor` natively, and for which
  // the backend has products.
  virtual DType native_dtype(DType tensor) const {
    return tensor == DType::kF16 ? DType::kBF16 : tensor;
  }
  // The greatest head size that attention supports, and whether it supports odd sizes.
  virtual int max_head_dim() const { return std::numeric_limits<int>::max(); }
  virtual bool takes_odd_heads() const { return true; }
  // True if activations made for weights of dtype `a` can also be multiplied with weights of `b`.
  virtual bool shares_activations(DType a, DType b) const { return a == b; }

  // -- at load ------------------------------------------------------------------------------

  // Stacks `parts` (each (n_i, n_in)) into one weight of sum(n_i) rows. `biases` has one entry per
  // part; an entry with data == nullptr means no bias. Throws kModelFormat if a part or a bias has
  // a number that is not finite. Blocks of the same dtype are packed unchanged, and all other
  // numbers are rounded to `dtype`.
  virtual PackedMatrix pack(std::span<const TensorView> parts, std::span<const TensorView> biases,
                            DType dtype) = 0;
  // Identifies the layout of packed weights, including its version. If two backends return the same
  // text, each can use the weights that the other has packed.
  virtual std::string layout() const = 0;
  // Returns the sizes of the buffers that pack() makes for n_out rows of n_in numbers.
  virtual MatrixBytes matrix_bytes(int n_out, int n_in, DType dtype, bool compressed) const = 0;
  // True if pack() may compress matrices of this dtype. The numbers of a matrix decide whether it
  // does.
  virtual bool compresses(DType) const { return false; }
  // Moves a packed matrix to the device. It may have been packed by an earlier process.
  virtual Matrix place(PackedMatrix packed) = 0;
  virtual Vector make_vector(const TensorView& view) = 0;
  // Makes a buffer filled with zeros.
  virtual Buffer make_buffer(size_t bytes) = 0;
  virtual Activations make_activations(int max_rows, int cols, DType weights) = 0;
  // inv_freq (head_dim / 2); factors (n_positions): the factor of the cosines and sines of each
  // position. Pairs with the frequency 0 are not changed, whatever the factor. axes (head_dim / 2):
  // as in RopeTable; empty: none.
  virtual RopeTable make_rope(std::span<const float> inv_freq, std::span<const float> factors,
                              std::span<const int32_t> axes = {}) = 0;
  virtual KvStorage make_kv(int n_blocks, int block_size, int n_layers, int n_kv_heads,
                            int head_dim, DType dtype) = 0;
  // Allocates the scratch memory of the passes of one model. Called once for each model, before its
  // first pass.
  virtual void prepare(const PassShape& shape) = 0;
  // Returns the bytes of device memory that KV may use now: the free memory minus a reserve.
  // mapped_weights is the size of weights in a mapped file, which may not be in memory yet.
  virtual size_t memory_for_kv(size_t mapped_weights) = 0;

  // -- in the forward pass --------------------------------------------------------------------

  // Called once per pass, before its operations, which use the rows of `batch`. The batch and
  // everything it points to must remain unchanged until finish() after the last operation has
  // returned.
  virtual void plan(const RowBatch& batch, const KvStorage& kv) = 0;

  // Calls `operations` to execute the planned pass from embed to the last sample; they must not
  // download. The operations and their buffers must be the same in all passes, and only the numbers
  // of rows may differ. A device may therefore record the operations and replay them, and it may
  // pass more rows than `rows`; the additional rows are padding, and their results are ignored.
  // samples (rows.n_logits_rows) receives the samples, and the operations must use the same span.
  virtual void run_pass(PassRows rows, std::span<Sample> /*samples*/,
                        FunctionRef<void(PassRows)> operations) {
    operations(rows);
  }

  // x[r] = table[tokens[r]] * scale for every row of the batch.  x (n_rows, n_in) f32
  virtual void embed(const Matrix& table, float scale, Buffer& x) = 0;

  // x[r] += table[positions[r]], for learned positions.
  virtual void embed_add(const Matrix& table, Buffer& x) = 0;

  // x[r] (=|+=) columns [first_column, first_column + columns) of the row that the batch gives for
  // r, for every given row.  x (n_rows, columns) f32
  virtual void give_rows(int first_column, int columns, Store store, Buffer& x) = 0;

  // out[i] = norm(x[row i of rows]).  x (*, hidden) f32 -> out (rows.n, hidden)
  virtual void norm(const Buffer& x, Rows rows, const Norm& norm, Activations& out) = 0;

  // x[r] = norm(x[r]).  x (n_rows, hidden) f32
  virtual void norm_in_place(Buffer& x, int n_rows, const Norm& norm) = 0;

  // x[r] = (x[r] + norm(y[r])) * norm.sum_scale, an RMSNorm.  y, x (n_rows, hidden) f32
  virtual void norm_add(const Buffer& y, int n_rows, const Norm& norm, Buffer& x) = 0;

  // out[r] = x[r], rounded to the format of product inputs.  x (n_rows, hidden) f32 -> out (n_rows,
  // hidden)
  virtual void round(const Buffer& x, int n_rows, Activations& out) = 0;

  // out[r, c] = x[r, order[c]], rounded to the format of product inputs. Makes the input of a
  // matrix whose columns are in another order. x (n_rows, out.cols) of kF32, order (out.cols) i32,
  // a permutation of the columns -> out (n_rows, out.cols)
  virtual void permute(const Activations& x, int n_rows, const Buffer& order, Activations& out) = 0;

  // y[r] (=|+=) x[r] W^T + bias.  x (n_rows, n_in), y (n_rows, w.y_columns()) f32
  virtual void matmul(const Activations& x, int n_rows, const Matrix& w, Buffer& y,
                      Store store) = 0;

  // Norms q and k in place if the layer has these norms, and rotates them, in the order of the
  // layer. Also norms v, and writes k and v of every row to the row's KV block. For a layer that
  // writes no KV, only q is processed.
  // qkv (n_rows, (n_heads + 2 * n_kv_heads) * head_dim) f32: q heads, then k heads, then v heads
  virtual void rope_and_store(Buffer& qkv, const AttentionLayer& layer, KvStorage& kv) = 0;

  // Computes attention of the q of every row over the KV of its sequence up to the row's own
  // position. If attention is not causal, up to the sequence's end_position().
  // qkv as above -> out (n_rows, n_heads * head_dim)
  virtual void attention(const Buffer& qkv, const AttentionLayer& layer, const KvStorage& kv,
                         Activations& out) = 0;

  // If gated: out = act(gate_up[:, :n]) * gate_up[:, n:], with gate_up (n_rows, 2n). Otherwise out
  // = act(gate_up), with gate_up (n_rows, n). n is out.cols. `kind` is not kXielu.
  virtual void activate(const Buffer& gate_up, int n_rows, Activation kind, bool gated,
                        Activations& out) = 0;

  // out = f(x), the xIELU activation with the parameters of the layer.  x (n_rows, out.cols) f32
  virtual void xielu(const Buffer& x, int n_rows, const Xielu& of_layer, Activations& out) = 0;

  // out = act(gate) * factors[:, first : first + out.cols].
  // gate (n_rows, out.cols), factors (n_rows, n_factors) f32
  virtual void multiply_activated(const Buffer& gate, int n_rows, Activation kind,
                                  const Buffer& factors, int n_factors, int first,
                                  Activations& out) = 0;

  // logits *= scale, then softcap * tanh(logits / softcap) unless softcap is 0.
  // logits (n_rows, vocab_size) f32
  virtual void scale_logits(Buffer& logits, int n_rows, float scale, float softcap) = 0;

  // Writes to samples[rows.first + i] the sample that request rows.first + i of the batch defines
  // for row i of the logits. logits (rows.n, vocab_size) f32, of kLogitsRows. samples
  // (logits_rows.size()) is the same span in all calls of a pass, which process the rows in order.
  // Samples after a rejected draft token are undefined and must be ignored: a device samples all
  // rows at once, and the CPU stops at the rejected token.
  virtual void sample(const Buffer& logits, Rows rows, std::span<Sample> samples) = 0;

  // Copies the first to.size() bytes of `from` to host memory.
  virtual void download(const Buffer& from, std::span<std::byte> to) = 0;

  // The operations of mixtures of experts. The reference is valid as long as the backend.
  virtual ExpertOperations& experts() = 0;

  // The operations of recurrent layers. The reference is valid as long as the backend.
  virtual RecurrentOperations& recurrent() = 0;

  // Copies the KV of block `from` to block `to`, in all layers.
  virtual void copy_block(KvStorage& kv, int from, int to) = 0;

  // -- around a pass --------------------------------------------------------------------------

  // Waits until all earlier operations have completed. Throws kEngine if one of them has failed.
  // Beats `heartbeat` only when the device makes progress, and not merely because time has passed.
  virtual void finish(Heartbeat& heartbeat) = 0;

  // Discards the state of a failed pass except the KV. Throws kEngine if the device cannot compute
  // any more, or std::bad_alloc; nothing is changed in these cases.
  virtual void restart() = 0;
};

// Create the backends of the devices. n_threads = 0 means available_cores(). They throw kConfig.
std::unique_ptr<Backend> make_cpu_backend(int n_threads);
std::unique_ptr<Backend> make_cuda_backend(int n_threads);

}  // namespace pb
