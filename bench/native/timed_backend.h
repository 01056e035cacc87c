// A Backend that hands everything on to another one and takes the time of what it does.
#pragma once

#include <map>
#include <string>
#include <utility>

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

  std::string device() const override { return inner_.device(); }
  std::string target() const override { return inner_.target(); }
  int n_threads() const override { return inner_.n_threads(); }
  DType native_dtype(DType tensor) const override { return inner_.native_dtype(tensor); }
  bool shares_activations(DType a, DType b) const override {
    return inner_.shares_activations(a, b);
  }

  PackedMatrix pack(std::span<const TensorView> parts, std::span<const TensorView> biases,
                    DType dtype) override {
    return inner_.pack(parts, biases, dtype);
  }
  std::string layout() const override { return inner_.layout(); }
  MatrixBytes matrix_bytes(int n_out, int n_in, DType dtype, bool compressed) const override {
    return inner_.matrix_bytes(n_out, n_in, dtype, compressed);
  }
  bool compresses(DType dtype) const override { return inner_.compresses(dtype); }
  Matrix place(PackedMatrix packed) override { return inner_.place(std::move(packed)); }
  Vector make_vector(const TensorView& view) override { return inner_.make_vector(view); }
  Buffer make_buffer(size_t bytes) override { return inner_.make_buffer(bytes); }
  Activations make_activations(int max_rows, int cols, DType weights) override {
    return inner_.make_activations(max_rows, cols, weights);
  }
  RopeTable make_rope(std::span<const float> inv_freq, std::span<const float> factors,
                      std::span<const int32_t> axes) override {
    return inner_.make_rope(inv_freq, factors, axes);
  }
  KvStorage make_kv(int n_blocks, int block_size, int n_layers, int n_kv_heads, int head_dim,
                    DType dtype) override {
    return inner_.make_kv(n_blocks, block_size, n_layers, n_kv_heads, head_dim, dtype);
  }
  void prepare(const PassShape& shape) override { inner_.prepare(shape); }
  size_t memory_for_kv(size_t mapped_weights) override {
    return inner_.memory_for_kv(mapped_weights);
  }

  void plan(const RowBatch& batch, const KvStorage& kv) override {
    timed("plan", [&] { inner_.plan(batch, kv); });
  }
  void embed(const Matrix& table, float scale, Buffer& x) override {
    timed("embed", [&] { inner_.embed(table, scale, x); });
  }
  void embed_add(const Matrix& table, Buffer& x) override {
    timed("embed", [&] { inner_.embed_add(table, x); });
  }
  void give_rows(int first_column, int columns, Store store, Buffer& x) override {
    timed("embed", [&] { inner_.give_rows(first_column, columns, store, x); });
  }
  void norm(const Buffer& x, Rows rows, const Norm& norm, Activations& out) override {
    timed("norm", [&] { inner_.norm(x, rows, norm, out); });
  }
  void norm_in_place(Buffer& x, int n_rows, const Norm& norm) override {
    timed("norm", [&] { inner_.norm_in_place(x, n_rows, norm); });
  }
  void norm_add(const Buffer& y, int n_rows, const Norm& norm, Buffer& x) override {
    timed("norm", [&] { inner_.norm_add(y, n_rows, norm, x); });
  }
  void round(const Buffer& x, int n_rows, Activations& out) override {
    timed("norm", [&] { inner_.round(x, n_rows, out); });
  }
  void permute(const Activations& x, int n_rows, const Buffer& order, Activations& out) override {
    timed("permute", [&] { inner_.permute(x, n_rows, order, out); });
  }
  void matmul(const Activations& x, int n_rows, const Matrix& w, Buffer& y, Store store) override {
    timed(w.n_out == n_head_outputs_ ? "head" : "products",
          [&] { inner_.matmul(x, n_rows, w, y, store); });
  }
  void rope_and_store(Buffer& qkv, const AttentionLayer& layer, KvStorage& kv) override {
    timed("rope_and_store", [&] { inner_.rope_and_store(qkv, layer, kv); });
  }
  void attention(const Buffer& qkv, const AttentionLayer& layer, const KvStorage& kv,
                 Activations& out) override {
    timed("attention", [&] { inner_.attention(qkv, layer, kv, out); });
  }
  void activate(const Buffer& gate_up, int n_rows, Activation kind, bool gated,
                Activations& out) override {
    timed("activate", [&] { inner_.activate(gate_up, n_rows, kind, gated, out); });
  }
  void xielu(const Buffer& x, int n_rows, const Xielu& of_layer, Activations& out) override {
    timed("activate", [&] { inner_.xielu(x, n_rows, of_layer, out); });
  }
  int max_head_dim() const override { return inner_.max_head_dim(); }
  bool takes_odd_heads() const override { return inner_.takes_odd_heads(); }
  void multiply_activated(const Buffer& gate, int n_rows, Activation kind, const Buffer& factors,
                          int n_factors, int first, Activations& out) override {
    timed("activate",
          [&] { inner_.multiply_activated(gate, n_rows, kind, factors, n_factors, first, out); });
  }
  void scale_logits(Buffer& logits, int n_rows, float scale, float softcap) override {
    timed("scale_logits", [&] { inner_.scale_logits(logits, n_rows, scale, softcap); });
  }
  void sample(const Buffer& logits, Rows rows, std::span<Sample> samples) override {
    timed("sample", [&] { inner_.sample(logits, rows, samples); });
  }
  void download(const Buffer& from, std::span<std::byte> to) override {
    timed("download", [&] { inner_.download(from, to); });
  }
  ExpertOperations& experts() override { return inner_.experts(); }
  RecurrentOperations& recurrent() override { return inner_.recurrent(); }
  void copy_block(KvStorage& kv, int from, int to) override { inner_.copy_block(kv, from, to); }
  void finish(Heartbeat& heartbeat) override {
    timed("finish", [&] { inner_.finish(heartbeat); });
  }
  void restart() override { inner_.restart(); }

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
