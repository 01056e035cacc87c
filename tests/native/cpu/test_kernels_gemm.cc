// Matrix products: against sums in double, and bit for bit against themselves.
#include <algorithm>
#include <bit>

#include "product_fixture.h"

namespace {

using namespace pb;
using namespace pb::test;

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4};

struct Product : ProductFixture {
  std::vector<float> w;

  Product(int n_out, int n_in, int rows, DType dtype)
      : ProductFixture(n_out, n_in, rows, dtype),
        w(numbers(static_cast<size_t>(n_out) * n_in, 1)) {}

  Matrix matrix(Backend& backend, bool with_bias) const {
    return matrix_of(backend, view_of(w, n_out, n_in), with_bias);
  }
};

constexpr Shape kShapes[] = {{1, 1},
                             {3, 5},
                             {16, 2},
                             {64, 64},
                             {65, 33},
                             {kIsSlowed ? 34 : 130, 1031},
                             {kIsSlowed ? 18 : 48, 2050},
                             {kIsSlowed ? 20 : 40, 4704}};

}  // namespace

TEST(products_are_within_rounding_of_double) {
  constexpr int kRows = 9;
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    for (DType dtype : kDTypes) {
      for (const auto& [n_out, n_in] : kShapes) {
        const Product p(n_out, n_in, kRows, dtype);
        const Matrix m = p.matrix(*backend, true);
        const std::vector<float> y = p.multiply(*backend, *target, m, first_rows(kRows));
        const Activations a = p.activations(*backend, *target, first_rows(kRows));
        for (int o = 0; o < n_out; ++o) {
          const float* row_of_w = p.w.data() + static_cast<size_t>(o) * n_in;
          const std::vector<float> w = multiplied_row({row_of_w, row_of_w + n_in}, *target, dtype);
          for (int r = 0; r < kRows; ++r) {
            const std::vector<float> x = read_activations(a, *target, r);
            double sum = p.bias[o];
            double size = std::abs(p.bias[o]);
            for (int k = 0; k < n_in; ++k) {
              const double term = static_cast<double>(x[k]) * w[k];
              sum += term;
              size += std::abs(term);
            }
            // n_in + 1 sums and, where they are no fma, n_in products, each off by half a unit (of
            // whole numbers: the scales and a sum a group); a bf16 dot product may take numbers
            // below 2^-126 for zero.
            const double tolerance = 2.0 * (n_in + 2) * (0x1p-24 * size + 0x1p-126);
            EXPECT(std::abs(y[r * n_out + o] - sum) <= tolerance);
          }
        }
      }
    }
  }
}

