// What tests of the gated delta rule share: shapes, numbers, the formulas in double precision, and
// a layer on any backend.
#pragma once

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "state_rig.h"

namespace pb::test {

inline const std::vector<GatedDeltaNetShape>& gated_delta_net_shapes() {
  static const std::vector<GatedDeltaNetShape> shapes = {
      {1, 1, 4, 4, 1},     {2, 6, 12, 20, 4}, {3, 3, 16, 64, 4},      {1, 2, 33, 70, 3},
      {2, 2, 128, 128, 4}, {1, 1, 5, 1, 7},   {2, 6, 12, 20, 4, true}};
  return shapes;
}

// What a layer has besides its products, at random.
struct GatedDeltaNetNumbers {
  explicit GatedDeltaNetNumbers(const GatedDeltaNetShape& shape)
      : convolution(random_floats(size_t(shape.conv_size) * shape.n_channels(), 51)),
        decays(random_floats(size_t(shape.n_value_heads), 52)),
        biases(random_floats(size_t(shape.n_value_heads), 53)),
        norm(random_floats(size_t(shape.value_dim), 54)) {
    for (float& decay : decays) decay = -std::exp(2.0f * decay);
  }

  // Rows of a layer's products, (n, shape.row_size()).
  static std::vector<float> rows(int n, const GatedDeltaNetShape& shape, uint64_t seed) {
    return random_floats(size_t(n) * shape.row_size(), seed);
  }

  std::vector<float> convolution, decays, biases, norm;
  float eps = 1e-6f;
};

// The formulas of ops/recurrent.h, a row and a head at a time: y of a whole sequence.
inline std::vector<double> exact_gated_delta_net(const GatedDeltaNetShape& s,
                                                 const GatedDeltaNetNumbers& numbers,
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

// A layer on a backend.
class GatedDeltaNetRig final : public StateRig<GatedDeltaNetShape> {
 public:
  GatedDeltaNetRig(const GatedDeltaNetShape& shape, std::unique_ptr<Backend> backend)
      : StateRig(shape, std::move(backend), {.gated_delta_net = shape}, shape.value_size()),
        numbers(shape) {
    convolution_ = vector_of(numbers.convolution);
    decay_ = vector_of(numbers.decays);
    decay_bias_ = vector_of(numbers.biases);
    norm_.eps = numbers.eps;
    norm_.weight = vector_of(numbers.norm);
  }

  GatedDeltaNetNumbers numbers;

 private:
  void compute(const Buffer& x, int n_rows, Buffer& y) override {
    const GatedDeltaNetLayer layer{.shape = shape,
                                   .layer = 1,
                                   .convolution = &convolution_,
                                   .decay = &decay_,
                                   .decay_bias = &decay_bias_,
                                   .norm = &norm_};
    backend->recurrent().gated_delta_net(x, n_rows, layer, states, y);
  }

  Vector convolution_, decay_, decay_bias_;
  Norm norm_;
};

}  // namespace pb::test
