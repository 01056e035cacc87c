// Sequences with random q, k and v, run through rope_and_store and attention in any chunks.
#pragma once

#include <algorithm>
#include <map>

#include "cpu_fixture.h"
#include "kv_reference.h"

namespace pb::test {

struct AttentionCase {
  int n_heads = 4;
  int n_kv_heads = 2;
  int head_dim = 64;
  int block_size = 32;
  int sliding_window = 0;
  float softcap = 0.0f;
  bool sinks = false;
  DType kv_dtype = DType::kF32;
  DType out_dtype = DType::kF32;

  int row_size() const { return (n_heads + 2 * n_kv_heads) * head_dim; }
  int out_size() const { return n_heads * head_dim; }
};

// Where the program is slowed, of several shapes each with two types in turn.
inline std::vector<AttentionCase> with_every_kv_dtype(std::span<const AttentionCase> shapes) {
  constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kInt8};
  std::vector<AttentionCase> cases;
  for (size_t d = 0; d < std::size(kDTypes); ++d) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      if (kIsSlowed && shapes.size() > 1 && (d + i) % 2 != 0) continue;
      cases.push_back(shapes[i]);
      cases.back().kv_dtype = kDTypes[d];
    }
  }
  return cases;
}

// One backend with a KV storage whose every byte is 0xff, which is NaN in every type (of an int8
// key or value, in its scale): whatever reads a slot that was not written, shows.
class AttentionBench {
 public:
  AttentionBench(const AttentionCase& c, const cpu::Kernels& target, int n_threads, int n_blocks,
                 int max_rows)
      : case_(c),
        target_(target),
        max_rows_(max_rows),
        backend_(make_cpu_backend(n_threads, target.name)) {
    kv_ = backend_->make_kv(n_blocks, c.block_size, kLayers, c.n_kv_heads, c.head_dim, c.kv_dtype);
    std::memset(kv_.data.as<std::byte>(), 0xff, kv_.data.bytes());
    backend_->prepare({.max_rows = max_rows,
                       .n_heads = c.n_heads,
                       .storages = {{.shape = {c.n_kv_heads, c.head_dim}}}});
    out_ = backend_->make_activations(max_rows, c.out_size(), c.out_dtype);
    for (int i = 0; i < c.head_dim / 2; ++i) {
      inv_freq_.push_back(static_cast<float>(std::pow(1000.0, -2.0 * i / c.head_dim)));
    }
    const std::vector<float> factors(static_cast<size_t>(n_blocks * c.block_size), 1.0f);
    rope_ = backend_->make_rope(inv_freq_, factors);
    layer_.layer = 1;
    layer_.n_heads = c.n_heads;
    layer_.n_kv_heads = c.n_kv_heads;
    layer_.head_dim = c.head_dim;
    layer_.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
    layer_.sliding_window = c.sliding_window;
    layer_.softcap = c.softcap;
    if (c.sinks) {  // from one that takes nearly all to one that takes nothing
      sinks_.size = c.n_heads;
      sinks_.values = backend_->make_buffer(sizeof(float) * static_cast<size_t>(c.n_heads));
      for (int h = 0; h < c.n_heads; ++h) {
        sinks_.values.as<float>()[h] = 4.0f - 9.0f * static_cast<float>(h % 5);
      }
      layer_.sinks = &sinks_;
    }
    layer_.rope = c.head_dim % 2 == 0 ? &rope_ : nullptr;
  }

  // One pass. Each entry: the sequence's rows (KV blocks, first position) and where they start in
  // its qkv (positions, row_size). Returns the rows' outputs in the order given, if they are to
  // attend and not only to be stored; `rotated` gets their qkv.
  struct Part {
    const std::vector<float>* qkv;
    const std::vector<int32_t>* block_table;
    int first_position;
    int n_rows;
  };
  std::vector<std::vector<float>> pass(const std::vector<Part>& parts,
                                       std::vector<float>* rotated = nullptr, bool attend = true) {
    std::vector<float> qkv;
    std::vector<SequenceRows> sequences;
    std::vector<int32_t> positions;
    const int row_size = case_.row_size();
    for (const Part& part : parts) {
      sequences.push_back({static_cast<int>(positions.size()), part.n_rows, part.first_position,
                           part.block_table->data()});
      for (int r = 0; r < part.n_rows; ++r) positions.push_back(part.first_position + r);
      const float* from = part.qkv->data() + static_cast<size_t>(part.first_position) * row_size;
      qkv.insert(qkv.end(), from, from + static_cast<size_t>(part.n_rows) * row_size);
    }
    RowBatch batch;
    batch.n_rows = static_cast<int>(positions.size());
    batch.positions = positions.data();
    batch.sequences = sequences;
    Buffer rows = over(qkv);
    backend_->plan(batch, kv_);
    backend_->rope_and_store(rows, layer_, kv_);
    if (rotated != nullptr) *rotated = qkv;
    if (!attend) return {};
    backend_->attention(rows, layer_, kv_, out_);
    std::vector<std::vector<float>> out;
    for (int r = 0; r < batch.n_rows; ++r) out.push_back(read_activations(out_, target_, r));
    return out;
  }

