#include "naive_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace pb::test {

PackedMatrix NaiveBackend::pack(std::span<const TensorView> parts,
                                std::span<const TensorView> biases, DType dtype) {
  PackedMatrix m;
  m.n_in = static_cast<int>(parts[0].cols);
  m.dtype = dtype;
  bool has_bias = false;
  for (const TensorView& part : parts) m.n_out += static_cast<int>(part.rows);
  for (const TensorView& bias : biases) has_bias |= bias.data != nullptr;
  m.packed = AlignedBuffer(size_t(m.n_out) * size_t(m.n_in) * sizeof(float));
  if (has_bias) m.bias = AlignedBuffer(size_t(m.n_out) * sizeof(float));
  float* w = m.packed.as<float>();
  int64_t out = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    for (int64_t r = 0; r < parts[p].rows; ++r, ++out) {
      for (int64_t c = 0; c < m.n_in; ++c) *w++ = finite(parts[p], r, c, dtype);
      if (biases[p].data != nullptr) m.bias.as<float>()[out] = finite(biases[p], r, 0, DType::kF32);
    }
  }
  return m;
}

MatrixBytes NaiveBackend::matrix_bytes(int n_out, int n_in, DType, bool) const {
  return {.packed = size_t(n_out) * size_t(n_in) * sizeof(float),
          .bias = size_t(n_out) * sizeof(float)};
}

Matrix NaiveBackend::place(PackedMatrix packed) {
  return {packed.n_out,
          packed.n_in,
          packed.dtype,
          Buffer::on_host(std::move(packed.packed)),
          Buffer::on_host(std::move(packed.bias)),
          Buffer::on_host(std::move(packed.order))};
}

Vector NaiveBackend::make_vector(const TensorView& view) {
  Vector v{.size = static_cast<int>(view.rows), .values = make_buffer(size_t(view.rows) * 4)};
  for (int i = 0; i < v.size; ++i) v.values.as<float>()[i] = finite(view, i, 0, DType::kF32);
  return v;
}

Activations NaiveBackend::make_activations(int max_rows, int cols, DType weights) {
  Activations a;
  a.max_rows = max_rows;
  a.cols = cols;
  a.row_stride = cols;
  a.dtype = weights;
  a.data = make_buffer(size_t(max_rows) * size_t(cols) * sizeof(float));
  return a;
}

RopeTable NaiveBackend::make_rope(std::span<const float> inv_freq, std::span<const float> factors,
                                  std::span<const int32_t> axes) {
  const int n_positions = static_cast<int>(factors.size());
  RopeTable t;
  t.n_positions = n_positions;
  t.half_dim = static_cast<int>(inv_freq.size());
  t.cosines = make_buffer(size_t(n_positions) * inv_freq.size() * sizeof(float));
  t.sines = make_buffer(size_t(n_positions) * inv_freq.size() * sizeof(float));
  for (int p = 0; p < n_positions; ++p) {
    for (int i = 0; i < t.half_dim; ++i) {
      const float angle = static_cast<float>(p) * inv_freq[size_t(i)];
      const float factor = inv_freq[size_t(i)] == 0.0f ? 1.0f : factors[size_t(p)];
      t.cosines.as<float>()[p * t.half_dim + i] = static_cast<float>(std::cos(angle)) * factor;
      t.sines.as<float>()[p * t.half_dim + i] = static_cast<float>(std::sin(angle)) * factor;
    }
  }
  if (!axes.empty()) {
    t.axes = make_buffer(axes.size_bytes());
    std::ranges::copy(axes, t.axes.as<int32_t>());
  }
  return t;
}

KvStorage NaiveBackend::make_kv(int n_blocks, int block_size, int n_layers, int n_kv_heads,
                                int head_dim, DType dtype) {
  KvStorage kv;
  kv.n_blocks = n_blocks;
  kv.block_size = block_size;
  kv.n_layers = n_layers;
  kv.n_kv_heads = n_kv_heads;
  kv.head_dim = head_dim;
  kv.dtype = dtype;
  kv.block_bytes = sizeof(float) * 2 * size_t(n_layers) * size_t(block_size) * size_t(n_kv_heads) *
                   size_t(head_dim);
  kv.data = make_buffer(kv.block_bytes * size_t(n_blocks));
  return kv;
}

void NaiveBackend::embed(const Matrix& table, float scale, Buffer& x) {
  float* to = x.as<float>();
  for (int r = 0; r < batch_.n_rows; ++r, to += table.n_in) {
    for (int c = 0; c < table.n_in; ++c) to[c] = row_of(table, batch_.tokens[r])[c] * scale;
  }
}

void NaiveBackend::embed_add(const Matrix& table, Buffer& x) {
  float* to = x.as<float>();
  for (int r = 0; r < batch_.n_rows; ++r, to += table.n_in) {
    for (int c = 0; c < table.n_in; ++c) to[c] += row_of(table, batch_.positions[r])[c];
  }
}

