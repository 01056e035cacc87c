// Matrices of native formats with f16 scales: what is packed, and products against sums in double
// and bit for bit against themselves.
#include <algorithm>

#include "product_fixture.h"
#include "random_blocks.h"

namespace {

using namespace pb;
using namespace pb::test;

struct Product : ProductFixture {
  RandomBlocks w;

  Product(int n_out, int n_in, int rows, DType dtype)
      : ProductFixture(n_out, n_in, rows, dtype), w(n_out, n_in, dtype, 1) {}

  Matrix matrix(Backend& backend, bool with_bias) const {
    return matrix_of(backend, w.view(), with_bias);
  }
};

// A min is taken off apart, and so may be greater than what is left: 2^6 times 2^4 at most.
void expect_product(const Product& p, const cpu::Kernels& target, const Activations& a, int rows,
                    const std::vector<float>& y, bool with_bias) {
  expect_product(p, p.w.values(), target, a, rows, y, with_bias, 64);
}

constexpr Shape kShapes[] = {{1, 256},
                             {3, 512},
                             {64, 256},
                             {65, 768},
                             {kIsSlowed ? 10 : 40, 4864},
                             {9, kIsSlowed ? 2048 : 17920}};

// Where a block begins, as messages name it, in rows of 512 elements.
std::string place_of_block(int block, DType dtype) {
  const int first = block * block_elements(dtype);
  return "[" + std::to_string(first / 512) + ", " + std::to_string(first % 512) + "]";
}

}  // namespace

TEST(blocks_of_a_file_are_taken_as_they_are) {
  constexpr int kCols = 768;
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    for (DType dtype : kF16NativeDTypes) {
      const RandomBlocks first(37, kCols, dtype, 1), second(5, kCols, dtype, 2);
      const Matrix m = make(*backend, {first.view(), second.view()}, dtype);
      std::vector<float> expected = first.values();
      const std::vector<float> more = second.values();
      expected.insert(expected.end(), more.begin(), more.end());
      EXPECT(same_bits(stored(*backend, m), expected));
    }
  }
}

TEST(a_matrix_takes_little_more_than_its_blocks) {
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    for (DType dtype : kF16NativeDTypes) {
      const RandomBlocks blocks(64, 512, dtype, 1);
      const Matrix m = make(*backend, {blocks.view()}, dtype);
      EXPECT(static_cast<double>(m.packed.bytes()) <= 1.05 * static_cast<double>(blocks.size()));
      EXPECT_EQ(m.packed.bytes(), backend->matrix_bytes(64, 512, dtype, false).packed);
    }
  }
}

TEST(blocks_become_other_numbers_where_those_are_asked_for) {
  auto backend = make_cpu_backend(1);
  for (DType dtype : kF16NativeDTypes) {
    const RandomBlocks blocks(5, 512, dtype, 1);
    const std::vector<float> values = blocks.values();
    for (DType other : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
      if (other == DType::kInt8 && int8_holds(dtype)) {
        EXPECT(same_bits(stored(*backend, make(*backend, {blocks.view()}, other)), values));
        continue;
      }
      EXPECT(same_bits(stored(*backend, make(*backend, {blocks.view()}, other)),
                       stored(*backend, make(*backend, {view_of(values, 5, 512)}, other))));
    }
  }
}

TEST(rows_that_are_no_whole_blocks_are_refused) {
  auto backend = make_cpu_backend(1);
  for (DType dtype : kF16NativeDTypes) {
    const RandomBlocks blocks(4, 256, dtype, 1);
    TensorView view = blocks.view();
    view.cols = block_elements(dtype) / 2;
    const std::string groups = "groups of " + std::to_string(block_elements(dtype));
    EXPECT(contains(message_of([&] { make(*backend, {view}, dtype); }), groups));
  }
}

TEST(parts_of_another_dtype_are_refused) {
  auto backend = make_cpu_backend(1);
  const RandomBlocks four(4, 256, DType::kQ4K, 1), six(4, 256, DType::kQ6K, 1);
  const auto mixed = [&] { make(*backend, {four.view(), six.view("v")}, DType::kQ4K); };
  EXPECT_THROWS(ErrorCode::kModelFormat, mixed());
  EXPECT(contains(message_of(mixed), "'v' is of q6_k"));
}

TEST(damaged_scales_are_refused) {
  auto backend = make_cpu_backend(1);
  for (DType dtype : kF16NativeDTypes) {
    for (const uint16_t bad : {0x7c00, 0xfc00, 0x7e00}) {  // infinite, not a number
      RandomBlocks blocks(2, 512, dtype, 1);
      blocks.set_scale(3, bad);
      const auto load = [&] { make(*backend, {blocks.view()}, dtype); };
      EXPECT_THROWS(ErrorCode::kModelFormat, load());
      EXPECT(contains(message_of(load), place_of_block(3, dtype)));
      if (!blocks.has_min()) continue;
      RandomBlocks others(2, 512, dtype, 1);
      others.set_min_scale(2, bad);
      EXPECT(contains(message_of([&] { make(*backend, {others.view()}, dtype); }),
                      place_of_block(2, dtype)));
    }
  }
}

