// Matrices of MXFP4: what is packed, and products against sums in double and bit for bit against
// themselves.
#include <algorithm>

#include "product_cases.h"
#include "random_mxfp4.h"

namespace {

using namespace pb;
using namespace pb::test;

struct Product : ProductFixture {
  RandomMxfp4 w;

  Product(int n_out, int n_in, int rows)
      : ProductFixture(n_out, n_in, rows, DType::kMxfp4), w(n_out, n_in, 1) {}

  Matrix matrix(Backend& backend, bool with_bias) const {
    return matrix_of(backend, w.view(), with_bias);
  }
};

void expect_product(const Product& p, const cpu::Kernels& target, const Activations& a, int rows,
                    const std::vector<float>& y, bool with_bias) {
  expect_product(p, p.w.values(), target, a, rows, y, with_bias);
}

constexpr Shape kShapes[] = {{1, 32}, {3, 96}, {64, 256}, {65, 736}, {40, 2880}, {9, 17920}};

}  // namespace

TEST(blocks_of_a_file_are_taken_as_they_are) {
  constexpr int kCols = 160;
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    RandomMxfp4 first(37, kCols, 1);
    const RandomMxfp4 second(5, kCols, 2);
    for (int scale = 0; scale < 100; ++scale) first.groups[scale].scale = uint8_t(scale);
    const Matrix m = make(*backend, {first.view(), second.view()}, DType::kMxfp4);
    std::vector<float> expected = first.values();
    const std::vector<float> more = second.values();
    expected.insert(expected.end(), more.begin(), more.end());
    EXPECT(same_bits(stored(*backend, m), expected));
  }
}

TEST(a_matrix_takes_its_blocks_and_no_more) {
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    const RandomMxfp4 blocks(64, 512, 1);
    const Matrix m = make(*backend, {blocks.view()}, DType::kMxfp4);
    EXPECT_EQ(m.packed.bytes(), blocks.groups.size() * sizeof(Mxfp4Group));
    EXPECT_EQ(m.packed.bytes(), backend->matrix_bytes(64, 512, DType::kMxfp4, false).packed);
  }
}

TEST(blocks_become_other_numbers_where_those_are_asked_for) {
  auto backend = make_cpu_backend(1);
  const RandomMxfp4 blocks(5, 96, 1);
  const std::vector<float> values = blocks.values();
  for (DType other : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
    EXPECT(same_bits(stored(*backend, make(*backend, {blocks.view()}, other)),
                     stored(*backend, make(*backend, {view_of(values, 5, 96)}, other))));
  }
}

TEST(what_is_no_whole_group_or_of_another_dtype_is_refused) {
  auto backend = make_cpu_backend(1);
  const RandomMxfp4 blocks(4, 64, 1);
  TensorView view = blocks.view();
  view.cols = 40;
  EXPECT(contains(message_of([&] { make(*backend, {view}, DType::kMxfp4); }), "groups of 32"));
  const std::vector<float> plain = numbers(64, 1);
  const auto mixed = [&] {
    make(*backend, {blocks.view(), view_of(plain, 1, 64, "v")}, DType::kMxfp4);
  };
  EXPECT(contains(message_of(mixed), "'v' is of f32"));
}

TEST(scales_that_are_no_numbers_or_too_great_are_refused) {
  auto backend = make_cpu_backend(1);
  const auto loaded = [&](uint8_t scale, uint8_t pair) {
    RandomMxfp4 blocks(2, 64, 1);
    blocks.groups[3].scale = scale;
    std::ranges::fill(blocks.groups[3].pairs, uint8_t{0});
    blocks.groups[3].pairs[7] = pair;
    return message_of([&] { make(*backend, {blocks.view()}, DType::kMxfp4); });
  };
  EXPECT(contains(loaded(255, 0), "[1, 32]"));
  EXPECT(contains(loaded(253, 0x07), "[1, 39]"));  // 6 times 2^126
  EXPECT(contains(loaded(254, 0x40), "[1, 55]"));  // 2 times 2^127
  EXPECT_EQ(loaded(252, 0x77), "(nothing thrown)");
  EXPECT_EQ(loaded(253, 0x05), "(nothing thrown)");
}

TEST(products_are_within_rounding_of_double) {
  constexpr int kRows = 9;
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    for (const auto& [n_out, n_in] : kShapes) {
      const Product p(n_out, n_in, kRows);
      const Matrix m = p.matrix(*backend, true);
      const std::vector<float> y = p.multiply(*backend, *target, m, first_rows(kRows));
      expect_product(p, *target, p.activations(*backend, *target, first_rows(kRows)), kRows, y,
                     true);
    }
  }
}

// Scales far from 1, the least too: products of numbers of f32 with them, and no more rounding.
TEST(products_under_any_scale) {
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    for (const int scale : {0, 1, 2, 60, 200, 240}) {
      Product p(20, 32, 2);
      for (Mxfp4Group& group : p.w.groups) group.scale = static_cast<uint8_t>(scale);
      if (scale < 3) {  // products that are normal numbers
        for (float& x : p.x) x *= 0x1p40f;
      }
      const Matrix m = p.matrix(*backend, false);
      expect_product(p, *target, p.activations(*backend, *target, {0, 1}), 2,
                     p.multiply(*backend, *target, m, {0, 1}), false);
    }
  }
}

// Sums of the greatest whole numbers there are, which have to fit where they are held.
TEST(the_greatest_numbers_do_not_overflow) {
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    for (const float sign : {-1.0f, 1.0f}) {
      for (const uint8_t byte : {0x77, 0xff, 0x7f, 0xf7, 0x00}) {
        Product p(33, 64, 2);
        for (Mxfp4Group& group : p.w.groups) std::ranges::fill(group.pairs, byte);
        std::ranges::fill(p.x, sign);
        const Matrix m = p.matrix(*backend, false);
        const std::vector<float> y = p.multiply(*backend, *target, m, {0, 1});
        expect_product(p, *target, p.activations(*backend, *target, {0, 1}), 2, y, false);
      }
    }
  }
}

TEST(a_row_has_the_same_bits_in_any_batch) { expect_same_bits_in_any_batch<Product>(kShapes); }

TEST(many_rows_and_threads_change_no_bit) { expect_same_bits_of_many_rows<Product>(); }

TEST(bias_and_sum_are_one_rounding_each) { expect_one_rounding_each<Product>(96); }

TEST(what_is_not_finite_stays_visible) { expect_not_finite_stays_visible<Product>(kGroup, 5); }

PB_TEST_MAIN()
