// Rows whose numbers are put into another order: the bits of the same numbers rounded in that
// order, for every target, dtype and length.
#include <algorithm>
#include <string>
#include <vector>

#include "cpu_fixture.h"

namespace {

using namespace pb;
using namespace pb::test;

constexpr int kLengths[] = {1, 7, 31, 32, 33, 64, 100, 577, 4096};
constexpr int kRows = 5;

struct Rows {
  explicit Rows(int cols_) : cols(cols_), order(shuffled(cols, 31)) {
    x = numbers(static_cast<size_t>(kRows) * cols, 32, 3.0f);
    for (int row = 0; row < kRows; ++row) {
      for (int c = 0; c < cols; ++c) ordered.push_back(x[row * cols + order[c]]);
    }
  }
  Buffer order_buffer() const {
    return {const_cast<int*>(order.data()), order.size() * sizeof(int), nullptr};
  }

  int cols;
  std::vector<int> order;
  std::vector<float> x;        // (kRows, cols)
  std::vector<float> ordered;  // (kRows, cols): x[row, order[c]]
};

void expect_permuted(Backend& backend, const cpu::Kernels& target, DType dtype, int cols) {
  const Rows rows(cols);
  const std::vector<int> all = {0, 1, 2, 3, 4};
  const Activations plain = make_activations(backend, target, rows.x, cols, DType::kF32, all);
  const Activations expected = make_activations(backend, target, rows.ordered, cols, dtype, all);
  for (const int n : {kRows, 1}) {
    Activations made = backend.make_activations(kRows, cols, dtype);
    backend.permute(plain, n, rows.order_buffer(), made);
    for (int row = 0; row < n; ++row) {
      EXPECT(
          same_bits(read_activations(made, target, row), read_activations(expected, target, row)));
      if (!made.groups) continue;
      const auto of_row = [row](const Activations& a) {
        return a.groups.as<cpu::RowGroup>() + row * a.group_stride;
      };
      for (int g = 0; g < (cols + kGroup - 1) / kGroup; ++g) {
        EXPECT_EQ(of_row(made)[g].total, of_row(expected)[g].total);
        EXPECT_EQ(of_row(made)[g].halves[1], of_row(expected)[g].halves[1]);
      }
    }
  }
}

}  // namespace

TEST(permuted_rows_are_those_rounded_in_that_order) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const int n_threads : {1, 3}) {
      const auto backend = make_cpu_backend(n_threads, target->name);
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4Zp}) {
        for (const int cols : kLengths) expect_permuted(*backend, *target, dtype, cols);
      }
    }
  }
}

PB_TEST_MAIN()
