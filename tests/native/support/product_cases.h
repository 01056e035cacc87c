// What products of every dtype in blocks have to hold, as cases of a test for one of them. Product:
// a ProductFixture with Product(n_out, n_in, rows) and matrix(backend, with_bias).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "product_fixture.h"

namespace pb::test {

// A row has the same bits in any batch.
template <typename Product>
void expect_same_bits_in_any_batch(std::span<const Shape> shapes) {
  constexpr int kRows = kIsSlowed ? 7 : 17;
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    for (const auto& [n_out, n_in] : shapes) {
      const Product p(n_out, n_in, kRows);
      const Matrix m = p.matrix(*backend, true);
      std::vector<std::vector<float>> alone;
      for (int r = 0; r < kRows; ++r) alone.push_back(p.multiply(*backend, *target, m, {r}));
      for (int n = 2; n <= kRows; ++n) {
        std::vector<int> rows = shuffled(kRows, n);
        rows.resize(n);
        const std::vector<float> y = p.multiply(*backend, *target, m, rows);
        for (int i = 0; i < n; ++i) {
          EXPECT(
              same_bits(y.data() + static_cast<size_t>(i) * n_out, alone[rows[i]].data(), n_out));
        }
      }
    }
  }
}

// Many rows and threads change no bit: more than pass over a block of K, or over weights, at once.
template <typename Product>
void expect_same_bits_of_many_rows() {
  constexpr int kRows = kIsSlowed ? 200 : 400;
  constexpr int kOut = kIsSlowed ? 9 : 70, kIn = 17920;
  for (const cpu::Kernels* target : runnable_targets()) {
    const Product p(kOut, kIn, kRows);
    auto single = make_cpu_backend(1, target->name);
    const Matrix m = p.matrix(*single, false);
    const std::vector<float> y = p.multiply(*single, *target, m, first_rows(kRows));
    for (int r = 0; r < kRows; r += 37) {
      const std::vector<float> alone = p.multiply(*single, *target, m, {r});
      EXPECT(same_bits(y.data() + static_cast<size_t>(r) * kOut, alone.data(), kOut));
    }
    auto backend = make_cpu_backend(3, target->name);
    EXPECT(
        same_bits(p.multiply(*backend, *target, p.matrix(*backend, false), first_rows(kRows)), y));
  }
}

// Adding a bias, and adding to what there is, are one rounding each.
template <typename Product>
void expect_one_rounding_each(int n_in) {
  constexpr int kRows = 8;
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    const Product p(77, n_in, kRows);
    const std::vector<int> rows = first_rows(kRows);
    const std::vector<float> before = numbers(kRows * 77, 9);
    const Matrix biased = p.matrix(*backend, true);
    const std::vector<float> y = p.multiply(*backend, *target, p.matrix(*backend, false), rows);
    const std::vector<float> y_bias = p.multiply(*backend, *target, biased, rows);
    const std::vector<float> y_add = p.multiply(*backend, *target, biased, rows, before.data());
    for (size_t i = 0; i < y.size(); ++i) {
      EXPECT_EQ(y_bias[i], y[i] + p.bias[i % 77]);
      EXPECT_EQ(y_add[i], before[i] + y_bias[i]);
    }
  }
}

// What is not finite stays visible, and in its row, at every `step`th place of two blocks.
template <typename Product>
void expect_not_finite_stays_visible(int block, int step) {
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    for (float bad : {std::nanf(""), -std::nanf(""), std::numeric_limits<float>::infinity()}) {
      for (int at = 0; at < 2 * block; at += step) {
        Product p(3, 2 * block, 2);
        const Matrix m = p.matrix(*backend, false);
        const std::vector<float> finite = p.multiply(*backend, *target, m, {1});
        p.x[at] = bad;
        const std::vector<float> y = p.multiply(*backend, *target, m, {0, 1});
        for (int o = 0; o < 3; ++o) EXPECT(!std::isfinite(y[o]));
        EXPECT(same_bits(y.data() + 3, finite.data(), 3));
      }
    }
  }
}

}  // namespace pb::test
