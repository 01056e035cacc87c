// What tests of the gated delta rule share: shapes, numbers, the formulas in double precision, and
// a layer on any backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/heartbeat.h"
#include "base/rng.h"
#include "ops/backend.h"

namespace pb::test {

inline const std::vector<DeltaShape>& delta_shapes() {
  static const std::vector<DeltaShape> shapes = {
      {1, 1, 4, 4, 1},     {2, 6, 12, 20, 4}, {3, 3, 16, 64, 4},      {1, 2, 33, 70, 3},
      {2, 2, 128, 128, 4}, {1, 1, 5, 1, 7},   {2, 6, 12, 20, 4, true}};
  return shapes;
}

// What a layer has besides its products, at random.
struct DeltaNumbers {
  explicit DeltaNumbers(const DeltaShape& shape)
      : convolution(random(size_t(shape.conv_size) * shape.n_channels(), 51)),
        decays(random(size_t(shape.n_value_heads), 52)),
        biases(random(size_t(shape.n_value_heads), 53)),
        norm(random(size_t(shape.value_dim), 54)) {
    for (float& decay : decays) decay = -std::exp(2.0f * decay);
  }

  // Rows of a layer's products, (n, shape.row_size()).
  static std::vector<float> rows(int n, const DeltaShape& shape, uint64_t seed) {
    return random(size_t(n) * shape.row_size(), seed);
  }

  std::vector<float> convolution, decays, biases, norm;
  float eps = 1e-6f;

