// The CPU backend at load: which target runs, what is packed, what is refused.
#include <algorithm>
#include <bit>

#include "cpu/weights/pack.h"
#include "cpu_fixture.h"
#include "environment.h"

using namespace pb;
using namespace pb::test;

TEST(the_named_target_runs) {
  for (const cpu::Kernels* target : runnable_targets()) {
    EXPECT_EQ(make_cpu_backend(1, target->name)->target(), target->name);
    set_variable("PYBATCHER_CPU_TARGET", target->name);
    EXPECT_EQ(make_cpu_backend(1)->target(), target->name);
  }
  unset_variable("PYBATCHER_CPU_TARGET");
  EXPECT_EQ(make_cpu_backend(1)->target(), cpu::choose_target("", "").name);
}

TEST(the_choice_is_the_widest_vectors_that_run) {
  const std::string choice = cpu::choose_target("", "").name;
  const std::string widest = runnable_targets().front()->name;
  EXPECT(choice == widest || (choice == "avx512_vnni" && widest == "avx512_bf16"));
}

TEST(the_scalar_target_is_everywhere) {
  EXPECT_EQ(std::string(runnable_targets().back()->name), "scalar");
}

TEST(an_unknown_target_is_refused_with_the_choices) {
  set_variable("PYBATCHER_CPU_TARGET", "avx9");
  EXPECT_THROWS(ErrorCode::kConfig, make_cpu_backend(1));
  const std::string message = message_of([] { make_cpu_backend(1); });
  unset_variable("PYBATCHER_CPU_TARGET");
  EXPECT(contains(message, "PYBATCHER_CPU_TARGET"));
  EXPECT(contains(message, "avx9"));
  EXPECT(contains(message, "scalar"));
}

TEST(thread_counts) {
  EXPECT_EQ(make_cpu_backend(3)->n_threads(), 3);
  EXPECT_EQ(make_cpu_backend(0)->n_threads(), available_cores());
  EXPECT_THROWS(ErrorCode::kConfig, make_cpu_backend(-1));
}

TEST(parts_are_stacked_with_the_biases_they_have) {
  const std::vector<float> a = numbers(3 * 10, 1), b = numbers(70 * 10, 2), bias = numbers(70, 3);
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    const Matrix m = make(*backend, {view_of(a, 3, 10), view_of(b, 70, 10)}, DType::kF32,
                          {TensorView{}, view_of(bias, 70, 1)});
    EXPECT_EQ(m.n_out, 73);
    EXPECT_EQ(m.n_in, 10);
    std::vector<float> both = a;
    both.insert(both.end(), b.begin(), b.end());
    EXPECT(same_bits(stored(*backend, m), both));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(m.bias.as<float>()[i], 0.0f);
    for (int i = 0; i < 70; ++i) EXPECT_EQ(m.bias.as<float>()[3 + i], bias[i]);
  }
}

TEST(strided_views_and_every_dtype_are_read) {
  constexpr int kRows = 67, kCols = 131;
  std::vector<uint16_t> bf16(kRows * kCols), f16(kRows * kCols);
  std::vector<float> from_bf16, from_f16, transposed(kRows * kCols);
  for (int i = 0; i < kRows * kCols; ++i) {
    bf16[i] = f32_to_bf16(static_cast<float>(uniform(7, i) - 0.5));
    f16[i] = static_cast<uint16_t>(integer(8, i, 0x7c00) | integer(9, i, 2) << 15);  // finite
    from_bf16.push_back(bf16_to_f32(bf16[i]));
    from_f16.push_back(f16_to_f32(f16[i]));
    transposed[i % kCols * kRows + i / kCols] = from_f16[i];
  }
  auto backend = make_cpu_backend(2);
  const TensorView views[] = {
      {"bf16", bf16.data(), DType::kBF16, kRows, kCols, kCols, 1},
      {"f16", f16.data(), DType::kF16, kRows, kCols, kCols, 1},
      {"transposed", transposed.data(), DType::kF32, kRows, kCols, 1, kRows},
  };
  const std::vector<float>* expected[] = {&from_bf16, &from_f16, &from_f16};
  for (int i = 0; i < 3; ++i) {
    EXPECT(same_bits(stored(*backend, make(*backend, {views[i]}, DType::kF32)), *expected[i]));
    std::vector<float> narrow = *expected[i];
    for (float& x : narrow) x = rounded(x, DType::kBF16);
    EXPECT(same_bits(stored(*backend, make(*backend, {views[i]}, DType::kBF16)), narrow));
  }
}

