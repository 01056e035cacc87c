// A backend as the host sees a device with memory of its own.
//
// It computes with another backend and is as inconvenient as a device may be:
//   - buffers lie on pages that nobody may touch but while an operation runs;
//   - samples and downloads are there after finish(), and until then something else is;
//   - it samples all rows of a draft, those after a wrong token too;
//   - what goes wrong is thrown by finish();
//   - a pass greater than prepare() was told of is an error.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops/backend.h"

namespace pb::test {

// Pages that can be touched between open() and close() only.
class ClosedPages {
 public:
  ClosedPages();
  ~ClosedPages();
  ClosedPages(const ClosedPages&) = delete;
  ClosedPages& operator=(const ClosedPages&) = delete;

  // Memory of zeros on pages of its own, never used again. Throws std::bad_alloc.
  std::byte* take(size_t bytes);
  void open() { protect(true); }
  void close() { protect(false); }

 private:
  void protect(bool is_open);

  std::byte* first_;
  size_t taken_ = 0;  // bytes, whole pages
  bool is_open_ = false;
};

class DeviceDouble : public Backend {
 public:
  explicit DeviceDouble(std::unique_ptr<Backend> inner);

  // Has the next finish() throw kEngine.
  void fail() { fails_ = true; }
  // Has restart() throw kEngine from here on.
  void die() { is_dead_ = true; }

  std::string device() const override { return "double"; }
  std::string target() const override { return inner_->target(); }
  int n_threads() const override { return inner_->n_threads(); }
  DType native_dtype(DType tensor) const override { return inner_->native_dtype(tensor); }
  int max_head_dim() const override { return inner_->max_head_dim(); }
  bool takes_odd_heads() const override { return inner_->takes_odd_heads(); }
  bool shares_activations(DType a, DType b) const override {
    return inner_->shares_activations(a, b);
  }

  PackedMatrix pack(std::span<const TensorView> parts, std::span<const TensorView> biases,
                    DType dtype) override;
  std::string layout() const override { return inner_->layout(); }
  MatrixBytes matrix_bytes(int n_out, int n_in, DType dtype, bool compressed) const override;
  bool compresses(DType dtype) const override { return inner_->compresses(dtype); }
  Matrix place(PackedMatrix packed) override;
  Vector make_vector(const TensorView& view) override;
  Buffer make_buffer(size_t bytes) override;
  Activations make_activations(int max_rows, int cols, DType weights) override;
  RopeTable make_rope(std::span<const float> inv_freq, std::span<const float> factors,
                      std::span<const int32_t> axes) override;
  KvStorage make_kv(int n_blocks, int block_size, int n_layers, int n_kv_heads, int head_dim,
                    DType dtype) override;
  void prepare(const PassShape& shape) override;
  size_t memory_for_kv(size_t mapped_weights) override {
    return inner_->memory_for_kv(mapped_weights);
  }

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
  // Not wrapped: an operation of a pass would touch closed pages, which ends the program.
  ExpertOperations& experts() override { return inner_->experts(); }
  RecurrentOperations& recurrent() override { return inner_->recurrent(); }
  void copy_block(KvStorage& kv, int from, int to) override;
  void finish(Heartbeat& heartbeat) override;
  void restart() override;

 private:
  // Opens the pages while it lives.
  class Operation;
  struct PendingSamples {
    Rows rows;
    std::span<Sample> to;  // of the pass
  };
  struct PendingBytes {
    size_t first;  // of downloaded_
    std::span<std::byte> to;
  };

  Buffer moved(Buffer from);
  Vector moved(Vector v);

  std::unique_ptr<Backend> inner_;
  std::shared_ptr<ClosedPages> pages_;
  std::array<PassShape, kMostModels> shapes_;
  PassShape shape_;  // of the planned pass
  std::vector<SampleRequest> requests_;
  std::vector<Sample> samples_;
  std::vector<std::byte> downloaded_;
  std::vector<PendingSamples> pending_samples_;
  std::vector<PendingBytes> pending_bytes_;
  std::string problem_;  // with the pass
  bool fails_ = false;
  bool is_dead_ = false;
};

}  // namespace pb::test
