// A Backend that hands everything on to another one and takes the time of what it does.
#pragma once

#include <map>
#include <string>

#include "machine_limits.h"
#include "ops/backend.h"

namespace pb::bench {

class TimedBackend final : public Backend {
 public:
  // `inner` must outlive this. Products with `n_head_outputs` outputs are those of the head.
  TimedBackend(Backend& inner, int n_head_outputs)
      : inner_(inner), n_head_outputs_(n_head_outputs) {}

  // Seconds by operation since clear().
  const std::map<std::string, double>& seconds() const { return seconds_; }
  void clear() { seconds_.clear(); }

  std::string target() const override { return inner_.target(); }
  int n_threads() const override { return inner_.n_threads(); }

  Matrix make_matrix(std::span<const TensorView> parts, std::span<const TensorView> biases,
                     DType dtype) override {
    return inner_.make_matrix(parts, biases, dtype);
  }
  std::string layout() const override { return inner_.layout(); }
  MatrixBytes matrix_bytes(int n_out, int n_in, DType dtype) const override {
    return inner_.matrix_bytes(n_out, n_in, dtype);
  }
  Vector make_vector(const TensorView& view) override { return inner_.make_vector(view); }
  Activations make_activations(int max_rows, int cols, DType weights) override {
    return inner_.make_activations(max_rows, cols, weights);
  }
  RopeTable make_rope(std::span<const float> inv_freq, float attention_factor,
                      int n_positions) override {
    return inner_.make_rope(inv_freq, attention_factor, n_positions);
  }
  KvStorage make_kv(int n_blocks, int block_size, int n_layers, int n_kv_heads, int head_dim,
                    DType dtype) override {
    return inner_.make_kv(n_blocks, block_size, n_layers, n_kv_heads, head_dim, dtype);
  }
  void prepare(int max_rows, int n_heads, int n_kv_heads, int head_dim) override {
    inner_.prepare(max_rows, n_heads, n_kv_heads, head_dim);
  }

  void plan(const RowBatch& batch, const KvStorage& kv) override {
    timed("plan", [&] { inner_.plan(batch, kv); });
  }
  void embed(std::span<const int32_t> ids, const Matrix& table, float* x) override {
    timed("embed", [&] { inner_.embed(ids, table, x); });
  }
  void embed_add(std::span<const int32_t> ids, const Matrix& table, float* x) override {
    timed("embed", [&] { inner_.embed_add(ids, table, x); });
  }
  void norm(const float* x, std::span<const int32_t> rows, const Norm& norm,
            Activations& out) override {
    timed("norm", [&] { inner_.norm(x, rows, norm, out); });
  }
  void matmul(const Activations& x, int n_rows, const Matrix& w, float* y, Store store) override {
    timed(w.n_out == n_head_outputs_ ? "head" : "products",
          [&] { inner_.matmul(x, n_rows, w, y, store); });
  }
  void rope_and_store(float* qkv, const RowBatch& batch, const AttentionLayer& layer,
                      KvStorage& kv) override {
    timed("rope_and_store", [&] { inner_.rope_and_store(qkv, batch, layer, kv); });
  }
  void attention(const float* qkv, const RowBatch& batch, const AttentionLayer& layer,
                 const KvStorage& kv, Activations& out) override {
    timed("attention", [&] { inner_.attention(qkv, batch, layer, kv, out); });
  }
  void activate(const float* gate_up, int n_rows, Activation kind, bool gated,
                Activations& out) override {
    timed("activate", [&] { inner_.activate(gate_up, n_rows, kind, gated, out); });
  }
  void copy_block(KvStorage& kv, int from, int to) override { inner_.copy_block(kv, from, to); }
  void for_each(int64_t n, int64_t work,
                FunctionRef<void(int64_t item, int worker)> task) override {
    timed("sample", [&] { inner_.for_each(n, work, task); });
  }

 private:
  template <typename F>
  void timed(const char* name, F f) {
    const double begin = now();
    f();
    seconds_[name] += now() - begin;
  }

  Backend& inner_;
  int n_head_outputs_;
  std::map<std::string, double> seconds_;
};

}  // namespace pb::bench