  // A whole sequence in chunks whose sizes repeat those of `chunks`.
  std::vector<std::vector<float>> in_chunks(const std::vector<float>& qkv,
                                            const std::vector<int32_t>& block_table, int length,
                                            const std::vector<int>& chunks) {
    std::vector<std::vector<float>> out;
    int at = 0;
    for (size_t i = 0; at < length; ++i) {
      const int n = std::min({chunks[i % chunks.size()], length - at, max_rows_});
      for (auto& row : pass({{&qkv, &block_table, at, n}})) out.push_back(std::move(row));
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
  Vector sinks_;
  AttentionLayer layer_;
};

// The KV blocks of a sequence of `length` positions, scattered among 0..n_blocks-1.
inline std::vector<int32_t> scattered_blocks(int length, int block_size, int n_blocks,
                                             uint64_t seed) {
  std::vector<int32_t> block_table;
  for (int kv_block : shuffled(n_blocks, seed)) block_table.push_back(kv_block);
  block_table.resize((length + block_size - 1) / block_size);
  return block_table;
}

// The same for every target and type, so they are sampled once: sampling takes longer than
// attending.
inline std::vector<float> random_qkv(const AttentionCase& c, int length, uint64_t seed) {
  static std::map<uint64_t, std::vector<float>> sampled;  // seed -> its first numbers
  std::vector<float>& longest = sampled[seed];
  const size_t n = static_cast<size_t>(length) * c.row_size();
  if (longest.size() < n) longest = numbers(n, seed, 2.0f);
  return {longest.begin(), longest.begin() + static_cast<std::ptrdiff_t>(n)};
}

inline bool same_rows(const std::vector<std::vector<float>>& a,
                      const std::vector<std::vector<float>>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return false;
  }
  return true;
}

// Whether products of pairs of bf16 compute it, from queries and probabilities that are rounded.
inline bool by_pairs(const AttentionCase& c, const std::string& target) {
  const bool has_pairs = target == "avx512_amx" || target == "avx512_bf16";
  return has_pairs && c.kv_dtype == DType::kBF16 && c.head_dim % 32 == 0 && c.head_dim <= 256;
}

// Checks one row of output against softmax(cap(scale q k)) v in double over the rotated qkv;
// `rounded`: of queries rounded to bf16, and with probabilities that may be.
inline void check_row(const AttentionCase& c, const AttentionLayer& layer,
                      const std::vector<float>& qkv, int row, const std::vector<float>& out,
                      bool rounded) {
  const int group = c.n_heads / c.n_kv_heads;
  const int begin = c.sliding_window > 0 ? std::max(0, row + 1 - c.sliding_window) : 0;
  std::vector<std::vector<double>> keys, values;  // of the kv head, from `begin` on
  for (int head = 0; head < c.n_heads; ++head) {
    if (head % group == 0) {
      keys.clear();
      values.clear();
      for (int position = begin; position <= row; ++position) {
        const float* key = qkv.data() + static_cast<size_t>(position) * c.row_size() +
                           (c.n_heads + head / group) * c.head_dim;
        keys.push_back(kept(key, c.head_dim, c.kv_dtype));
        values.push_back(kept(key + c.n_kv_heads * c.head_dim, c.head_dim, c.kv_dtype));
      }
    }
    const float* query = qkv.data() + static_cast<size_t>(row) * c.row_size() + head * c.head_dim;
    const std::vector<double> q = kept(query, c.head_dim, rounded ? DType::kBF16 : DType::kF32);
    std::vector<double> weights;
    double top = -1e300, size = 0.0, sum = 0.0;
    for (const std::vector<double>& key : keys) {
      double score = 0.0, terms = 0.0;
      for (int d = 0; d < c.head_dim; ++d) {
        const double term = q[d] * key[d];
        score += term;
        terms += std::abs(term);
      }
      score *= layer.scale;
      if (c.softcap > 0.0f) score = c.softcap * std::tanh(score / c.softcap);
      weights.push_back(score);
      top = std::max(top, weights.back());
      size = std::max(size, terms * layer.scale);
    }
    for (double& w : weights) sum += w = std::exp(w - top);
    if (c.sinks) sum += std::exp(layer.sinks->values.as<float>()[head] - top);
    std::vector<double> exacts(c.head_dim, 0.0), sizes(c.head_dim, 0.0);
    for (size_t i = 0; i < values.size(); ++i) {
      for (int d = 0; d < c.head_dim; ++d) {
        exacts[d] += weights[i] / sum * values[i][d];
        sizes[d] += weights[i] / sum * std::abs(values[i][d]);
      }
    }
    for (int d = 0; d < c.head_dim; ++d) {
      const double exact = exacts[d];
      // A score is off by head_dim roundings of its terms, an exponential by that and a few units,
      // a sum of n of them by n more; |v| <= 2. How keys and values are kept is not in it: both
      // sides start from what is kept.
      const double unit = 0x1p-24;
      const double off = 2.0 * ((c.head_dim + 4) * unit * size + (weights.size() + 16) * unit);
      const double rounding = (c.out_dtype == DType::kBF16 ? 0x1p-8 * std::abs(exact) : 0.0) +
                              (rounded ? 0x1p-8 * sizes[d] : 0.0);
      EXPECT(std::abs(out[head * c.head_dim + d] - exact) <= 2.0 * 2.0 * off + rounding);
    }
  }
}

}  // namespace pb::test
