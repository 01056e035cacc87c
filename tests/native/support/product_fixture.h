// A matrix product to be tested: rows, a bias, and what is multiplied with any rows of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "cpu_fixture.h"

namespace pb::test {

struct Shape {
  int n_out, n_in;
};

inline std::vector<int> first_rows(int n) {
  std::vector<int> rows(n);
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

// What products have beside their weights.
struct ProductFixture {
  int n_out, n_in;
  DType dtype;
  std::vector<float> bias, x;  // x: (rows, n_in)

  ProductFixture(int n_out, int n_in, int rows, DType dtype)
      : n_out(n_out),
        n_in(n_in),
        dtype(dtype),
        bias(numbers(n_out, 2)),
        x(numbers(static_cast<size_t>(rows) * n_in, 3)) {}

  // The matrix of the weights in a view.
  Matrix matrix_of(Backend& backend, const TensorView& weights, bool with_bias) const {
    return make(backend, {weights}, dtype, {with_bias ? view_of(bias, n_out, 1) : TensorView{}});
  }

  // Rows of x as the products take them.
  Activations activations(Backend& backend, const cpu::Kernels& target,
                          const std::vector<int>& rows) const {
    return make_activations(backend, target, x, n_in, dtype, rows);
  }

  // The products of some rows of x, in that order.
  std::vector<float> multiply(Backend& backend, const cpu::Kernels& target, const Matrix& m,
                              const std::vector<int>& rows, const float* y_before = nullptr) const {
    const Activations a = activations(backend, target, rows);
    std::vector<float> y(rows.size() * n_out, std::numeric_limits<float>::quiet_NaN());
    if (y_before != nullptr) std::copy_n(y_before, y.size(), y.begin());
    Buffer out = over(y);
    backend.matmul(a, static_cast<int>(rows.size()), m, out,
                   y_before == nullptr ? Store::kSet : Store::kAdd);
    return y;
  }
};

// y (rows, n_out) is the product of the activations as they are stored and w (n_out, n_in), within
// `slack` times the rounding of a sum of groups.
inline void expect_product(const ProductFixture& p, const std::vector<float>& w,
                           const cpu::Kernels& target, const Activations& a, int rows,
                           const std::vector<float>& y, bool with_bias, double slack = 1.0) {
  for (int r = 0; r < rows; ++r) {
    const std::vector<float> x = read_activations(a, target, r);
    for (int o = 0; o < p.n_out; ++o) {
      double sum = with_bias ? p.bias[o] : 0.0;
      double size = std::abs(sum);
      const float* row = &w[static_cast<size_t>(o) * p.n_in];
      for (int k = 0; k < p.n_in; ++k) {
        const double term = static_cast<double>(x[k]) * row[k];
        sum += term;
        size += std::abs(term);
      }
      const double tolerance = 2.0 * (p.n_in / kGroup + 4) * 0x1p-24 * slack * size;
      EXPECT(std::abs(y[r * p.n_out + o] - sum) <= tolerance);
    }
  }
}

}  // namespace pb::test
