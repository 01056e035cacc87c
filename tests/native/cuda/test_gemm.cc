// CUDA's matrix products with bf16 weights: right, and the same bits for a row from every kernel,
// split, number of rows and order of threads.
#include "gemm_fixture.h"

namespace pb::test {
namespace {

std::vector<float> first_rows(const std::vector<float>& y, int n_rows, int n_out) {
  return {y.begin(), y.begin() + ptrdiff_t(n_rows) * n_out};
}

TEST(every_kernel_gives_the_promised_bits) {
  uint32_t seed = 0;
  for (const int n_in : cases({520, 1, 16, 40, 64, 200})) {
    for (const int n_out : cases({1, 6, 131})) {
      ++seed;
      const Problem p = Problem::random({21, n_out, n_in, DType::kBF16}, seed % 2 == 0, seed);
      const Product product(p);
      const std::vector<float> expected = chained(p);
      set_order(seed);
      for (const GemmChoice& choice : all_choices(p.sizes)) {
        EXPECT(same_bits(product.run(choice), expected));
      }
    }
  }
}

TEST(segments_are_added_in_order) {
  uint32_t seed = 100;
  for (const int n_in : cases({2048, 5000, 2049})) {
    const Problem p = Problem::random({5, 37, n_in, DType::kBF16}, true, ++seed);
    const Product product(p);
    const std::vector<float> expected = chained(p);
    set_order(seed);
    for (const GemmChoice& choice : widest_choices(p.sizes)) {
      EXPECT(same_bits(product.run(choice), expected));
    }
  }
}

TEST(products_are_near_to_doubles_in_every_model) {
  for (const int n_in : cases({2100, 520, 72})) {
    const Problem p = Problem::random({9, 21, n_in, DType::kBF16}, true, 7);
    const Product product(p);
    for (const MmaModel model : kModels) {
      set_order(1, model);
      for (const int n_sms : {1, 100}) expect_near(product.run(choose_gemm(p.sizes, {n_sms})), p);
    }
  }
}

TEST(a_row_has_the_same_bits_among_any_number_of_rows) {
  const Problem p = Problem::random({200, 23, 72, DType::kBF16}, true, 11);
  const Product product(p);
  set_order(5);
  const std::vector<float> expected = chained(p);
  for (int n_rows = 1; n_rows <= 200; n_rows += kIsSlow ? 60 : 1) {
    GemmSizes sizes = p.sizes;
    sizes.n_rows = n_rows;
    const GemmChoice choice = choose_gemm(sizes, {1 + n_rows % 40});
    EXPECT(same_bits(product.run(choice, n_rows), first_rows(expected, n_rows, 23)));
  }
}

TEST(a_row_has_the_same_bits_at_any_place) {
  const Problem p = Problem::random({150, 40, 136, DType::kBF16}, false, 12);
  const std::vector<GemmChoice> choices = all_choices(p.sizes);
  for (const MmaModel model : {MmaModel::kAmpere, MmaModel::kHopper}) {
    set_order(6, model);
    const std::vector<float> all = Product(p).run(choices.back());
    for (const int row : cases({0, 7, 64, 127, 149})) {
      const Product alone(p.rows(row, 1));
      const auto at = all.begin() + row * 40;
      for (const GemmChoice& choice : choices) {
        EXPECT(same_bits(alone.run(choice), std::vector<float>(at, at + 40)));
      }
    }
  }
}

TEST(every_model_gives_one_result_whatever_the_kernel) {
  const Problem p = Problem::random({18, 35, 2112, DType::kBF16}, true, 13);
  const Product product(p);
  std::vector<std::vector<float>> results;
  for (const MmaModel model : kModels) {
    set_order(3, model);
    const std::vector<GemmChoice> choices = widest_choices(p.sizes);
    results.push_back(product.run(choices.front()));
    for (const GemmChoice& choice : choices) {
      EXPECT(same_bits(product.run(choice), results.back()));
    }
  }
  EXPECT(!same_bits(results[0], results[1]));  // else the models would not be told apart
  EXPECT(!same_bits(results[1], results[2]));
}

TEST(the_order_of_threads_does_not_matter) {
  for (const int n_in : {424, 2056}) {
    const Problem p = Problem::random({18, 70, n_in, DType::kBF16}, true, 13);
    const Product product(p);
    const std::vector<float> expected = chained(p);
    for (uint64_t seed = 1; seed <= orders(); ++seed) {
      set_order(seed);
      if (n_in < cuda::kSegmentK) {
        for (const GemmChoice& choice : all_choices(p.sizes)) {
          EXPECT(same_bits(product.run(choice), expected));
        }
      } else {
        const GemmChoice choice = choose_gemm(p.sizes, {static_cast<int>(seed)});
        EXPECT(same_bits(product.run(choice), expected));
      }
    }
  }
}

TEST(products_are_added_to_what_is_there_last) {
  for (const int n_in : cases({2112, 88})) {
    for (const bool has_bias : {false, true}) {
      const Problem p = Problem::random({10, 30, n_in, DType::kBF16}, has_bias, 14);
      const Product product(p);
      const std::vector<float> before = Numbers(15).floats(300);
      const std::vector<float> expected = chained(p, &before);
      set_order(2);
      for (const GemmChoice& choice : all_choices(p.sizes)) {
        EXPECT(same_bits(product.run(choice, 10, &before), expected));
      }
    }
  }
}

TEST(outputs_may_lie_beside_those_of_others) {
  for (const int n_out : cases({37, 38})) {
    for (const int n_in : cases({88, 2112}))
      expect_outputs_beside_others({10, n_out, n_in, DType::kBF16});
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
