// A recurrent layer on a backend, whatever its kind, and passes of rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/heartbeat.h"
#include "ops/backend.h"
#include "sampling/rng.h"

namespace pb::test {

// Numbers from -1 to 1.
inline std::vector<float> random_floats(size_t n, uint64_t seed) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(2.0 * uniform(seed, i) - 1.0);
  return out;
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

// The second of two layers, with blocks of states.
template <typename Shape>
class StateRig {
 public:
  static constexpr int kBlock = 8;
  static constexpr int kBlocks = 12;
  static constexpr int kMaxRows = 64;

  // y of the rows of a pass. x (rows, shape.row_size())
  std::vector<float> run(const std::vector<SequenceRows>& sequences, const std::vector<float>& x) {
    const int n_rows = int(x.size()) / shape.row_size();
    const std::vector<int32_t> zeros(size_t(n_rows), 0);
    const Vector rows = vector_of(x);
    std::vector<float> y(size_t(n_rows) * y_size_);
    Buffer out = backend->make_buffer(y.size() * sizeof(float));
    backend->plan({.n_rows = n_rows,
                   .tokens = zeros.data(),
                   .positions = zeros.data(),
                   .sequences = sequences},
                  kv_);
    compute(rows.values, n_rows, out);
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

  Shape shape;
  std::unique_ptr<Backend> backend;
  KvStorage states;

 protected:
  // pass: the layer's shape in it, and nothing else. y_size: of a row.
  StateRig(const Shape& own_shape, std::unique_ptr<Backend> own_backend, PassShape pass, int y_size)
      : shape(own_shape), backend(std::move(own_backend)), y_size_(y_size) {
    pass.max_rows = kMaxRows;
    pass.max_sequences = 4;
    pass.n_positions = 256;
    pass.n_heads = 1;
    pass.storages = {{.shape = {1, 4}}};
    pass.state_group = 1;
    pass.vocab_size = 8;
    pass.block_size = kBlock;
    backend->prepare(pass);
    kv_ = backend->make_kv(kBlocks, kBlock, 1, 1, 4, DType::kF32);
    states = backend->recurrent().make_states(kBlocks, 2, shape);
    states.block_size = kBlock;
    states.group = 1;
  }
  StateRig(StateRig&&) = default;
  virtual ~StateRig() = default;

  Vector vector_of(const std::vector<float>& values) {
    return backend->make_vector(
        {"tensor", values.data(), DType::kF32, int64_t(values.size()), 1, 1, 1});
  }

 private:
  // x (n_rows, shape.row_size()) -> y (n_rows, y_size)
  virtual void compute(const Buffer& x, int n_rows, Buffer& y) = 0;

  int y_size_;
  KvStorage kv_;
};

}  // namespace pb::test
