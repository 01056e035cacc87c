// The reference: every operation of Backend as its formula says, in double, one number at a time.
// What it rounds is what the contract says is rounded: weights and activations to their dtype,
// keys and values to the KV dtype.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "kv_reference.h"
#include "ops/backend.h"
#include "sampling/rows_to_sample.h"

namespace pb::test {

inline double element(const TensorView& view, int64_t row, int64_t col) {
  const int64_t i = row * view.row_stride + col * view.col_stride;
  if (view.dtype == DType::kF32) return static_cast<const float*>(view.data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(view.data)[i];
  return view.dtype == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

inline float rounded(double value, DType dtype) {
  const auto f = static_cast<float>(value);
  return dtype == DType::kBF16 ? bf16_to_f32(f32_to_bf16(f)) : f;
}

class NaiveBackend : public Backend {
 public:
  std::string device() const override { return "cpu"; }
  std::string target() const override { return "naive"; }
  int n_threads() const override { return 1; }

  PackedMatrix pack(std::span<const TensorView> parts, std::span<const TensorView> biases,
                    DType dtype) override;
  std::string layout() const override { return "naive"; }
  MatrixBytes matrix_bytes(int n_out, int n_in, DType, bool) const override;
  Matrix place(PackedMatrix packed) override;
  Vector make_vector(const TensorView& view) override;
  Buffer make_buffer(size_t bytes) override { return Buffer::on_host(AlignedBuffer(bytes)); }
  Activations make_activations(int max_rows, int cols, DType weights) override;
  RopeTable make_rope(std::span<const float> inv_freq, std::span<const float> factors,
                      std::span<const int32_t> axes) override;
  KvStorage make_kv(int n_blocks, int block_size, int n_layers, int n_kv_heads, int head_dim,
                    DType dtype) override;
  size_t memory_for_kv(size_t) override { return size_t{1} << 20; }
  void prepare(const PassShape& shape) override { vocab_size_ = size_t(shape.vocab_size); }

  void plan(const RowBatch& batch, const KvStorage&) override { batch_ = batch; }
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
  // The formulas of experts and of recurrent layers are in expert_fixture.h,
  // gated_delta_net_fixture.h and short_conv_fixture.h: no model with such layers is loaded for
  // this backend.
  ExpertOperations& experts() override { throw Error(ErrorCode::kConfig, "naive: no experts"); }
  RecurrentOperations& recurrent() override {
    throw Error(ErrorCode::kConfig, "naive: no recurrent layers");
  }
  void copy_block(KvStorage& kv, int from, int to) override;
  void finish(Heartbeat&) override {}
  void restart() override {}

 protected:
  const RowBatch& batch() const { return batch_; }
  // The samples of a call of sample().
  RowsToSample to_sample(const Buffer& logits, Rows rows, std::span<Sample> samples) const;

 private:
  static float finite(const TensorView& view, int64_t row, int64_t col, DType dtype);
  static const float* row_of(const Matrix& m, int row);
  static void set(Activations& out, int row, int col, double value);
  static void normalise(float* row, int n, const Norm& norm);
  void rotate(float* head, const RopeTable& rope, int row, int position) const;
  // One key (which = 0) or value (1): (head_dim) f32.
  static float* at(const KvStorage& kv, int layer, const int32_t* block_table, int position,
                   int head, int which);
  static void attend(const float* q, const SequenceRows& rows, int position, int head,
                     const AttentionLayer& layer, const KvStorage& kv, int row, Activations& out);
  static double activated(double x, Activation kind);

  RowBatch batch_;
  size_t vocab_size_ = 0;
};

}  // namespace pb::test