TEST(a_row_has_the_same_bits_in_any_batch) {
  constexpr int kRows = kIsSlowed ? 8 : 33;
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    for (DType dtype : kDTypes) {
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
  constexpr int kRows = kIsSlowed ? 200 : 530;
  constexpr int kOut = kIsSlowed ? 20 : 70, kIn = 2100;
  for (const cpu::Kernels* target : runnable_targets()) {
    for (DType dtype : kDTypes) {
      const Product p(kOut, kIn, kRows, dtype);
      auto single = make_cpu_backend(1, target->name);
      const Matrix m = p.matrix(*single, false);
      const std::vector<float> y = p.multiply(*single, *target, m, first_rows(kRows));
      for (int r = 0; r < kRows; r += 37) {
        const std::vector<float> alone = p.multiply(*single, *target, m, {r});
        EXPECT(same_bits(y.data() + static_cast<size_t>(r) * kOut, alone.data(), kOut));
      }
      for (int threads : {2, 3}) {
        auto backend = make_cpu_backend(threads, target->name);
        EXPECT(same_bits(
            p.multiply(*backend, *target, p.matrix(*backend, false), first_rows(kRows)), y));
        EXPECT(
            same_bits(p.multiply(*backend, *target, m, {7}), p.multiply(*single, *target, m, {7})));
      }
    }
  }
}

TEST(bias_and_sum_are_one_rounding_each) {
  constexpr int kRows = 26;  // more than products of few rows take
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    for (DType dtype : kDTypes) {
      const Product p(77, 130, kRows, dtype);
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

TEST(padding_of_tiles_and_rows_reaches_nothing) {
  // An infinite activation must not turn into NaN by the zeros that pad a tile, nor reach other
  // rows.
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    for (DType dtype : kDTypes) {
      Product p(5, 7, 2, dtype);
      for (float& w : p.w) w = std::abs(w) + 0.5f;
      const Matrix m = p.matrix(*backend, false);
      const std::vector<float> finite = p.multiply(*backend, *target, m, {1});
      p.x[6] = std::numeric_limits<float>::infinity();
      const std::vector<float> y = p.multiply(*backend, *target, m, {0, 1});
      for (int o = 0; o < 5; ++o) {
        // Rows that are quantised have an infinite scale then, and any sign.
        EXPECT(is_quantised(dtype) ? !std::isfinite(y[o])
                                   : y[o] == std::numeric_limits<float>::infinity());
      }
      EXPECT(same_bits(y.data() + 5, finite.data(), 5));
    }
  }
}

TEST(embed_gives_back_the_stored_rows) {
  constexpr int kVocab = 131, kHidden = 45;
  for (const cpu::Kernels* target : runnable_targets()) {
    for (int threads : {1, 2}) {
      auto backend = make_cpu_backend(threads, target->name);
      for (DType dtype : kDTypes) {
        const Product p(kVocab, kHidden, 1, dtype);
        const Matrix m = p.matrix(*backend, false);
        std::vector<int32_t> ids(400);
        for (size_t i = 0; i < ids.size(); ++i) ids[i] = integer(5, i, kVocab);
        const std::vector<float> x = embedded(*backend, m, ids);
        const std::vector<float> twice = embedded(*backend, m, ids, x);
        for (size_t i = 0; i < x.size(); ++i) {
          const float* row = p.w.data() + ids[i / kHidden] * kHidden;
          const float stored = rounded_row({row, row + kHidden}, dtype)[i % kHidden];
          EXPECT_EQ(x[i], stored);
          EXPECT_EQ(twice[i], 2.0f * stored);
        }
      }
    }
  }
}

// The greatest sums of a group: no instruction on the way may saturate or wrap.
TEST(bytes_at_their_limits_are_summed_exactly) {
  constexpr int kOut = 48, kIn = 96;
  const auto filled = [](auto group, const std::vector<int>& bytes) {
    std::vector<decltype(group)> blocks(kOut * kIn / kGroup, group);
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks[i].scale = f32_to_f16(0.25f);
      std::memset(reinterpret_cast<std::byte*>(&blocks[i]) + sizeof(uint16_t),
                  bytes[i % bytes.size()], sizeof(group) - sizeof(uint16_t));
    }
    return blocks;
  };
  const auto eight = filled(Int8Group{}, {0x80, 0x7f, 0xff, 0x81});
  const auto four = filled(Int4Group{}, {0x00, 0xff, 0xf0, 0x0f});
  std::vector<float> x(4 * kIn);  // whole numbers with a scale of 1, so that nothing is rounded
  for (int k = 0; k < kIn; ++k) {
    x[k] = 127.0f;
    x[kIn + k] = -127.0f;
    x[2 * kIn + k] = k % 2 == 0 ? 127.0f : -127.0f;
    x[3 * kIn + k] = k % 4 < 2 ? -127.0f : 127.0f;
  }
  for (const DType dtype : {DType::kInt8, DType::kInt4}) {
    const void* data = dtype == DType::kInt8 ? static_cast<const void*>(eight.data()) : four.data();
    const TensorView view{"blocks", data, dtype, kOut, kIn, kIn, 1};
    std::vector<float> expected;
    for (const cpu::Kernels* target : runnable_targets()) {  // scalar is one of them
      if (product_of(*target, dtype).row != cpu::RowFormat::kInt8) continue;
      auto backend = make_cpu_backend(1, target->name);
      const Matrix m = make(*backend, {view}, dtype);
      Product p(kOut, kIn, 4, dtype);
      p.x = x;
      const std::vector<float> y = p.multiply(*backend, *target, m, first_rows(4));
      if (expected.empty()) expected = y;
      EXPECT(same_bits(y, expected));
    }
    EXPECT(!expected.empty());
    // Three groups of the first output: bytes 0x80, 0x7f and 0xff, or nibbles 0, 15, and both.
    const float first = dtype == DType::kInt8 ? -128.0f + 127.0f - 1.0f : -8.0f + 7.0f - 0.5f;
    EXPECT(expected[0] == first * 127.0f * 32.0f * 0.25f);
  }
}

// Whatever the width of its vectors and the instructions for bytes: sums are exact, and what a
// group adds is one fused multiply-add. The scalar target rounds twice.
TEST(vectors_of_any_width_give_the_same_bits_of_quantised_products) {
  constexpr int kRows = 13, kOut = 70, kIn = 2100;
  for (const DType dtype : {DType::kInt8, DType::kInt4}) {
    const Product p(kOut, kIn, kRows, dtype);
    std::vector<float> expected;
    for (const cpu::Kernels* target : runnable_targets()) {
      if (product_of(*target, dtype).row != cpu::RowFormat::kInt8) continue;
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
