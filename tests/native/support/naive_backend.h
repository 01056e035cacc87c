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
  std::string target() const override { return "naive"; }
  int n_threads() const override { return 1; }

  Matrix make_matrix(std::span<const TensorView> parts, std::span<const TensorView> biases,
                     DType dtype) override;
  std::string layout() const override { return "naive"; }
  MatrixBytes matrix_bytes(int n_out, int n_in, DType) const override;
  Vector make_vector(const TensorView& view) override;
  Activations make_activations(int max_rows, int cols, DType weights) override;
  RopeTable make_rope(std::span<const float> inv_freq, float factor, int n_positions) override;
  KvStorage make_kv(int n_blocks, int block_size, int n_layers, int n_kv_heads, int head_dim,
                    DType dtype) override;
  void prepare(int, int, int, int) override {}
  void plan(const RowBatch&, const KvStorage&) override {}
  void embed(std::span<const int32_t> ids, const Matrix& table, float* x) override;
  void embed_add(std::span<const int32_t> ids, const Matrix& table, float* x) override;
  void norm(const float* x, std::span<const int32_t> rows, const Norm& norm,
            Activations& out) override;
  void matmul(const Activations& x, int n_rows, const Matrix& w, float* y, Store store) override;
  void rope_and_store(float* qkv, const RowBatch& batch, const AttentionLayer& layer,
                      KvStorage& kv) override;
  void attention(const float* qkv, const RowBatch& batch, const AttentionLayer& layer,
                 const KvStorage& kv, Activations& out) override;
  void activate(const float* gate_up, int n_rows, Activation kind, bool gated,
                Activations& out) override;
  void for_each(int64_t n, int64_t, FunctionRef<void(int64_t item, int worker)> task) override;
  void copy_block(KvStorage& kv, int from, int to) override;

 private:
  static float finite(const TensorView& view, int64_t row, int64_t col, DType dtype);
  static const float* row_of(const Matrix& m, int row);
  static void set(Activations& out, int row, int col, double value);
  static void normalise(float* row, int n, const Norm& norm);
  static void rotate(float* head, const RopeTable& rope, int position);
  // One key (which = 0) or value (1): (head_dim) f32.
  static float* at(const KvStorage& kv, int layer, const int32_t* block_table, int position,
                   int head, int which);
  static void attend(const float* q, const SequenceRows& rows, int position, int head,
                     const AttentionLayer& layer, const KvStorage& kv, int row, Activations& out);
  static double activated(double x, Activation kind);
};

}  // namespace pb::test