void NaiveBackend::give_rows(int first_column, int columns, Store store, Buffer& x) {
  for (const GivenRows& given : batch_.given) {
    for (int r = 0; r < given.n_rows; ++r) {
      for (int c = 0; c < columns; ++c) {
        float& to = x.as<float>()[int64_t{given.first_row + r} * columns + c];
        const float from = given.values[r * given.stride + first_column + c];
        to = store == Store::kSet ? from : to + from;
      }
    }
  }
}

void NaiveBackend::norm(const Buffer& x, Rows rows, const Norm& norm, Activations& out) {
  for (int i = 0; i < rows.n; ++i) {
    const auto at = size_t(rows.first + i);
    const int64_t r = rows.of == Rows::Of::kLogitsRows   ? batch_.logits_rows[at]
                      : rows.of == Rows::Of::kPooledRows ? batch_.pooled_rows[at]
                                                         : int64_t(at);
    const float* from = x.as<float>() + r * out.cols;
    std::vector<float> row(from, from + out.cols);
    normalise(row.data(), out.cols, norm);
    for (int c = 0; c < out.cols; ++c) set(out, i, c, row[size_t(c)]);
  }
}

void NaiveBackend::norm_in_place(Buffer& x, int n_rows, const Norm& norm) {
  for (int r = 0; r < n_rows; ++r) {
    normalise(x.as<float>() + int64_t{r} * norm.weight.size, norm.weight.size, norm);
  }
}

void NaiveBackend::norm_add(const Buffer& y, int n_rows, const Norm& norm, Buffer& x) {
  const int n = norm.weight.size;
  for (int r = 0; r < n_rows; ++r) {
    const float* from = y.as<float>() + int64_t{r} * n;
    std::vector<float> row(from, from + n);
    normalise(row.data(), n, norm);
    for (int c = 0; c < n; ++c) {
      float& to = x.as<float>()[int64_t{r} * n + c];
      to = (to + row[size_t(c)]) * norm.sum_scale;
    }
  }
}

void NaiveBackend::round(const Buffer& x, int n_rows, Activations& out) {
  for (int r = 0; r < n_rows; ++r) {
    for (int c = 0; c < out.cols; ++c) set(out, r, c, x.as<float>()[int64_t{r} * out.cols + c]);
  }
}

void NaiveBackend::permute(const Activations& x, int n_rows, const Buffer& order,
                           Activations& out) {
  for (int r = 0; r < n_rows; ++r) {
    const float* row = x.data.as<float>() + int64_t{r} * x.cols;
    for (int c = 0; c < out.cols; ++c) set(out, r, c, row[order.as<int32_t>()[c]]);
  }
}

void NaiveBackend::matmul(const Activations& x, int n_rows, const Matrix& w, Buffer& out,
                          Store store) {
  for (int r = 0; r < n_rows; ++r) {
    float* y = out.as<float>() + int64_t{r} * w.y_columns() + w.first_out;
    for (int o = 0; o < w.n_out; ++o, ++y) {
      double sum = w.bias ? w.bias.as<float>()[o] : 0.0;
      for (int c = 0; c < w.n_in; ++c) {
        sum += double{x.data.as<float>()[int64_t{r} * x.cols + c]} * double{row_of(w, o)[c]};
      }
      *y = static_cast<float>(store == Store::kAdd ? *y + sum : sum);
    }
  }
}

void NaiveBackend::rope_and_store(Buffer& qkv, const AttentionLayer& layer, KvStorage& kv) {
  const int dim = layer.head_dim;
  const int width = (layer.n_heads + 2 * layer.n_kv_heads) * dim;
  for (const SequenceRows& rows : batch_.sequences) {
    for (int i = 0; i < rows.n_rows; ++i) {
      const int position = rows.first_position + i;
      float* row = qkv.as<float>() + int64_t{rows.first_row + i} * width;
      const int n_rotated = layer.n_heads + (layer.writes_kv ? layer.n_kv_heads : 0);
      for (int h = 0; h < n_rotated && !layer.norms_after_rope; ++h) {
        const Norm* norm = h < layer.n_heads ? layer.q_norm : layer.k_norm;
        const bool begins_row = h == 0 || h == layer.n_heads || norm == nullptr ||
                                norm->weight.size == dim;  // else normed with the head before
        if (norm != nullptr && begins_row) normalise(row + h * dim, norm->weight.size, *norm);
      }
      for (int h = 0; h < n_rotated; ++h) {
        const bool is_q = h < layer.n_heads;
        const RopeTable* rope = is_q && layer.q_rope != nullptr ? layer.q_rope : layer.rope;
        if (rope != nullptr) rotate(row + h * dim, *rope, rows.first_row + i, position);
        const Norm* norm = is_q ? layer.q_norm : layer.k_norm;
        if (norm != nullptr && layer.norms_after_rope) normalise(row + h * dim, dim, *norm);
      }
      if (!layer.writes_kv) continue;
      float* k = row + layer.n_heads * dim;
      float* v = k + layer.n_kv_heads * dim;
      for (int h = 0; h < layer.n_kv_heads; ++h) {
        if (layer.v_norm != nullptr) normalise(v + h * dim, dim, *layer.v_norm);
        const std::vector<double> key = kept(k + h * dim, dim, kv.dtype);
        const std::vector<double> value = kept(v + h * dim, dim, kv.dtype);
        for (int c = 0; c < dim; ++c) {
          at(kv, layer.layer, rows.block_tables[size_t(layer.group)], position, h, 0)[c] =
              static_cast<float>(key[size_t(c)]);
          at(kv, layer.layer, rows.block_tables[size_t(layer.group)], position, h, 1)[c] =
              static_cast<float>(value[size_t(c)]);
        }
      }
    }
  }
}

