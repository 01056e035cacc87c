// Compressed matrices of bf16: the numbers and products of plain ones, bit for bit, wherever
// patches lie.
#include <algorithm>
#include <cmath>
#include <set>

#include "cpu/weights/pack.h"
#include "cpu/weights/pack_compressed_bf16.h"
#include "product_cases.h"

namespace {

using namespace pb;
using namespace pb::test;

constexpr Shape kShapes[] = {{1, 1}, {3, 33}, {64, 64}, {65, 97}, {40, 1030}, {150, 4100}};

std::vector<const cpu::Kernels*> coding_targets() {
  std::vector<const cpu::Kernels*> targets = runnable_targets();
  std::erase_if(targets,
                [](const auto* target) { return target->compressed_bf16.tiles == nullptr; });
  return targets;
}

// Weights as models have them, of which `n_odd` are of sizes that no others have.
std::vector<float> weights_with(int n_odd, Shape shape, uint64_t seed) {
  const int n = shape.n_out * shape.n_in;
  std::vector<float> w = numbers(static_cast<size_t>(n), seed);
  for (int i = 0; i < n_odd; ++i) {
    const int at = integer(seed + 1, i, n);
    w[at] = std::ldexp(i % 2 == 0 ? 1.3f : -1.7f, 20 + integer(seed + 2, i, 40));
  }
  return w;
}

Matrix placed_as(const cpu::TileLayout& layout, Backend& backend, const TensorView& view) {
  return backend.place(packed_as(layout, view, DType::kBF16));
}

}  // namespace

// Of a number of patches that is none, few, as many as there is room for, and more.
TEST(products_and_numbers_are_those_of_plain_weights) {
  constexpr int kRows = kIsSlowed ? 8 : 40;
  std::set<bool> seen;
  for (const cpu::Kernels* target : coding_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    for (const Shape& shape : kShapes) {
      for (int n_odd : {0, 1, 5, 12, shape.n_out * shape.n_in / 600, 2000}) {
        const std::vector<float> w = weights_with(n_odd, shape, 7 + static_cast<uint64_t>(n_odd));
        const TensorView view = view_of(w, shape.n_out, shape.n_in);
        const Matrix compressed = placed_as(target->compressed_bf16.tile, *backend, view);
        const Matrix plain = placed_as(target->bf16.tile, *backend, view);
        seen.insert(compressed.compressed);
        EXPECT(!plain.compressed);
        EXPECT(same_bits(stored(*backend, compressed), stored(*backend, plain)));
        const ProductFixture p(shape.n_out, shape.n_in, kRows, DType::kBF16);
        for (int n : {1, 2, 3, 4, 5, 6, 7, 8, 13, 40}) {
          if (n > kRows) continue;
          const std::vector<int> rows = first_rows(n);
          EXPECT(same_bits(p.multiply(*backend, *target, compressed, rows),
                           p.multiply(*backend, *target, plain, rows)));
        }
      }
    }
  }
  EXPECT(coding_targets().empty() || seen.size() == 2);
}

// More rows than pass over a block of K at once, and a K of many blocks.
TEST(products_of_many_rows_are_those_of_plain_weights) {
  constexpr int kRows = kIsSlowed ? 70 : 400;
  constexpr Shape kShape = {70, 9000};
  const std::vector<float> w = weights_with(300, kShape, 3);
  for (const cpu::Kernels* target : coding_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    const TensorView view = view_of(w, kShape.n_out, kShape.n_in);
    const Matrix compressed = placed_as(target->compressed_bf16.tile, *backend, view);
    EXPECT(compressed.compressed);
    const Matrix plain = placed_as(target->bf16.tile, *backend, view);
    const ProductFixture p(kShape.n_out, kShape.n_in, kRows, DType::kBF16);
    for (int n : {kRows, 70, 65, 63}) {
      const std::vector<int> rows = shuffled(n, 5);
      EXPECT(same_bits(p.multiply(*backend, *target, compressed, rows),
                       p.multiply(*backend, *target, plain, rows)));
    }
  }
}

TEST(a_compressed_matrix_takes_three_quarters) {
  for (const cpu::Kernels* target : coding_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    const std::vector<float> w = numbers(size_t{256} * 2048, 1);
    const Matrix m = make(*backend, {view_of(w, 256, 2048)}, DType::kBF16);
    EXPECT(m.compressed);
    EXPECT_EQ(m.packed.bytes(), backend->matrix_bytes(256, 2048, DType::kBF16, true).packed);
    const size_t plain = backend->matrix_bytes(256, 2048, DType::kBF16, false).packed;
    EXPECT_EQ(plain, size_t{256} * 2048 * 2);
    EXPECT(m.packed.bytes() < plain * 77 / 100);
  }
}

// Random bits have all high bytes alike.
TEST(a_matrix_that_cannot_be_compressed_stays_plain) {
  std::vector<float> w(size_t{96} * 512);
  for (size_t i = 0; i < w.size(); ++i) w[i] = std::ldexp(1.0f, integer(1, i, 200) - 100);
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    const Matrix m = make(*backend, {view_of(w, 96, 512)}, DType::kBF16);
    EXPECT(!m.compressed);
    EXPECT(same_bits(stored(*backend, m), w));
  }
}

// Patches name runs by 16 bits.
TEST(longer_rows_than_patches_can_name_stay_plain) {
  for (const cpu::Kernels* target : coding_targets()) {
    const int run = target->compressed_bf16.tile.run;
    const int columns = target->compressed_bf16.tile.columns;
    const int longest = run / columns * (cpu::kNoRun - 1) / cpu::kBf16Padding * cpu::kBf16Padding;
    auto backend = make_cpu_backend(1, target->name);
    for (const int n_in : {longest, longest + cpu::kBf16Padding}) {
      std::vector<float> w(static_cast<size_t>(n_in), 0.5f);
      w.back() = 0x1p90f;
      const Matrix m = make(*backend, {view_of(w, 1, n_in)}, DType::kBF16);
      EXPECT_EQ(m.compressed, n_in == longest);
      EXPECT(same_bits(stored(*backend, m), w));
    }
  }
}

// Zeros of both signs, the smallest and the greatest numbers, each as code and as patch.
TEST(every_kind_of_number_comes_back) {
  const float kinds[] = {0.0f, -0.0f, 0x1p-133f, -0x1p-126f, 0x1.fep127f, 1.0f, -3.5f};
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    for (const float most : kinds) {
      std::vector<float> w(size_t{64} * 640, most);
      for (size_t i = 0; i < std::size(kinds); ++i) w[i * 5003] = kinds[i];
      const Matrix m = make(*backend, {view_of(w, 64, 640)}, DType::kBF16);
      EXPECT_EQ(m.compressed, target->compressed_bf16.tiles != nullptr);
      EXPECT(same_bits(stored(*backend, m), w));
    }
  }
}

PB_TEST_MAIN()