TEST(numbers_that_are_not_finite_are_refused_by_name_and_place) {
  const float bad_numbers[] = {std::numeric_limits<float>::infinity(), std::nanf("")};
  auto backend = make_cpu_backend(3);
  for (float bad : bad_numbers) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      std::vector<float> first = numbers(300 * 40, 1), second = numbers(300 * 40, 2);
      second[5 * 40 + 39] = bad;
      second[299 * 40] = bad;  // a later one; the first is named
      const std::vector<TensorView> parts = {view_of(first, 300, 40, "layers.0.q.weight"),
                                             view_of(second, 300, 40, "layers.0.k.weight")};
      EXPECT_THROWS(ErrorCode::kModelFormat, make(*backend, parts, dtype));
      const std::string message = message_of([&] { make(*backend, parts, dtype); });
      EXPECT(contains(message, "'layers.0.k.weight'"));
      EXPECT(contains(message, "[5, 39]"));
    }
    std::vector<float> bias = numbers(9, 3);
    bias[8] = bad;
    const std::string message =
        message_of([&] { backend->make_vector(view_of(bias, 9, 1, "final_norm.weight")); });
    EXPECT(contains(message, "'final_norm.weight'"));
    EXPECT(contains(message, "[8]"));
    const std::vector<float> weight = numbers(9 * 4, 4);
    EXPECT_THROWS(ErrorCode::kModelFormat,
                  make(*backend, {view_of(weight, 9, 4)}, DType::kF32, {view_of(bias, 9, 1)}));
  }
}

TEST(a_number_that_overflows_bf16_is_refused) {
  auto backend = make_cpu_backend(1);
  const std::vector<float> large = {1.0f, std::numeric_limits<float>::max()};
  EXPECT(same_bits(stored(*backend, make(*backend, {view_of(large, 1, 2)}, DType::kF32)), large));
  const std::string message =
      message_of([&] { make(*backend, {view_of(large, 1, 2, "w")}, DType::kBF16); });
  EXPECT(contains(message, "overflows bf16"));
}

TEST(shapes_that_do_not_fit_are_refused) {
  auto backend = make_cpu_backend(1);
  const std::vector<float> values = numbers(100, 1);
  EXPECT_THROWS(ErrorCode::kModelFormat,
                make(*backend, {view_of(values, 3, 4), view_of(values, 3, 5)}, DType::kF32));
  EXPECT_THROWS(ErrorCode::kModelFormat,
                make(*backend, {view_of(values, 3, 4)}, DType::kF32, {view_of(values, 4, 1)}));
  EXPECT_THROWS(ErrorCode::kModelFormat, backend->make_vector(view_of(values, 3, 2)));
}

TEST(storage_is_laid_out_in_whole_lines) {
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      for (int cols : {1, 31, 64, 2048}) {
        const Activations a = backend->make_activations(3, cols, dtype);
        EXPECT(a.row_stride >= cols);
        EXPECT_EQ(a.row_stride * element_bytes(a, *target) % 64, size_t{0});
        for (float x : read_activations(a, *target, 2)) EXPECT_EQ(x, 0.0f);
      }
      const KvStorage kv = backend->make_kv(5, 32, 2, 3, 20, dtype);
      EXPECT_EQ(kv.block_bytes % 64, size_t{0});
      EXPECT(kv.data.bytes() >= 5 * kv.block_bytes);
    }
  }
}

TEST(a_block_size_that_does_not_divide_a_segment_is_refused) {
  auto backend = make_cpu_backend(1);
  for (int block_size : {0, -1, 24, 512}) {
    EXPECT_THROWS(ErrorCode::kConfig, backend->make_kv(4, block_size, 1, 1, 8, DType::kF32));
  }
}

PB_TEST_MAIN()