void NaiveBackend::attention(const Buffer& qkv, const AttentionLayer& layer, const KvStorage& kv,
                             Activations& out) {
  const int dim = layer.head_dim;
  const int width = (layer.n_heads + 2 * layer.n_kv_heads) * dim;
  for (const SequenceRows& rows : batch_.sequences) {
    for (int i = 0; i < rows.n_rows; ++i) {
      for (int h = 0; h < layer.n_heads; ++h) {
        const float* q = qkv.as<float>() + int64_t{rows.first_row + i} * width + h * dim;
        attend(q, rows, rows.first_position + i, h, layer, kv, rows.first_row + i, out);
      }
    }
  }
}

void NaiveBackend::activate(const Buffer& gate_up, int n_rows, Activation kind, bool gated,
                            Activations& out) {
  const int n = out.cols;
  for (int r = 0; r < n_rows; ++r) {
    const float* row = gate_up.as<float>() + int64_t{r} * n * (gated ? 2 : 1);
    for (int c = 0; c < n; ++c)
      set(out, r, c, activated(row[c], kind) * (gated ? row[n + c] : 1.0));
  }
}

void NaiveBackend::xielu(const Buffer& x, int n_rows, const Xielu& of_layer, Activations& out) {
  const double alpha_p = of_layer.alpha_p, alpha_n = of_layer.alpha_n, beta = of_layer.beta;
  for (int r = 0; r < n_rows; ++r) {
    const float* row = x.as<float>() + int64_t{r} * out.cols;
    for (int c = 0; c < out.cols; ++c) {
      const double v = row[c];
      const double curve = std::expm1(std::min(row[c], of_layer.eps)) - v;
      set(out, r, c, (v > 0.0 ? alpha_p * v * v : alpha_n * curve) + beta * v);
    }
  }
}

void NaiveBackend::multiply_activated(const Buffer& gate, int n_rows, Activation kind,
                                      const Buffer& factors, int n_factors, int first,
                                      Activations& out) {
  for (int r = 0; r < n_rows; ++r) {
    const float* row = gate.as<float>() + int64_t{r} * out.cols;
    const float* of_row = factors.as<float>() + int64_t{r} * n_factors + first;
    for (int c = 0; c < out.cols; ++c) set(out, r, c, activated(row[c], kind) * of_row[c]);
  }
}

RowsToSample NaiveBackend::to_sample(const Buffer& logits, Rows rows,
                                     std::span<Sample> samples) const {
  return {batch_.requests,    samples,    size_t(rows.first), size_t(rows.n),
          logits.as<float>(), vocab_size_};
}

void NaiveBackend::sample(const Buffer& logits, Rows rows, std::span<Sample> samples) {
  const RowsToSample rows_to_sample = to_sample(logits, rows, samples);
  Sampler sampler(static_cast<int>(vocab_size_));
  for (int row = rows.first; row < rows.first + rows.n; ++row) {
    if (rows_to_sample.begins_chain(size_t(row))) rows_to_sample.sample_chain(size_t(row), sampler);
  }
}

void NaiveBackend::download(const Buffer& from, std::span<std::byte> to) {
  std::copy_n(from.as<std::byte>(), to.size(), to.begin());
}

void NaiveBackend::copy_block(KvStorage& kv, int from, int to) {
  std::memcpy(kv.data.as<std::byte>() + kv.block_bytes * size_t(to),
              kv.data.as<std::byte>() + kv.block_bytes * size_t(from), kv.block_bytes);
}

float NaiveBackend::finite(const TensorView& view, int64_t row, int64_t col, DType dtype) {
  const float value = rounded(element(view, row, col), dtype);
  if (!std::isfinite(value)) {
    throw Error(ErrorCode::kModelFormat,
                "tensor '" + view.name + "' holds a number that is not finite");
  }
  return value;
}

