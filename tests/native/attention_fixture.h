// Sequences with random q, k and v, run through rope_and_store and attention in any chunks.
#pragma once

#include <algorithm>

#include "cpu_fixture.h"

namespace pb::test {

struct AttentionCase {
  int n_heads = 4;
  int n_kv_heads = 2;
  int head_dim = 64;
  int block_size = 32;
  int sliding_window = 0;
  DType kv_dtype = DType::kF32;
  DType out_dtype = DType::kF32;

  int row_size() const { return (n_heads + 2 * n_kv_heads) * head_dim; }
  int out_size() const { return n_heads * head_dim; }
};

// One backend with a KV storage whose every byte is 0xff, which is NaN in f32 and in bf16: whatever
// reads a slot that was not written, shows.
class AttentionBench {
 public:
  AttentionBench(const AttentionCase& c, const cpu::Kernels& target, int n_threads, int n_pages,
                 int max_rows)
      : case_(c),
        target_(target),
        max_rows_(max_rows),
        backend_(make_cpu_backend(n_threads, target.name)) {
    kv_ = backend_->make_kv(n_pages, c.block_size, kLayers, c.n_kv_heads, c.head_dim, c.kv_dtype);
    std::memset(kv_.data.as<std::byte>(), 0xff, kv_.data.bytes());
    backend_->prepare(max_rows, c.n_heads, c.head_dim);
    out_ = backend_->make_activations(max_rows, c.out_size(), c.out_dtype);
    for (int i = 0; i < c.head_dim / 2; ++i) {
      inv_freq_.push_back(static_cast<float>(std::pow(1000.0, -2.0 * i / c.head_dim)));
    }
    rope_ = backend_->make_rope(inv_freq_, 1.0f, 2048);
    layer_.layer = 1;
    layer_.n_heads = c.n_heads;
    layer_.n_kv_heads = c.n_kv_heads;
    layer_.head_dim = c.head_dim;
    layer_.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
    layer_.sliding_window = c.sliding_window;
    layer_.rope = c.head_dim % 2 == 0 ? &rope_ : nullptr;
  }

  // One pass. Each entry: the sequence's rows (pages, first position) and where they start in its
  // qkv (positions, row_size). Returns the rows' outputs in the order given; `rotated` gets their
  // qkv.
  struct Part {
    const std::vector<float>* qkv;
    const std::vector<int32_t>* pages;
    int first_position;
    int n_rows;
  };
  std::vector<std::vector<float>> pass(const std::vector<Part>& parts,
                                       std::vector<float>* rotated = nullptr) {
    std::vector<float> qkv;
    std::vector<SequenceRows> sequences;
    std::vector<int32_t> positions;
    const int row_size = case_.row_size();
    for (const Part& part : parts) {
      sequences.push_back({static_cast<int>(positions.size()), part.n_rows, part.first_position,
                           part.pages->data()});
      for (int r = 0; r < part.n_rows; ++r) positions.push_back(part.first_position + r);
      const float* from = part.qkv->data() + static_cast<size_t>(part.first_position) * row_size;
      qkv.insert(qkv.end(), from, from + static_cast<size_t>(part.n_rows) * row_size);
    }
    RowBatch batch;
    batch.n_rows = static_cast<int>(positions.size());
    batch.positions = positions.data();
    batch.sequences = sequences;
    backend_->rope_and_store(qkv.data(), batch, layer_, kv_);
    backend_->attention(qkv.data(), batch, layer_, kv_, out_);
    std::vector<std::vector<float>> out;
    for (int r = 0; r < batch.n_rows; ++r) out.push_back(read_activations(out_, target_, r));
    if (rotated != nullptr) *rotated = qkv;
    return out;
  }

  // A whole sequence in chunks whose sizes repeat those of `chunks`.
  std::vector<std::vector<float>> in_chunks(const std::vector<float>& qkv,
                                            const std::vector<int32_t>& pages, int length,
                                            const std::vector<int>& chunks) {
    std::vector<std::vector<float>> out;
    int at = 0;
    for (size_t i = 0; at < length; ++i) {
      const int n = std::min({chunks[i % chunks.size()], length - at, max_rows_});
      for (auto& row : pass({{&qkv, &pages, at, n}})) out.push_back(std::move(row));
      at += n;
    }
    return out;
  }

  Backend& backend() { return *backend_; }
  KvStorage& kv() { return kv_; }
  AttentionLayer& layer() { return layer_; }

 private:
  static constexpr int kLayers = 2;
  AttentionCase case_;
  const cpu::Kernels& target_;
  int max_rows_;
  std::unique_ptr<Backend> backend_;
  KvStorage kv_;
  Activations out_;
  std::vector<float> inv_freq_;
  RopeTable rope_;
  AttentionLayer layer_;
};

// The pages of a sequence of `length` positions, scattered among 0..n_pages-1.
inline std::vector<int32_t> scattered_pages(int length, int block_size, int n_pages,
                                            uint64_t seed) {
  std::vector<int32_t> pages;
  for (int page : shuffled(n_pages, seed)) pages.push_back(page);
  pages.resize((length + block_size - 1) / block_size);
  return pages;
}

}  // namespace pb::test