TEST(products_are_within_rounding_of_double) {
  constexpr int kRows = 9;
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    for (DType dtype : kF16NativeDTypes) {
      for (const auto& [n_out, n_in] : kShapes) {
        const Product p(n_out, n_in, kRows, dtype);
        const Matrix m = p.matrix(*backend, true);
        const std::vector<float> y = p.multiply(*backend, *target, m, first_rows(kRows));
        expect_product(p, *target, p.activations(*backend, *target, first_rows(kRows)), kRows, y,
                       true);
      }
    }
  }
}

// Sums of the greatest whole numbers there are, which have to fit where they are held.
TEST(the_greatest_numbers_do_not_overflow) {
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    for (DType dtype : kF16NativeDTypes) {
      for (const bool negative : {false, true}) {
        for (const uint8_t byte : {0x00, 0xff, 0x7f, 0x80}) {
          Product p(33, 512, 2, dtype);
          for (size_t i = 0; i < p.w.n_blocks(); ++i) {
            std::fill_n(p.w.block(i), block_bytes(dtype), static_cast<std::byte>(byte));
            p.w.set_scale(i, f32_to_f16(0.25f));
            if (p.w.has_min()) p.w.set_min_scale(i, f32_to_f16(0.0f));
          }
          std::fill(p.x.begin(), p.x.end(), negative ? -1.0f : 1.0f);
          const Matrix m = p.matrix(*backend, false);
          const std::vector<float> y = p.multiply(*backend, *target, m, {0, 1});
          expect_product(p, *target, p.activations(*backend, *target, {0, 1}), 2, y, false);
        }
      }
    }
  }
}

TEST(a_row_has_the_same_bits_in_any_batch) {
  constexpr int kRows = kIsSlowed ? 7 : 17;
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    for (DType dtype : kF16NativeDTypes) {
      for (const auto& [n_out, n_in] : kShapes) {
        const Product p(n_out, n_in, kRows, dtype);
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
}

TEST(many_rows_and_threads_change_no_bit) {
  // More than pass over a block of K, or over weights, at once.
  constexpr int kRows = kIsSlowed ? 200 : 400;
  constexpr int kOut = kIsSlowed ? 9 : 70, kIn = kIsSlowed ? 4864 : 17920;
  for (const cpu::Kernels* target : runnable_targets()) {
    for (DType dtype : kF16NativeDTypes) {
      const Product p(kOut, kIn, kRows, dtype);
      auto single = make_cpu_backend(1, target->name);
      const Matrix m = p.matrix(*single, false);
      const std::vector<float> y = p.multiply(*single, *target, m, first_rows(kRows));
      for (int r = 0; r < kRows; r += 37) {
        const std::vector<float> alone = p.multiply(*single, *target, m, {r});
        EXPECT(same_bits(y.data() + static_cast<size_t>(r) * kOut, alone.data(), kOut));
      }
      auto backend = make_cpu_backend(3, target->name);
      EXPECT(same_bits(p.multiply(*backend, *target, p.matrix(*backend, false), first_rows(kRows)),
                       y));
    }
  }
}

TEST(bias_and_sum_are_one_rounding_each) {
  constexpr int kRows = 8;
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    for (DType dtype : kF16NativeDTypes) {
      const Product p(77, 256, kRows, dtype);
      const Matrix plain = p.matrix(*backend, false);
      const Matrix biased = p.matrix(*backend, true);
      const std::vector<int> rows = first_rows(kRows);
      const std::vector<float> before = numbers(kRows * 77, 9);
      const std::vector<float> y = p.multiply(*backend, *target, plain, rows);
      const std::vector<float> y_bias = p.multiply(*backend, *target, biased, rows);
      const std::vector<float> y_add = p.multiply(*backend, *target, biased, rows, before.data());
      for (size_t i = 0; i < y.size(); ++i) {
        EXPECT_EQ(y_bias[i], y[i] + p.bias[i % 77]);
        EXPECT_EQ(y_add[i], before[i] + y_bias[i]);
      }
    }
  }
}

TEST(what_is_not_finite_stays_visible) {
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    for (DType dtype : kF16NativeDTypes) {
      for (float bad : {std::nanf(""), -std::nanf(""), std::numeric_limits<float>::infinity()}) {
        for (int at = 0; at < kSuperBlock; at += 5) {
          Product p(3, kSuperBlock, 2, dtype);
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
}

// As in test_kernels_gemm.cc. The scalar target rounds twice where others do once.
TEST(vectors_of_any_width_give_the_same_bits) {
  constexpr int kRows = 13;
  for (DType dtype : kSuperBlockDTypes) {
    const Product p(70, 1536, kRows, dtype);
    std::vector<float> expected;
    for (const cpu::Kernels* target : runnable_targets()) {
      if (std::string(target->name) == "scalar") continue;
      auto backend = make_cpu_backend(1, target->name);
      const Matrix m = p.matrix(*backend, true);
      const std::vector<float> y = p.multiply(*backend, *target, m, first_rows(kRows));
      if (expected.empty()) expected = y;
      EXPECT(same_bits(y, expected));
    }
  }
}

PB_TEST_MAIN()
