// Experts' routing and rows on the emulator: choices and numbers against their definitions, sums
// against scalar ones, and the same bits for a row whatever is beside it.
#include <cmath>
#include <limits>
#include <numeric>

#include "expert_fixture.h"

namespace pb::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The experts of a row, by the definition: sorted by logit and then by number.
std::vector<int32_t> chosen(const float* logits, int n, int k) {
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

// Of which many are equal.
std::vector<float> some_logits(int n_rows, int n_experts, uint32_t seed) {
  std::vector<float> logits = Numbers(seed).floats(size_t(n_rows) * n_experts, 6.0f);
  for (float& logit : logits) logit = std::round(logit * 2) / 2;
  return logits;
}

void expect_choices(const std::vector<float>& logits, int n, int k, bool normalised) {
  const Routed routed = route_rows(logits, n, k, normalised);
  for (size_t row = 0; row < logits.size() / n; ++row) {
    const float* of_row = logits.data() + row * n;
    const std::vector<int32_t> expected = chosen(of_row, n, k);
    EXPECT(std::equal(expected.begin(), expected.end(), routed.experts.begin() + row * k));
    double sum = 0.0;
    for (int e = 0; e < n; ++e) {
      if (!normalised || std::ranges::find(expected, e) != expected.end()) {
        sum += std::exp(static_cast<double>(of_row[e]));
      }
    }
    for (int i = 0; i < k; ++i) {
      const double weight = std::exp(static_cast<double>(of_row[expected[i]])) / sum;
      EXPECT(std::abs(routed.weights[row * k + i] - weight) < 1e-6);
    }
  }
}

TEST(a_row_takes_the_experts_of_its_greatest_logits) {
  uint32_t seed = 0;
  for (const auto& [n, k] : {std::pair{4, 1}, {5, 5}, {16, 4}, {33, 3}, {128, 8}, {1000, 33}}) {
    for (const bool normalised : {false, true}) {
      set_order(++seed);
      expect_choices(some_logits(9, n, seed), n, k, normalised);
    }
  }
}

TEST(of_equal_logits_the_first_experts_are_taken) {
  const Routed routed = route_rows({1, 2, 1, 2, 2, -0.0f, 0, -0.0f, 0, 0}, 5, 2);
  EXPECT(routed.experts == std::vector<int32_t>({1, 3, 0, 1}));
  EXPECT(routed.weights == std::vector<float>(4, 0.5f));
  const Routed far_apart = route_rows(std::vector<float>(100, 7.0f), 100, 40);  // of several lanes
  std::vector<int32_t> first(40);
  std::iota(first.begin(), first.end(), 0);
  EXPECT(far_apart.experts == first);
}

TEST(weights_are_multiplied_by_the_scales_of_their_experts) {
  const Routed routed = route_rows({1, 2, 1, 2, 2, 0, 0, 0, 0, 0}, 5, 2, true, {2, -4, 8, 16, 32});
  EXPECT(routed.weights == std::vector<float>({-2, 8, 1, -2}));
}

// Biases have a part in the choice alone.
TEST(sigmoids_and_biases_choose_experts_and_sigmoids_weigh_them) {
  const int n = 33, k = 4;
  const std::vector<float> logits = some_logits(9, n, 40);
  const ByScore rule{.bias = Numbers(41).floats(n, 0.3f), .scale = 1.7f};
  const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  for (const bool normalised : {false, true}) {
    set_order(normalised ? 42 : 43);
    const Routed routed = route_rows(logits, n, k, normalised, {}, 8, &rule);
    for (size_t row = 0; row < 9; ++row) {
      const float* of_row = logits.data() + row * n;
      std::vector<float> scores;
      for (int e = 0; e < n; ++e) scores.push_back(float(sigmoid(of_row[e])) + rule.bias[e]);
      const std::vector<int32_t> expected = chosen(scores.data(), n, k);
      EXPECT(std::equal(expected.begin(), expected.end(), routed.experts.begin() + row * k));
      double sum = normalised ? 1e-6 : 1.0;
      for (int i = 0; normalised && i < k; ++i) sum += sigmoid(of_row[expected[i]]);
      for (int i = 0; i < k; ++i) {
        const double weight = sigmoid(of_row[expected[i]]) / sum * 1.7;
        EXPECT(std::abs(routed.weights[row * k + i] - weight) < 1e-6);
      }
    }
  }
  const ByScore plain;
  const std::vector<float> one = {-1, 3, 2, 3};
  const Routed without = route_rows(one, 4, 2, true, {2, 4, 8, 16}, 8, &plain);
  EXPECT(without.experts == std::vector<int32_t>({1, 3}));
  EXPECT(std::abs(without.weights[0] - 2.0f) < 1e-5f &&
         std::abs(without.weights[1] - 8.0f) < 1e-4f);
}

// Biases have a part in the choice alone.
TEST(biases_choose_experts_and_a_softmax_weighs_them) {
  const int n = 33, k = 4;
  std::vector<float> logits = Numbers(44).floats(size_t{9} * n, 3.0f);
  ByScore rule{.bias = Numbers(45).floats(n, 0.1f), .scale = 1.7f, .sigmoid = false};
  for (int row = 0; row < 9; row += 2) logits[row * n + n - 1] = -200.0f;
  rule.bias[n - 1] = 2.0f;  // so that the last expert is always chosen
  for (const bool normalised : {false, true}) {
    set_order(normalised ? 46 : 47);
    const Routed routed = route_rows(logits, n, k, normalised, {}, 8, &rule);
    for (size_t row = 0; row < 9; ++row) {
      const float* of_row = logits.data() + row * n;
      double all = 0.0;
      for (int e = 0; e < n; ++e) all += std::exp(double{of_row[e]});
      std::vector<float> scores;
      for (int e = 0; e < n; ++e) {
        scores.push_back(float(std::exp(double{of_row[e]}) / all) + rule.bias[e]);
      }
      const std::vector<int32_t> expected = chosen(scores.data(), n, k);
      EXPECT(std::equal(expected.begin(), expected.end(), routed.experts.begin() + row * k));
      double sum = normalised ? 0.0 : all;
      for (int i = 0; normalised && i < k; ++i) sum += std::exp(double{of_row[expected[i]]});
      for (int i = 0; i < k; ++i) {
        const double weight = std::exp(double{of_row[expected[i]]}) / sum * 1.7;
        EXPECT(std::abs(routed.weights[row * k + i] - weight) < 1e-6);
      }
    }
  }
  const ByScore far{.bias = {0, 9, 9, 0}, .sigmoid = false};
  const Routed unlikely = route_rows({0, -150, -150, -151}, 4, 2, true, {}, 8, &far);
  EXPECT(unlikely.experts == std::vector<int32_t>({1, 2}));
  EXPECT(unlikely.weights == std::vector<float>(2, 0.5f));
}

TEST(logits_that_are_no_numbers_choose_each_expert_once) {
  for (const float bad : {NAN, -NAN, kInfinity, -kInfinity}) {
    for (const int n_bad : {1, 3, 6}) {
      std::vector<float> logits = Numbers(4).floats(6);
      std::fill_n(logits.begin() + (6 - n_bad), n_bad, bad);
      const Routed routed = route_rows(logits, 6, 4, false);
      EXPECT(std::ranges::adjacent_find(routed.experts, std::greater_equal()) ==
             routed.experts.end());
      EXPECT(routed.experts.front() >= 0 && routed.experts.back() < 6);
    }
  }
}

TEST(pairs_are_numbered_by_expert_and_then_by_row) {
  const Routed routed = route_rows({0, 9, 8, 7, 9, 8, 0, 0, 0, 9, 8, 0}, 4, 2);
  EXPECT(routed.experts == std::vector<int32_t>({1, 2, 0, 1, 1, 2}));
  EXPECT(routed.begins == std::vector<int32_t>({0, 1, 4, 6, 6}));
  EXPECT(routed.pairs == std::vector<int32_t>({1, 4, 0, 2, 3, 5}));
}

TEST(pairs_are_cut_into_tiles_of_one_expert) {
  uint32_t seed = 50;
  for (const auto& [n_rows, n, k] : {std::tuple{1, 3, 2}, {150, 3, 2}, {301, 40, 3}}) {
    for (const int tile_rows : cases({8, 128, 32})) {
      set_order(++seed);
      const std::vector<float> logits = some_logits(n_rows, n, seed);
      const Routed routed = route_rows(logits, n, k, true, {}, tile_rows);
      std::vector<std::vector<int>> of_experts(n);  // places of pairs, in their order
      for (size_t i = 0; i < routed.experts.size(); ++i) {
        of_experts[routed.experts[i]].push_back(static_cast<int>(i));
      }
      int next = 0;
      for (int e = 0; e < n; ++e) {
        EXPECT_EQ(routed.begins[e], next);
        for (const int i : of_experts[e]) EXPECT_EQ(routed.pairs[i], next++);
      }
      EXPECT_EQ(routed.begins[n], next);
      const std::vector<ExpertTile> tiles = tiles_of(routed.begins, tile_rows);
      const std::vector<int32_t> expected = flat_tiles(tiles, routed.tiles.size() / 3);
      EXPECT(std::equal(expected.begin(), expected.begin() + 1 + 3 * tiles.size(),
                        routed.tiles.begin()));
    }
  }
}

TEST(a_row_has_the_same_weights_alone) {
  const std::vector<float> logits = Numbers(5).floats(size_t{20} * 70, 3.0f);
  for (const bool normalised : {false, true}) {
    const Routed all = route_rows(logits, 70, 5, normalised);
    for (const int row : {0, 7, 19}) {
      const Routed alone = route_rows({logits.begin() + row * 70, logits.begin() + (row + 1) * 70},
                                      70, 5, normalised);
      EXPECT(std::equal(alone.experts.begin(), alone.experts.end(), all.experts.begin() + row * 5));
      EXPECT(same_bits(alone.weights,
                       {all.weights.begin() + row * 5, all.weights.begin() + row * 5 + 5}));
    }
  }
}

TEST(the_order_of_threads_does_not_matter) {
  const std::vector<float> logits = Numbers(6).floats(size_t{40} * 37, 3.0f);
  const Routed first = route_rows(logits, 37, 9);
  for (uint64_t seed = 1; seed <= orders(); ++seed) {
    set_order(seed);
    const Routed routed = route_rows(logits, 37, 9);
    EXPECT(routed.experts == first.experts && same_bits(routed.weights, first.weights));
    EXPECT(routed.pairs == first.pairs && routed.begins == first.begins);
    EXPECT(std::equal(routed.tiles.begin(), routed.tiles.begin() + 1 + 3 * routed.tiles[0],
                      first.tiles.begin()));
  }
}

TEST(rows_are_copied_to_their_pairs) {
  for (const int row_bytes : {16, 2080}) {
    const std::vector<int32_t> pairs = {1, 4, 0, 2, 3, 5};
    std::vector<std::byte> x(size_t{3} * row_bytes);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::byte>(i * 7 + i / 255);
    const DeviceArray<std::byte> from(x);
    const DeviceArray<int32_t> numbers(pairs);
    DeviceArray<std::byte> out(size_t{6} * row_bytes);
    Product::launch_one(cuda::gather_pairs_launch(3, {.x = from.get(),
                                                      .pairs = numbers.get(),
                                                      .n_per_row = 2,
                                                      .row_bytes = row_bytes,
                                                      .out = out.get()}));
    const std::vector<std::byte> made = out.host();
    for (size_t i = 0; i < pairs.size(); ++i) {
      EXPECT(std::equal(x.begin() + i / 2 * row_bytes, x.begin() + (i / 2 + 1) * row_bytes,
                        made.begin() + size_t(pairs[i]) * row_bytes));
    }
  }
}

TEST(results_of_experts_are_added_in_their_order) {
  constexpr int kHidden = 300;
  const std::vector<int32_t> pairs = {1, 4, 0, 3, 2, 5};  // of two rows
  const std::vector<float> weights = Numbers(7).floats(6);
  const std::vector<float> y = Numbers(8).floats(size_t{6} * kHidden, 3.0f);
  const std::vector<float> before = Numbers(9).floats(size_t{2} * kHidden);
  for (const bool adds : {false, true}) {
    std::vector<float> expected = before;
    for (size_t i = 0; i < expected.size(); ++i) {
      float sum = 0.0f;
      for (size_t k = i / kHidden * 3; k < i / kHidden * 3 + 3; ++k) {
        sum = std::fmaf(weights[k], y[size_t(pairs[k]) * kHidden + i % kHidden], sum);
      }
      expected[i] = adds ? expected[i] + sum : sum;
    }
    const DeviceArray<float> from(y), of_pairs(weights);
    const DeviceArray<int32_t> numbers(pairs);
    DeviceArray<float> x(before);
    Product::launch_one(cuda::combine_pairs_launch(2, {.y = from.get(),
                                                       .pairs = numbers.get(),
                                                       .weights = of_pairs.get(),
                                                       .n_per_row = 3,
                                                       .hidden = kHidden,
                                                       .x = x.get(),
                                                       .adds = adds ? 1 : 0}));
    EXPECT(same_bits(x.host(), expected));
  }
}

TEST(a_shared_expert_counts_as_its_gate_says) {
  constexpr int kHidden = 300;
  const std::vector<float> logits = {0.7f, -95.0f, 200.0f};
  const std::vector<float> y = Numbers(20).floats(size_t{3} * kHidden, 3.0f);
  const std::vector<float> before = Numbers(21).floats(size_t{3} * kHidden);
  const auto added = [&](size_t first, size_t n_rows) {
    const auto rows = [&](const std::vector<float>& all, size_t width) {
      return std::vector<float>(all.begin() + ptrdiff_t(first * width),
                                all.begin() + ptrdiff_t((first + n_rows) * width));
    };
    const DeviceArray<float> from(rows(y, kHidden)), gates(rows(logits, 1));
    DeviceArray<float> x(rows(before, kHidden));
    Product::launch_one(cuda::add_shared_launch(
        int(n_rows), {.y = from.get(), .logits = gates.get(), .hidden = kHidden, .x = x.get()}));
    return x.host();
  };
  const std::vector<float> all = added(0, 3);
  for (size_t i = 0; i < all.size(); ++i) {
    const double share = 1.0 / (1.0 + std::exp(-double{logits[i / kHidden]}));
    const double expected = before[i] + share * y[i];
    EXPECT(std::abs(all[i] - expected) <= 4e-7 * (std::abs(double{before[i]}) + std::abs(y[i])));
  }
  EXPECT(same_bits(added(1, 1), {all.begin() + kHidden, all.begin() + 2 * kHidden}));
}

template <typename T>
std::vector<T> bounded(DType dtype, const std::vector<float>& gate_up, int cols, float alpha,
                       float limit) {
  const auto n_rows = static_cast<int>(gate_up.size()) / (2 * cols);
  const int64_t stride = round_up(cols, 16);
  const DeviceArray<float> from(gate_up);
  DeviceArray<T> out(static_cast<size_t>(n_rows) * stride);
  Product::launch_one(cuda::clamped_swiglu_launch(dtype, n_rows,
                                                  {.gate_up = from.get(),
                                                   .alpha = alpha,
                                                   .limit = limit,
                                                   .cols = cols,
                                                   .out = out.get(),
                                                   .row_stride = stride}));
  return out.host();
}

TEST(the_bounded_activation_is_close_to_double) {
  constexpr float kAlpha = 1.702f, kLimit = 2.5f;
  for (const int cols : {1, 33, 1100}) {
    std::vector<float> x = Numbers(10).floats(size_t{3} * 2 * cols, 4.0f);
    x[0] = -200.0f;  // whose sigmoid is nearly zero
    const std::vector<float> wide = bounded<float>(DType::kF32, x, cols, kAlpha, kLimit);
    const auto narrow = bounded<__nv_bfloat16>(DType::kBF16, x, cols, kAlpha, kLimit);
    const int stride = round_up(cols, 16);
    for (size_t i = 0; i < wide.size(); ++i) {
      const size_t row = i / stride * 2 * cols;
      const auto column = static_cast<int>(i % stride);
      EXPECT_EQ(__bfloat16_as_ushort(narrow[i]), f32_to_bf16(wide[i]));
      if (column >= cols) {
        EXPECT_EQ(wide[i], 0.0f);
        continue;
      }
      const double gate = std::min(x[row + column], kLimit);
      const double up = std::clamp(x[row + cols + column], -kLimit, kLimit);
      const double exact = gate / (1.0 + std::exp(-double{kAlpha} * gate)) * (up + 1.0);
      EXPECT(std::abs(wide[i] - exact) <= 1e-6 * (std::abs(exact) + std::abs(gate)));
    }
  }
}

TEST(the_bounded_activation_shows_what_is_no_number) {
  for (const int bad : {0, 1, 3, 4}) {  // gates, then ups
    std::vector<float> x = {1.0f, 2.0f, 3.0f, 1.0f, 2.0f, 3.0f};
    x[bad] = NAN;
    const std::vector<float> y = bounded<float>(DType::kF32, x, 3, 1.0f, 7.0f);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(std::isnan(y[i]), i == bad % 3);
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
