// Mixtures of experts: the choice and the products against double, and bit for bit against
// themselves.
#include <algorithm>
#include <numeric>
#include <span>

#include "cpu/experts.h"
#include "cpu_fixture.h"

namespace {

using namespace pb;
using namespace pb::test;

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4};

std::vector<int32_t> integers(const Buffer& buffer, size_t n) {
  return {buffer.as<int32_t>(), buffer.as<int32_t>() + n};
}

// What route() made of rows of logits.
struct Routed {
  Routing routing;
  std::vector<int32_t> experts, pairs, begins;
  std::vector<float> weights;

  Routed(Backend& backend, const std::vector<float>& logits, int n_experts, int k, bool normalised,
         int max_rows = 0, const Vector* scales = nullptr)
      : Routed(backend, logits, n_experts, k, {.normalised = normalised, .scales = scales},
               max_rows) {}

  Routed(Backend& backend, const std::vector<float>& logits, int n_experts, int k,
         const RoutingRule& rule, int max_rows = 0) {
    const int n_rows = static_cast<int>(logits.size()) / n_experts;
    routing = backend.experts().make_routing(std::max(n_rows, max_rows), n_experts, k);
    backend.experts().route(over(logits), n_rows, rule, routing);
    const auto n_pairs = static_cast<size_t>(n_rows) * k;
    experts = integers(routing.experts, n_pairs);
    pairs = integers(routing.pairs, n_pairs);
    begins = integers(routing.begins, n_experts + 1);
    weights = {routing.weights.as<float>(), routing.weights.as<float>() + n_pairs};
  }
};

