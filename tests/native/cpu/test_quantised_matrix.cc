// Quantised weights as a backend packs them, and rows as it quantises them.
#include "cpu_fixture.h"

namespace {

using namespace pb;
using namespace pb::test;

// Blocks of random bytes with scales that are finite, as a file holds them.
template <typename Group>
struct Blocks {
  int rows, cols;
  std::vector<Group> groups;

  Blocks(int rows, int cols, uint64_t seed) : rows(rows), cols(cols), groups(rows * cols / kGroup) {
    auto* bytes = reinterpret_cast<uint8_t*>(groups.data());
    for (size_t i = 0; i < groups.size() * sizeof(Group); ++i) {
      bytes[i] = static_cast<uint8_t>(integer(seed, i, 256));
    }
    for (size_t i = 0; i < groups.size(); ++i) {
      groups[i].scale = f32_to_f16(static_cast<float>(uniform(seed + 1, i) - 0.5));
    }
  }

  TensorView view(DType dtype) const {
    return {"blocks", groups.data(), dtype, rows, cols, cols, 1};
  }

  std::vector<float> values() const {
    std::vector<float> x(static_cast<size_t>(rows) * cols);
    for (size_t i = 0; i < groups.size(); ++i) dequantise(groups[i], &x[i * kGroup]);
    return x;
  }
};

std::vector<float> joined(std::vector<float> a, const std::vector<float>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST(blocks_of_a_file_are_taken_as_they_are) {
  constexpr int kCols = 96;
  const Blocks<Int8Group> eight(37, kCols, 1);
  const Blocks<Int4Group> four(37, kCols, 2);
  const std::vector<float> plain = numbers(3 * kCols, 3);
  std::vector<float> plain_eight, plain_four;
  for (int r = 0; r < 3; ++r) {
    const std::vector<float> row(plain.begin() + r * kCols, plain.begin() + (r + 1) * kCols);
    plain_eight = joined(plain_eight, rounded_row(row, DType::kInt8));
    plain_four = joined(plain_four, rounded_row(row, DType::kInt4));
  }
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    const TensorView other = view_of(plain, 3, kCols);
    const Matrix int8 = make(*backend, {eight.view(DType::kInt8), other}, DType::kInt8);
    EXPECT(same_bits(stored(*backend, int8), joined(eight.values(), plain_eight)));
    const Matrix int4 = make(*backend, {other, four.view(DType::kInt4)}, DType::kInt4);
    EXPECT(same_bits(stored(*backend, int4), joined(plain_four, four.values())));
  }
}

TEST(blocks_become_plain_numbers_where_those_are_asked_for) {
  const Blocks<Int8Group> eight(5, 64, 1);
  const Blocks<Int4Group> four(5, 64, 2);
  auto backend = make_cpu_backend(1);
  EXPECT(same_bits(stored(*backend, make(*backend, {eight.view(DType::kInt8)}, DType::kF32)),
                   eight.values()));
  EXPECT(same_bits(stored(*backend, make(*backend, {four.view(DType::kInt4)}, DType::kF32)),
                   four.values()));
  std::vector<float> narrow = eight.values();
  for (float& x : narrow) x = rounded(x, DType::kBF16);
  EXPECT(same_bits(stored(*backend, make(*backend, {eight.view(DType::kInt8)}, DType::kBF16)),
                   narrow));
}

TEST(rows_that_are_no_whole_groups_are_refused) {
  const Blocks<Int8Group> blocks(4, 64, 1);
  auto backend = make_cpu_backend(1);
  TensorView view = blocks.view(DType::kInt8);
  view.cols = 40;
  EXPECT_THROWS(ErrorCode::kModelFormat, make(*backend, {view}, DType::kInt8));
  EXPECT(contains(message_of([&] { make(*backend, {view}, DType::kInt8); }), "groups of 32"));
}

TEST(numbers_that_a_scale_cannot_hold_are_refused) {
  auto backend = make_cpu_backend(1);
  std::vector<float> x = numbers(64, 1);
  x[40] = 1e6f;
  for (DType dtype : {DType::kInt8, DType::kInt4}) {
    const std::string message =
        message_of([&] { make(*backend, {view_of(x, 1, 64, "w")}, dtype); });
    EXPECT(contains(message, "'w'"));
    EXPECT(contains(message, "[0, 40]"));
    EXPECT(contains(message, std::string("overflows ") + dtype_name(dtype)));
  }
}

TEST(a_damaged_scale_is_refused) {
  Blocks<Int8Group> blocks(2, 64, 1);
  blocks.groups[3].scale = 0x7c00;  // infinite
  auto backend = make_cpu_backend(1);
  EXPECT(contains(message_of([&] { make(*backend, {blocks.view(DType::kInt8)}, DType::kInt8); }),
                  "[1, 32]"));
}

TEST(under_a_great_scale_the_numbers_themselves_say_whether_they_overflow) {
  auto backend = make_cpu_backend(1);
  Blocks<Int8Group> eight(1, 64, 1);
  eight.groups[1].scale = f32_to_f16(512.0f);  // times 127 it fits, times 128 it does not
  std::ranges::fill(eight.groups[1].values, int8_t{127});
  EXPECT(same_bits(stored(*backend, make(*backend, {eight.view(DType::kInt8)}, DType::kInt8)),
                   eight.values()));
  eight.groups[1].values[5] = -128;
  EXPECT(contains(message_of([&] { make(*backend, {eight.view(DType::kInt8)}, DType::kInt8); }),
                  "[0, 37]"));

  Blocks<Int4Group> four(1, 64, 1);
  four.groups[1].scale = f32_to_f16(8192.0f);  // times 7 it fits, times 8 it does not
  std::ranges::fill(four.groups[1].pairs, uint8_t{0x1f});
  EXPECT(same_bits(stored(*backend, make(*backend, {four.view(DType::kInt4)}, DType::kInt4)),
                   four.values()));
  four.groups[1].pairs[3] = 0x0f;
  EXPECT(contains(message_of([&] { make(*backend, {four.view(DType::kInt4)}, DType::kInt4); }),
                  "[0, 51]"));
}

TEST(quantised_rows_are_within_half_a_step) {
  constexpr int kCols = 100;  // three groups and a piece
  const std::vector<float> x = numbers(kCols, 1, 3.0f);
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    for (DType dtype : {DType::kInt8, DType::kInt4}) {
      if (product_of(*target, dtype).row != cpu::RowFormat::kInt8) continue;
      Activations a = backend->make_activations(1, kCols, dtype);
      write_activations(a, *target, 0, x.data());
      const std::vector<float> back = read_activations(a, *target, 0);
      const auto* numbers = a.data.as<int8_t>();
      for (int g = 0; g * kGroup < kCols; ++g) {
        const cpu::RowGroup& group = a.groups.as<cpu::RowGroup>()[g];
        int halves[2] = {};
        for (int i = g * kGroup; i < (g + 1) * kGroup; ++i) {
          halves[i % kGroup * 2 / kGroup] += numbers[i];
          const float exact = i < kCols ? x[i] : 0.0f;
          EXPECT(std::abs(back[i] - exact) <= group.scale * 0.50001f);
        }
        EXPECT_EQ(group.halves[0], halves[0]);
        EXPECT_EQ(group.halves[1], halves[1]);
        EXPECT_EQ(group.total, group.scale * static_cast<float>(halves[0] + halves[1]));
      }
    }
  }
}

TEST(what_is_not_finite_stays_visible_in_a_quantised_row) {
  const std::vector<float> w(kGroup, 0.5f);
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    for (DType dtype : {DType::kInt8, DType::kInt4}) {
      const Matrix m = make(*backend, {view_of(w, 1, kGroup)}, dtype);
      for (float bad : {std::nanf(""), -std::nanf(""), std::numeric_limits<float>::infinity()}) {
        for (int at = 0; at < kGroup; ++at) {
          std::vector<float> x = numbers(kGroup, 1);
          x[at] = bad;
          Activations a = backend->make_activations(1, kGroup, dtype);
          write_activations(a, *target, 0, x.data());
          std::vector<float> y = {0.0f};
          Buffer out = over(y);
          backend->matmul(a, 1, m, out, Store::kSet);
          EXPECT(!std::isfinite(y[0]));
        }
      }
    }
  }
}

PB_TEST_MAIN()