 private:
  static std::vector<float> random(size_t n, uint64_t seed) {
    std::vector<float> out(n);
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(2.0 * uniform(seed, i) - 1.0);
    return out;
  }
};

// The formulas of ops/recurrent.h, a row and a head at a time: y of a whole sequence.
inline std::vector<double> exact_delta_rule(const DeltaShape& s, const DeltaNumbers& numbers,
                                            const std::vector<float>& x) {
  const auto sigmoid = [](double v) { return 1.0 / (1.0 + std::exp(-v)); };
  const int n_rows = int(x.size()) / s.row_size();
  std::vector<double> y;
  std::vector<double> state(size_t(s.value_size()) * s.key_dim, 0.0);
  const auto at = [&](int row, int column) {
    return row < 0 ? 0.0 : double{x[size_t(row) * s.row_size() + column]};
  };
  for (int row = 0; row < n_rows; ++row) {
    const auto convolved = [&](int channel) {
      double sum = 0.0;
      for (int tap = 0; tap < s.conv_size; ++tap) {
        sum += at(row + tap - s.conv_size + 1, channel) *
               numbers.convolution[size_t(tap) * s.n_channels() + channel];
      }
      return sum * sigmoid(sum);
    };
    for (int head = 0; head < s.n_value_heads; ++head) {
      const int key_head =
          s.in_turn ? head % s.n_key_heads : head / (s.n_value_heads / s.n_key_heads);
      std::vector<double> q, k, out;
      double qq = 1e-6, kk = 1e-6;
      for (int i = 0; i < s.key_dim; ++i) {
        q.push_back(convolved(key_head * s.key_dim + i));
        k.push_back(convolved(s.key_size() + key_head * s.key_dim + i));
        qq += q.back() * q.back();
        kk += k.back() * k.back();
      }
      for (int i = 0; i < s.key_dim; ++i) {
        q[size_t(i)] /= std::sqrt(qq) * std::sqrt(double(s.key_dim));
        k[size_t(i)] /= std::sqrt(kk);
      }
      const int gates = s.n_channels() + s.value_size();
      const double a = at(row, gates + s.n_value_heads + head) + numbers.biases[size_t(head)];
      const double kept = std::exp(numbers.decays[size_t(head)] * std::log1p(std::exp(a)));
      const double learnt = sigmoid(at(row, gates + head));
      double squares = 0.0;
      for (int c = 0; c < s.value_dim; ++c) {
        const double value = convolved(2 * s.key_size() + head * s.value_dim + c);
        double* const column = state.data() + size_t(head) * s.key_dim * s.value_dim + c;
        double known = 0.0, got = 0.0;
        for (int i = 0; i < s.key_dim; ++i) {
          column[i * s.value_dim] *= kept;
          known += column[i * s.value_dim] * k[size_t(i)];
        }
        for (int i = 0; i < s.key_dim; ++i) {
          column[i * s.value_dim] += k[size_t(i)] * learnt * (value - known);
          got += column[i * s.value_dim] * q[size_t(i)];
        }
        out.push_back(got);
        squares += got * got;
      }
      for (int c = 0; c < s.value_dim; ++c) {
        const double z = at(row, s.n_channels() + head * s.value_dim + c);
        y.push_back(out[size_t(c)] / std::sqrt(squares / s.value_dim + double{numbers.eps}) *
                    numbers.norm[size_t(c)] * z * sigmoid(z));
      }
    }
  }
  return y;
}

// Of all rows, relative to the norm of the expected ones.
inline double distance_of(const std::vector<float>& y, const std::vector<double>& expected) {
  double error = 0.0, size = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += (y[i] - expected[i]) * (y[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return std::sqrt(error / size);
}

// A layer on a backend, the second of two, with blocks of states.
struct DeltaRig {
  static constexpr int kBlock = 8;
  static constexpr int kBlocks = 12;
  static constexpr int kMaxRows = 64;

  DeltaRig(const DeltaShape& own_shape, std::unique_ptr<Backend> own_backend)
      : shape(own_shape), numbers(own_shape), backend(std::move(own_backend)) {
    backend->prepare({.max_rows = kMaxRows,
                      .max_sequences = 4,
                      .n_positions = 256,
                      .n_heads = 1,
                      .storages = {{.shape = {1, 4}}},
                      .delta = shape,
                      .state_group = 1,
                      .vocab_size = 8,
                      .block_size = kBlock});
    kv = backend->make_kv(kBlocks, kBlock, 1, 1, 4, DType::kF32);
    states = backend->recurrent()->make_states(kBlocks, 2, shape);
    states.block_size = kBlock;
    states.group = 1;
    convolution = vector_of(numbers.convolution);
    decay = vector_of(numbers.decays);
    decay_bias = vector_of(numbers.biases);
    norm.eps = numbers.eps;
    norm.weight = vector_of(numbers.norm);
  }

  // y of the rows of a pass. x (rows, row_size)
  std::vector<float> run(const std::vector<SequenceRows>& sequences, const std::vector<float>& x) {
    const int n_rows = int(x.size()) / shape.row_size();
    const std::vector<int32_t> zeros(size_t(n_rows), 0);
    const Vector rows = vector_of(x);
    std::vector<float> y(size_t(n_rows) * shape.value_size());
    Buffer out = backend->make_buffer(y.size() * sizeof(float));
    backend->plan({.n_rows = n_rows,
                   .tokens = zeros.data(),
                   .positions = zeros.data(),
                   .sequences = sequences},
                  kv);
    const DeltaLayer layer{.shape = shape,
                           .layer = 1,
                           .convolution = &convolution,
                           .decay = &decay,
                           .decay_bias = &decay_bias,
                           .norm = &norm};
    backend->recurrent()->delta_rule(rows.values, n_rows, layer, states, out);
    backend->download(out, std::as_writable_bytes(std::span(y)));
    Heartbeat heartbeat;
    backend->finish(heartbeat);
    return y;
  }

  // A sequence's rows in passes of so many, with its blocks from `first_block` on.
  std::vector<float> run_in(int n_rows, const std::vector<float>& x, int first_block) {
    std::vector<int32_t> table;
    for (int i = 0; i < 5; ++i) table.push_back(first_block + i);
    const int total = int(x.size()) / shape.row_size();
    std::vector<float> y;
    for (int first = 0; first < total; first += n_rows) {
      const int n = std::min(n_rows, total - first);
      SequenceRows rows{.n_rows = n, .first_position = first};
      rows.block_tables[0] = rows.block_tables[1] = table.data();
      if (first > 0) rows.state_from = table[size_t((first - 1) / kBlock)];
      const auto part = run({rows}, rows_of(x, first, n));
      y.insert(y.end(), part.begin(), part.end());
    }
    return y;
  }

  std::vector<float> rows_of(const std::vector<float>& x, int first, int n) const {
    const auto begin = x.begin() + ptrdiff_t(first) * shape.row_size();
    return {begin, begin + ptrdiff_t(n) * shape.row_size()};
  }

  Vector vector_of(const std::vector<float>& values) {
    return backend->make_vector(
        {"tensor", values.data(), DType::kF32, int64_t(values.size()), 1, 1, 1});
  }

  DeltaShape shape;
  DeltaNumbers numbers;
  std::unique_ptr<Backend> backend;
  KvStorage kv, states;
  Vector convolution, decay, decay_bias;
  Norm norm;
};

}  // namespace pb::test