// The experts of a row, by the definition: sorted by logit and then by number.
std::vector<int32_t> chosen(const float* logits, int n, int k) {
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

// Experts with random weights, and rows for them.
struct Layer {
  int n_experts, k, n_in, n_out;
  DType dtype;
  std::vector<float> w, x, logits;  // (n_experts, n_out, n_in), (rows, n_in), (rows, n_experts)

  Layer(int n_experts, int k, int n_in, int n_out, int n_rows, DType dtype)
      : n_experts(n_experts),
        k(k),
        n_in(n_in),
        n_out(n_out),
        dtype(dtype),
        w(numbers(static_cast<size_t>(n_experts) * n_out * n_in, 1)),
        x(numbers(static_cast<size_t>(n_rows) * n_in, 2)),
        logits(numbers(static_cast<size_t>(n_rows) * n_experts, 3)) {
    if (dtype != DType::kBF16) return;
    // The first expert's exponents are too many to be compressed
    // (cpu/weights/pack_compressed_bf16.h), as the others are.
    for (int i = 0; i < n_out * n_in; ++i) w[i] = std::ldexp(w[i], integer(4, i, 60) - 40);
  }

  const float* weight(int expert, int out) const {
    return w.data() + (static_cast<size_t>(expert) * n_out + out) * n_in;
  }

  // Experts that no row goes to have no weights to be read.
  std::vector<Matrix> matrices(Backend& backend, std::span<const int32_t> begins) const {
    std::vector<Matrix> out;
    for (int e = 0; e < n_experts; ++e) {
      const TensorView view{"w", weight(e, 0), DType::kF32, n_out, n_in, n_in, 1};
      Matrix m = make(backend, {view}, dtype);
      if (begins[e] == begins[e + 1]) m.packed = Buffer();
      out.push_back(std::move(m));
    }
    return out;
  }

  Activations activations(Backend& backend, const cpu::Kernels& target,
                          const std::vector<int>& rows) const {
    return make_activations(backend, target, x, n_in, dtype, rows);
  }

  // What the experts of some of the rows make of them, (rows, k, n_out), each row's in the order of
  // its experts; in `sums` what is added to zeros of it.
  std::vector<float> run(Backend& backend, const cpu::Kernels& target, const std::vector<int>& rows,
                         std::vector<float>* sums = nullptr) const {
    const int n_rows = static_cast<int>(rows.size());
    std::vector<float> of_rows;
    for (int row : rows) {
      of_rows.insert(of_rows.end(), logits.begin() + row * n_experts,
                     logits.begin() + (row + 1) * n_experts);
    }
    const Routed routed(backend, of_rows, n_experts, k, true);
    const Activations from = activations(backend, target, rows);
    Activations gathered = backend.make_activations(n_rows * k, n_in, dtype);
    std::vector<float> y(static_cast<size_t>(n_rows) * k * n_out, NAN);
    Buffer out = over(y);
    ExpertOperations& operations = backend.experts();
    operations.gather(from, n_rows, routed.routing, gathered);
    operations.matmul(gathered, n_rows, routed.routing,
                      operations.collect(matrices(backend, routed.begins)), out);
    if (sums != nullptr) {
      sums->assign(static_cast<size_t>(n_rows) * n_out, 0.0f);
      Buffer to = over(*sums);
      operations.combine(out, n_rows, routed.routing, n_out, to, Store::kAdd);
    }
    std::vector<float> by_row;
    for (int32_t pair : routed.pairs) {
      const float* of_pair = y.data() + static_cast<size_t>(pair) * n_out;
      by_row.insert(by_row.end(), of_pair, of_pair + n_out);
    }
    return by_row;
  }
};

std::vector<int> first_rows(int n) {
  std::vector<int> rows(n);
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

}  // namespace

TEST(a_row_takes_the_experts_of_its_greatest_logits) {
  const auto backend = make_cpu_backend(2);
  for (const auto& [n, k] : {std::pair{4, 1}, {5, 5}, {16, 4}, {128, 8}}) {
    for (bool normalised : {false, true}) {
      constexpr int kRows = 300;
      std::vector<float> logits = numbers(static_cast<size_t>(kRows) * n, n, 6.0f);
      for (float& logit : logits) logit = std::round(logit * 2) / 2;  // many are equal
      const Routed routed(*backend, logits, n, k, normalised);
      for (int row = 0; row < kRows; ++row) {
        const float* of_row = logits.data() + static_cast<size_t>(row) * n;
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
  }
}

TEST(of_equal_logits_the_first_experts_are_taken) {
  const auto backend = make_cpu_backend(1);
  const Routed routed(*backend, {1, 2, 1, 2, 2, 0, 0, 0, 0, 0}, 5, 2, true);
  EXPECT(routed.experts == std::vector<int32_t>({1, 3, 0, 1}));
  EXPECT(routed.weights == std::vector<float>(4, 0.5f));
}

TEST(weights_are_multiplied_by_the_scales_of_their_experts) {
  const auto backend = make_cpu_backend(1);
  const std::vector<float> logits = {1, 2, 1, 2, 2, 0, 0, 0, 0, 0};
  const std::vector<float> values = {2, -4, 8, 16, 32};
  const Vector scales = backend->make_vector({.name = "", .data = values.data(), .rows = 5});
  const Routed routed(*backend, logits, 5, 2, true, 0, &scales);
  EXPECT(routed.experts == std::vector<int32_t>({1, 3, 0, 1}));
  EXPECT(routed.weights == std::vector<float>({-2, 8, 1, -2}));
}

// Biases have a part in the choice alone.
TEST(sigmoids_and_biases_choose_experts_and_sigmoids_weigh_them) {
  const auto backend = make_cpu_backend(2);
  constexpr int kRows = 50, n = 33, k = 4;
  const std::vector<float> logits = numbers(kRows * n, 40, 6.0f);
  const std::vector<float> values = numbers(n, 41, 0.3f);
  const Vector bias = backend->make_vector({.name = "", .data = values.data(), .rows = n});
  const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  for (bool normalised : {false, true}) {
    const Routed routed(*backend, logits, n, k,
                        {.sigmoid = true, .bias = &bias, .normalised = normalised, .scale = 1.7f});
    for (int row = 0; row < kRows; ++row) {
      const float* of_row = logits.data() + row * n;
      std::vector<float> scores;
      for (int e = 0; e < n; ++e) scores.push_back(float(sigmoid(of_row[e])) + values[e]);
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
  const Routed equal(*backend, {-1, 3, 2, 3, 3}, 5, 2, {.sigmoid = true, .normalised = true});
  EXPECT(equal.experts == std::vector<int32_t>({1, 3}));
}

// Biases have a part in the choice alone. The last expert of every other row is chosen by its bias,
// although its part of the softmax is far below the least number.
TEST(biases_choose_experts_and_a_softmax_weighs_them) {
  const auto backend = make_cpu_backend(2);
  constexpr int kRows = 50, n = 33, k = 4;
  std::vector<float> logits = numbers(kRows * n, 42, 3.0f);
  std::vector<float> values = numbers(n, 43, 0.1f);
  for (int row = 0; row < kRows; row += 2) logits[row * n + n - 1] = -200.0f;
  values[n - 1] = 2.0f;
  const Vector bias = backend->make_vector({.name = "", .data = values.data(), .rows = n});
  for (bool normalised : {false, true}) {
    const Routed routed(*backend, logits, n, k,
                        {.bias = &bias, .normalised = normalised, .scale = 1.7f});
    for (int row = 0; row < kRows; ++row) {
      const float* of_row = logits.data() + row * n;
      double all = 0.0;
      for (int e = 0; e < n; ++e) all += std::exp(double{of_row[e]});
      std::vector<float> scores;
      for (int e = 0; e < n; ++e) {
        scores.push_back(static_cast<float>(std::exp(double{of_row[e]}) / all) + values[e]);
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
  const std::vector<float> far = {0, -150, -150, -151};
  const std::vector<float> of_far = {0, 9, 9, 0};
  const Vector far_bias = backend->make_vector({.name = "", .data = of_far.data(), .rows = 4});
  const Routed unlikely(*backend, far, 4, 2, {.bias = &far_bias, .normalised = true});
  EXPECT(unlikely.experts == std::vector<int32_t>({1, 2}));
  EXPECT(unlikely.weights == std::vector<float>(2, 0.5f));
}

TEST(pairs_are_numbered_by_expert_and_then_by_row) {
  const auto backend = make_cpu_backend(2);
  const Routed routed(*backend, {0, 9, 8, 7, 9, 8, 0, 0, 0, 9, 8, 0}, 4, 2, true);
  EXPECT(routed.experts == std::vector<int32_t>({1, 2, 0, 1, 1, 2}));
  EXPECT(routed.begins == std::vector<int32_t>({0, 1, 4, 6, 6}));
  EXPECT(routed.pairs == std::vector<int32_t>({1, 4, 0, 2, 3, 5}));
}

TEST(logits_that_are_no_numbers_choose_each_expert_once) {
  const auto backend = make_cpu_backend(1);
  for (float bad : {NAN, INFINITY, -INFINITY}) {
    for (int n_bad : {1, 3, 6}) {
      std::vector<float> logits = numbers(6, 4);
      std::fill_n(logits.begin() + (6 - n_bad), n_bad, bad);
      const Routed routed(*backend, logits, 6, 4, false);
      EXPECT(std::ranges::adjacent_find(routed.experts, std::greater_equal()) ==
             routed.experts.end());
      EXPECT(routed.experts.front() >= 0 && routed.experts.back() < 6);
    }
  }
}

TEST(products_of_experts_are_within_rounding_of_double) {
  constexpr int kRows = 11;
  for (const cpu::Kernels* target : runnable_targets()) {
    const auto backend = make_cpu_backend(2, target->name);
    for (DType dtype : kDTypes) {
      for (const auto& [n_in, n_out] : {std::pair{3, 5}, {70, 33}, {1031, 40}}) {
        const Layer layer(7, 3, n_in, n_out, kRows, dtype);
        const double unit = 2.0 * (n_in + 2) * 0x1p-24;  // as in test_kernels_gemm
        std::vector<float> sums;
        const std::vector<float> y = layer.run(*backend, *target, first_rows(kRows), &sums);
        const Activations a = layer.activations(*backend, *target, first_rows(kRows));
        for (int row = 0; row < kRows; ++row) {
          const float* of_row = layer.logits.data() + row * layer.n_experts;
          const std::vector<int32_t> experts = chosen(of_row, layer.n_experts, layer.k);
          const std::vector<float> x = read_activations(a, *target, row);
          double all = 0.0;
          for (int32_t e : experts) all += std::exp(static_cast<double>(of_row[e]));
          for (int o = 0; o < n_out; ++o) {
            double combined = 0.0;
            double size = 0x1p-102;
            for (int i = 0; i < layer.k; ++i) {
              const float* w = layer.weight(experts[i], o);
              const std::vector<float> rounded = multiplied_row({w, w + n_in}, *target, dtype);
              double sum = 0.0;
              double of_terms = 0.0;
              for (int c = 0; c < n_in; ++c) {
                sum += static_cast<double>(x[c]) * rounded[c];
                of_terms += std::abs(static_cast<double>(x[c]) * rounded[c]);
              }
              const float found = y[(static_cast<size_t>(row) * layer.k + i) * n_out + o];
              EXPECT(std::abs(found - sum) <= unit * (of_terms + 0x1p-102));
              combined += std::exp(static_cast<double>(of_row[experts[i]])) / all * sum;
              size += of_terms;
            }
            const float found = sums[static_cast<size_t>(row) * n_out + o];
            EXPECT(std::abs(found - combined) <= 4 * unit * size);
          }
        }
      }
    }
  }
}

TEST(a_row_alone_has_the_bits_that_it_has_in_a_crowd) {
  constexpr int kRows = 500;  // more of an expert than one segment
  for (const cpu::Kernels* target : runnable_targets()) {
    const auto backend = make_cpu_backend(1, target->name);
    const auto shared = make_cpu_backend(3, target->name);
    for (DType dtype : kDTypes) {
      Layer layer(3, 2, 96, 70, kRows, dtype);
      for (int row = 0; row < kRows; ++row) layer.logits[row * 3] = 2.0f;  // all take this one
      std::vector<float> sums;
      const std::vector<float> y = layer.run(*shared, *target, first_rows(kRows), &sums);
      for (int row : {0, 1, 191, 192, 499}) {
        std::vector<float> sum;
        const std::vector<float> alone = layer.run(*backend, *target, {row}, &sum);
        EXPECT(same_bits(alone.data(), y.data() + row * alone.size(), alone.size()));
        EXPECT(same_bits(sum.data(), sums.data() + row * sum.size(), sum.size()));
      }
    }
  }
}

TEST(results_are_summed_in_the_order_of_the_experts) {
  const auto backend = make_cpu_backend(2);
  constexpr int kHidden = 1500;
  const std::vector<float> logits = {0.1f, 0.7f, 0.3f, 0.2f, 0.9f, 0.0f, 0.4f, 0.8f};
  const Routed routed(*backend, logits, 4, 3, false);
  const std::vector<float> y = numbers(static_cast<size_t>(6) * kHidden, 5);
  std::vector<float> x = numbers(static_cast<size_t>(2) * kHidden, 6);
  std::vector<float> expected = x, sums;
  for (int row = 0; row < 2; ++row) {
    for (int c = 0; c < kHidden; ++c) {
      float sum = 0.0f;
      for (int i = 0; i < 3; ++i) {
        const float product = routed.weights[row * 3 + i] *
                              y[static_cast<size_t>(routed.pairs[row * 3 + i]) * kHidden + c];
        sum += product;
      }
      expected[static_cast<size_t>(row) * kHidden + c] += sum;
      sums.push_back(sum);
    }
  }
  Buffer out = over(x);
  backend->experts().combine(over(y), 2, routed.routing, kHidden, out, Store::kAdd);
  EXPECT(same_bits(x, expected));
  backend->experts().combine(over(y), 2, routed.routing, kHidden, out, Store::kSet);
  EXPECT(same_bits(x, sums));
}

TEST(a_shared_expert_counts_as_much_as_its_gate_says) {
  constexpr int kRows = 5;
  constexpr int kHidden = 300;
  const auto backend = make_cpu_backend(2);
  std::vector<float> y = numbers(size_t(kRows) * kHidden, 7);
  std::vector<float> logits = {-200.0f, -1.5f, 0.0f, 2.0f, 90.0f};
  const std::vector<float> before = numbers(size_t(kRows) * kHidden, 8);
  std::vector<float> x = before;
  Buffer out = over(x);
  backend->experts().add_shared(over(y), over(logits), kRows, kHidden, out);
  for (size_t i = 0; i < x.size(); ++i) {
    const double share = 1.0 / (1.0 + std::exp(-double{logits[i / kHidden]}));
    EXPECT(std::abs(x[i] - (before[i] + share * y[i])) < 1e-6);
  }
}

TEST(a_bounded_activation_is_close_to_double) {
  constexpr int kRows = 3;
  constexpr float kAlpha = 1.702f, kLimit = 2.5f;
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const auto& [threads, n] : {std::pair{1, 1}, {1, 33}, {2, 2500}}) {
      const auto backend = make_cpu_backend(threads, target->name);
      std::vector<float> x = numbers(static_cast<size_t>(kRows) * 2 * n, 7, 4.0f);
      x[0] = -200.0f;  // whose sigmoid is nearly zero
      Activations out = backend->make_activations(kRows, n, DType::kF32);
      backend->experts().clamped_swiglu(over(x), kRows, kAlpha, kLimit, out);
      for (int r = 0; r < kRows; ++r) {
        const float* row = x.data() + static_cast<size_t>(r) * 2 * n;
        const std::vector<float> y = read_activations(out, *target, r);
        for (int i = 0; i < n; ++i) {
          const double gate = std::min(row[i], kLimit);
          const double up = std::clamp(row[n + i], -kLimit, kLimit);
          const double exact = gate / (1.0 + std::exp(-double{kAlpha} * gate)) * (up + 1.0);
          EXPECT(std::abs(y[i] - exact) <= 1e-6 * (std::abs(exact) + std::abs(gate)));
        }
        for (size_t i = n; i < y.size(); ++i) EXPECT_EQ(y[i], 0.0f);
      }
    }
  }
}

TEST(a_bounded_activation_shows_what_is_no_number) {
  for (const cpu::Kernels* target : runnable_targets()) {
    const auto backend = make_cpu_backend(1, target->name);
    for (const int bad : {0, 1, 3, 4}) {  // gates, then ups
      std::vector<float> x = {1.0f, 2.0f, 3.0f, 1.0f, 2.0f, 3.0f};
      x[bad] = NAN;
      Activations out = backend->make_activations(1, 3, DType::kF32);
      backend->experts().clamped_swiglu(over(x), 1, 1.0f, 7.0f, out);
      const std::vector<float> y = read_activations(out, *target, 0);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(std::isnan(y[i]), i == bad % 3);
    }
  }
}

PB_TEST_MAIN()
