// The Backend of the CPU.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "cpu/attention/attention.h"
#include "cpu/dispatch/kernels.h"
#include "cpu/experts.h"
#include "cpu/recurrent.h"
#include "ops/backend.h"
#include "os/thread_pool.h"
#include "sampling/sampler.h"

namespace pb {

// Makes a backend like make_cpu_backend(n_threads), for a named target; "" is the best target for
// this CPU. Throws kConfig.
std::unique_ptr<Backend> make_cpu_backend(int n_threads, const std::string& target);

namespace cpu {

class CpuBackend final : public Backend {
 public:
  CpuBackend(int n_threads, const Kernels& kernels);

  std::string device() const override { return "cpu"; }
  std::string target() const override { return kernels_.name; }
  int n_threads() const override { return pool_.n_threads(); }
  bool shares_activations(DType a, DType b) const override {
    return product(a).row == product(b).row;
  }

  PackedMatrix pack(std::span<const TensorView> parts, std::span<const TensorView> biases,
                    DType dtype) override;
  std::string layout() const override;
  MatrixBytes matrix_bytes(int n_out, int n_in, DType dtype, bool compressed) const override;
  bool compresses(DType dtype) const override {
    return dtype == DType::kBF16 && kernels_.compressed_bf16.tiles != nullptr;
  }
  Matrix place(PackedMatrix packed) override;
  Vector make_vector(const TensorView& view) override;
  Buffer make_buffer(size_t bytes) override;
  Activations make_activations(int max_rows, int cols, DType weights) override;
  RopeTable make_rope(std::span<const float> inv_freq, std::span<const float> factors,
                      std::span<const int32_t> axes) override;
  KvStorage make_kv(int n_blocks, int block_size, int n_layers, int n_kv_heads, int head_dim,
                    DType dtype) override;
  void prepare(const PassShape& shape) override;
  // Returns half of the available memory; the rest is for the program that contains the engine.
  size_t memory_for_kv(size_t mapped_weights) override;

  void plan(const RowBatch& batch, const KvStorage& kv) override;
  void embed(const Matrix& table, float scale, Buffer& x) override;
  void embed_add(const Matrix& table, Buffer& x) override;
  void give_rows(int first_column, int columns, Store store, Buffer& x) override;
  void norm(const Buffer& x, Rows rows, const Norm& norm, Activations& out) override;
  void norm_in_place(Buffer& x, int n_rows, const Norm& norm) override;
  void norm_add(const Buffer& y, int n_rows, const Norm& norm, Buffer& x) override;
  void round(const Buffer& x, int n_rows, Activations& out) override;
  void permute(const Activations& x, int n_rows, const Buffer& order, Activations& out) override;
  void matmul(const Activations& x, int n_rows, const Matrix& w, Buffer& y, Store store) override;
  void rope_and_store(Buffer& qkv, const AttentionLayer& layer, KvStorage& kv) override;
  void attention(const Buffer& qkv, const AttentionLayer& layer, const KvStorage& kv,
                 Activations& out) override;
  void activate(const Buffer& gate_up, int n_rows, Activation kind, bool gated,
                Activations& out) override;
  void xielu(const Buffer& x, int n_rows, const Xielu& of_layer, Activations& out) override;
  void multiply_activated(const Buffer& gate, int n_rows, Activation kind, const Buffer& factors,
                          int n_factors, int first, Activations& out) override;
  void scale_logits(Buffer& logits, int n_rows, float scale, float softcap) override;
  void sample(const Buffer& logits, Rows rows, std::span<Sample> samples) override;
  void download(const Buffer& from, std::span<std::byte> to) override;
  ExpertOperations& experts() override { return experts_; }
  RecurrentOperations& recurrent() override { return recurrent_; }
  void copy_block(KvStorage& kv, int from, int to) override;

  void finish(Heartbeat&) override {}  // every operation is synchronous
  void restart() override;

 private:
  friend class CpuExperts;
  friend class CpuRecurrent;
  static constexpr int64_t kWorthThreads = 32768;  // smaller work does not wake threads
  static constexpr int kItemsPerThread = 4;        // least number of items of a loop, for balance

  // Runs parallel_for, but in one chunk, which wakes no thread, if `work` (the numbers that are
  // read or multiplied in total) is too small to share. The result does not depend on it.
  template <typename Body>
  void for_range(int64_t n, int64_t grain, int64_t work, Body&& body) {
    pool_.parallel_for(n, work < kWorthThreads ? std::max<int64_t>(1, n) : grain, body);
  }
  // Runs for_range over rows, or equal parts of them, with many neighbours in a chunk: taking a
  // chunk costs a thread as much as a short row, and keys of neighbouring positions share cache
  // lines.
  template <typename Body>
  void for_rows(int64_t n, int64_t work, Body&& body) {
    const int64_t chunks = int64_t{kItemsPerThread} * pool_.n_threads();
    for_range(n, std::max<int64_t>(1, n / chunks), work, body);
  }
  // Calls kernel(gate, up, out, begin, end) for all columns of the rows; `up` is null unless
  // `gated`.
  void activate_rows(const Buffer& gate_up, int n_rows, bool gated, Activations& out,
                     FunctionRef<void(const float*, const float*, const RowOut&, int, int)> kernel);
  void gather(const int32_t* ids, const Matrix& table, bool add, float scale, float* x);
  const ProductKernel& product(DType weights, bool compressed = false) const;
  const ProductKernel& product(const Matrix& w) const { return product(w.dtype, w.compressed); }
  ActivationKernel activation(Activation kind) const;
  RowsOut rows_of(Activations& a) const;

  const Kernels& kernels_;
  ThreadPool pool_;
  AttentionRunner attention_;
  CpuExperts experts_;
  CpuRecurrent recurrent_;
  bool prefetch_quick_;     // for GemmArgs
  size_t scratch_bytes_;    // per thread
  AlignedBuffer scratch_;   // (threads, scratch_bytes_)
  AlignedBuffer attended_;  // (max_rows, n_heads * head_dim) f32, if heads are not whole groups
  int vocab_size_ = 0;
  std::vector<Sampler> samplers_;  // (threads)
  RowBatch batch_;                 // the batch of the last plan()
  std::vector<const SequenceRows*> sequence_of_row_;
};

}  // namespace cpu
}  // namespace pb
