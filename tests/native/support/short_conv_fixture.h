// What tests of gated short convolutions share: shapes, numbers, the formula in double precision,
// and a layer on any backend.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "state_rig.h"

namespace pb::test {

inline const std::vector<ShortConvShape>& short_conv_shapes() {
  static const std::vector<ShortConvShape> shapes = {{1, 2}, {48, 3}, {129, 3}, {300, 4}, {33, 12}};
  return shapes;
}

// Taps (conv_size, width).
inline std::vector<float> short_conv_taps(const ShortConvShape& shape) {
  return random_floats(size_t(shape.conv_size) * shape.width, 51);
}

// Rows of a layer's product, (n, shape.row_size()).
inline std::vector<float> short_conv_rows(int n, const ShortConvShape& shape, uint64_t seed) {
  return random_floats(size_t(n) * shape.row_size(), seed);
}

// y of a whole sequence.
inline std::vector<double> exact_short_conv(const ShortConvShape& shape,
                                            const std::vector<float>& x) {
  const std::vector<float> taps = short_conv_taps(shape);
  const int n_rows = int(x.size()) / shape.row_size();
  const auto at = [&](int row, int part, int channel) {
    return double{x[size_t(row) * shape.row_size() + part * shape.width + channel]};
  };
  std::vector<double> y;
  for (int row = 0; row < n_rows; ++row) {
    for (int channel = 0; channel < shape.width; ++channel) {
      double sum = 0.0;
      for (int tap = 0; tap < shape.conv_size; ++tap) {
        const int from = row + tap - shape.conv_size + 1;
        if (from < 0) continue;
        sum +=
            taps[size_t(tap) * shape.width + channel] * at(from, 0, channel) * at(from, 2, channel);
      }
      y.push_back(at(row, 1, channel) * sum);
    }
  }
  return y;
}

// A layer on a backend.
class ShortConvRig final : public StateRig<ShortConvShape> {
 public:
  ShortConvRig(const ShortConvShape& shape, std::unique_ptr<Backend> backend)
      : StateRig(shape, std::move(backend), {.short_conv = shape}, shape.width),
        convolution_(vector_of(short_conv_taps(shape))) {}

 private:
  void compute(const Buffer& x, int n_rows, Buffer& y) override {
    const ShortConvLayer layer{.shape = shape, .layer = 1, .convolution = &convolution_};
    backend->recurrent().short_conv(x, n_rows, layer, states, y);
  }

  Vector convolution_;
};

}  // namespace pb::test
