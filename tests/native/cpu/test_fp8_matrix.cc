// Matrices of FP8: what is packed, and products against sums in double and bit for bit against
// themselves.
#include <algorithm>

#include "product_cases.h"
#include "random_fp8.h"

namespace {

using namespace pb;
using namespace pb::test;

struct Product : ProductFixture {
  RandomFp8 w;

  Product(int n_out, int n_in, int rows)
      : ProductFixture(n_out, n_in, rows, DType::kFp8), w(n_out, n_in, 1) {}

  Matrix matrix(Backend& backend, bool with_bias) const {
    return matrix_of(backend, w.view(), with_bias);
  }
};

void expect_product(const Product& p, const cpu::Kernels& target, const Activations& a, int rows,
                    const std::vector<float>& y, bool with_bias) {
  // Chains over the k's of a block, not of a group.
  expect_product(p, p.w.values(), target, a, rows, y, with_bias, 16);
}

constexpr Shape kShapes[] = {{1, 128}, {3, 384}, {64, 256}, {65, 640}, {40, 2944}, {9, 17920}};

}  // namespace

TEST(blocks_of_a_file_are_taken_as_they_are) {
  constexpr int kCols = 384;
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    RandomFp8 first(37, kCols, 1);
    const RandomFp8 second(5, kCols, 2);
    for (int i = 0; i < 80; ++i) first.blocks[i].scale = std::ldexp(1.1f, i - 40);
    const Matrix m = make(*backend, {first.view(), second.view()}, DType::kFp8);
    std::vector<float> expected = first.values();
    const std::vector<float> more = second.values();
    expected.insert(expected.end(), more.begin(), more.end());
    EXPECT(same_bits(stored(*backend, m), expected));
  }
}

TEST(a_matrix_takes_its_blocks_and_no_more) {
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    const RandomFp8 blocks(64, 512, 1);
    const Matrix m = make(*backend, {blocks.view()}, DType::kFp8);
    EXPECT_EQ(m.packed.bytes(), blocks.blocks.size() * sizeof(Fp8Block));
    EXPECT_EQ(m.packed.bytes(), backend->matrix_bytes(64, 512, DType::kFp8, false).packed);
  }
}

TEST(blocks_become_other_numbers_where_those_are_asked_for) {
  auto backend = make_cpu_backend(1);
  const RandomFp8 blocks(5, 384, 1);
  const std::vector<float> values = blocks.values();
  for (DType other : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
    EXPECT(same_bits(stored(*backend, make(*backend, {blocks.view()}, other)),
                     stored(*backend, make(*backend, {view_of(values, 5, 384)}, other))));
  }
}

TEST(what_is_no_whole_block_or_of_another_dtype_is_refused) {
  auto backend = make_cpu_backend(1);
  const RandomFp8 blocks(4, 256, 1);
  TensorView view = blocks.view();
  view.cols = 64;
  EXPECT(contains(message_of([&] { make(*backend, {view}, DType::kFp8); }), "groups of 128"));
  const std::vector<float> plain = numbers(256, 1);
  const auto mixed = [&] {
    make(*backend, {blocks.view(), view_of(plain, 1, 256, "v")}, DType::kFp8);
  };
  EXPECT(contains(message_of(mixed), "'v' is of f32"));
}

TEST(what_is_no_number_or_too_great_is_refused) {
  auto backend = make_cpu_backend(1);
  const auto loaded = [&](float scale, uint8_t byte) {
    RandomFp8 blocks(2, 256, 1);
    blocks.blocks[3].scale = scale;
    blocks.blocks[3].bytes[7] = byte;
    return message_of([&] { make(*backend, {blocks.view()}, DType::kFp8); });
  };
  EXPECT(contains(loaded(1.0f, 0x7f), "[1, 135]"));
  EXPECT(contains(loaded(1.0f, 0xff), "[1, 135]"));
  for (const float scale : {std::nanf(""), std::numeric_limits<float>::infinity(), -0x1p120f}) {
    EXPECT(contains(loaded(scale, 1), "[1, 128]"));
  }
  EXPECT_EQ(loaded(0x1p119f, 0x7e), "(nothing thrown)");
  EXPECT_EQ(loaded(0.0f, 0xfe), "(nothing thrown)");
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

// Every byte, those without a leading one too, with scales far from 1.
TEST(products_of_every_number) {
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    for (const float scale : {0x1p-100f, 1.0f, -3.3f, 0x1p100f}) {
      Product p(254, 128, 128);
      std::ranges::fill(p.x, 0.0f);
      for (int r = 0; r < 128; ++r) p.x[r * 128 + r] = 1.5f;  // row r multiplies k = r
      for (int o = 0; o < 254; ++o) {
        p.w.blocks[o].scale = scale;
        std::ranges::fill(p.w.blocks[o].bytes, static_cast<uint8_t>(o < 127 ? o : o + 1));
      }
      const std::vector<float> y =
          p.multiply(*backend, *target, p.matrix(*backend, false), first_rows(128));
      for (int r = 0; r < 128; ++r) {
        for (int o = 0; o < 254; ++o) {
          const float number = e4m3_to_f32(p.w.blocks[o].bytes[0]);
          EXPECT_EQ(y[r * 254 + o], 1.5f * number * scale);
        }
      }
    }
  }
}

TEST(a_row_has_the_same_bits_in_any_batch) { expect_same_bits_in_any_batch<Product>(kShapes); }

TEST(many_rows_and_threads_change_no_bit) { expect_same_bits_of_many_rows<Product>(); }

TEST(bias_and_sum_are_one_rounding_each) { expect_one_rounding_each<Product>(256); }

TEST(what_is_not_finite_stays_visible) { expect_not_finite_stays_visible<Product>(kFp8Block, 19); }

PB_TEST_MAIN()