const float* NaiveBackend::row_of(const Matrix& m, int row) {
  return m.packed.as<float>() + int64_t{row} * m.n_in;
}

void NaiveBackend::set(Activations& out, int row, int col, double value) {
  out.data.as<float>()[int64_t{row} * out.cols + col] = rounded(value, out.dtype);
}

void NaiveBackend::normalise(float* row, int n, const Norm& norm) {
  double mean = 0.0;
  double variance = 0.0;
  if (norm.kind == NormKind::kLayer) {
    for (int c = 0; c < n; ++c) mean += row[c] / double(n);
  }
  for (int c = 0; c < n; ++c) variance += (row[c] - mean) * (row[c] - mean) / n;
  const double scale = 1.0 / std::sqrt(variance + norm.eps);
  for (int c = 0; c < n; ++c) {
    const double bias = norm.kind == NormKind::kLayer ? norm.bias.values.as<float>()[c] : 0.0;
    row[c] = static_cast<float>((row[c] - mean) * scale * norm.weight.values.as<float>()[c] + bias);
  }
}

void NaiveBackend::rotate(float* head, const RopeTable& rope, int row, int position) const {
  const int half = rope.half_dim;
  for (int i = 0; i < half; ++i) {
    const int64_t angle =
        rope.axes ? batch_.rope_positions[row * kRopeAxes + rope.axes.as<int32_t>()[i]] : position;
    const double c = rope.cosines.as<float>()[angle * half + i];
    const double s = rope.sines.as<float>()[angle * half + i];
    const double a = head[i];
    const double b = head[i + half];
    head[i] = static_cast<float>(a * c - b * s);
    head[i + half] = static_cast<float>(b * c + a * s);
  }
}

float* NaiveBackend::at(const KvStorage& kv, int layer, const int32_t* block_table, int position,
                        int head, int which) {
  const int64_t kv_block = block_table[position / kv.block_size];
  const int64_t slot = position % kv.block_size;
  int64_t i = kv_block * kv.n_layers + layer;
  i = (i * 2 + which) * kv.block_size + slot;
  i = i * kv.n_kv_heads + head;
  return const_cast<float*>(kv.data.as<float>()) + i * kv.head_dim;
}

void NaiveBackend::attend(const float* q, const SequenceRows& rows, int position, int head,
                          const AttentionLayer& layer, const KvStorage& kv, int row,
                          Activations& out) {
  const int dim = layer.head_dim;
  const int kv_head = head / (layer.n_heads / layer.n_kv_heads);
  const int window = layer.sliding_window;
  const int first = window > 0 ? std::max(0, position - window + 1) : 0;
  int last = position;
  if (!layer.causal) {
    last = rows.end_position() - 1;
    if (window > 0) last = std::min(last, position + window - 1);
  }
  std::vector<double> scores;
  for (int p = first; p <= last; ++p) {
    const float* k = at(kv, layer.layer, rows.block_tables[size_t(layer.group)], p, kv_head, 0);
    double score = 0.0;
    for (int c = 0; c < dim; ++c) score += double{q[c]} * double{k[c]};
    score *= layer.scale;
    if (layer.softcap > 0.0f) score = layer.softcap * std::tanh(score / layer.softcap);
    scores.push_back(score);
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  double total = 0.0;
  for (double& s : scores) total += s = std::exp(s - largest);
  if (layer.sinks != nullptr) total += std::exp(layer.sinks->values.as<float>()[head] - largest);
  for (int c = 0; c < dim; ++c) {
    double sum = 0.0;
    for (int p = first; p <= last; ++p) {
      sum += scores[size_t(p - first)] / total *
             at(kv, layer.layer, rows.block_tables[size_t(layer.group)], p, kv_head, 1)[c];
    }
    set(out, row, head * dim + c, sum);
  }
}

void NaiveBackend::scale_logits(Buffer& logits, int n_rows, float scale, float softcap) {
  for (size_t i = 0; i < size_t(n_rows) * vocab_size_; ++i) {
    double v = double{logits.as<float>()[i]} * scale;
    if (softcap > 0.0f) v = softcap * std::tanh(v / softcap);
    logits.as<float>()[i] = static_cast<float>(v);
  }
}

double NaiveBackend::activated(double x, Activation kind) {
  constexpr double kPi = 3.14159265358979323846;
  switch (kind) {
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kSigmoid:
      return 1.0 / (1.0 + std::exp(-x));
    case Activation::kReluSquared:
      return x > 0.0 ? x * x : 0.0;
    case Activation::kGelu:
      return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / kPi) * (x + 0.044715 * x * x * x)));
    case Activation::kXielu:  // an operation of its own
      break;
  }
  return x;
}

}  // namespace pb::test
