// What works on one row of numbers: exp, activations, norms, rotary positions.
#include <algorithm>
#include <bit>

#include "cpu_fixture.h"

namespace {

using namespace pb;
using namespace pb::test;

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu,
                                       Activation::kReluSquared, Activation::kSigmoid};
constexpr int kLengths[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 577};

// Distance in units in the last place of the exact value.
double units_off(float got, double exact) {
  int exponent;
  std::frexp(exact, &exponent);
  return std::abs(got - exact) / std::ldexp(1.0, std::max(exponent, -125) - 24);
}

std::vector<float> activated(Backend& backend, const cpu::Kernels& target, Activation kind,
                             const std::vector<float>& x, bool gated, DType dtype) {
  const int n = static_cast<int>(gated ? x.size() / 2 : x.size());
  Activations out = backend.make_activations(1, n, dtype);
  backend.activate(over(x), 1, kind, gated, out);
  return read_activations(out, target, 0);
}

constexpr Xielu kXielu = {.alpha_p = 0.9f, .alpha_n = 1.3f, .beta = 0.4f, .eps = -1e-6f};

std::vector<float> of_xielu(Backend& backend, const cpu::Kernels& target, const Xielu& of_layer,
                            const std::vector<float>& x) {
  Activations out = backend.make_activations(1, static_cast<int>(x.size()), DType::kF32);
  backend.xielu(over(x), 1, of_layer, out);
  return read_activations(out, target, 0);
}

double exact_xielu(const Xielu& a, double x) {
  if (x > 0.0) return double{a.alpha_p} * x * x + double{a.beta} * x;
  const double least = std::min(x, double{a.eps});
  return double{a.alpha_n} * (std::expm1(least) - x) + double{a.beta} * x;
}

double exact_activation(Activation kind, double x) {
  switch (kind) {
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kSigmoid:
      return 1.0 / (1.0 + std::exp(-x));
    case Activation::kReluSquared:
      return x > 0.0 ? x * x : 0.0;
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::kGeluTanh: {
      const double u = std::sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
      return 0.5 * x * (1.0 + std::tanh(u));
    }
    case Activation::kXielu:  // exact_xielu
      break;
  }
  return 0.0;
}

Norm make_norm(Backend& backend, NormKind kind, int hidden) {
  Norm norm;
  norm.kind = kind;
  norm.eps = 1e-5f;
  norm.weight = backend.make_vector(view_of(numbers(hidden, 21), hidden, 1));
  if (kind == NormKind::kLayer) {
    norm.bias = backend.make_vector(view_of(numbers(hidden, 22), hidden, 1));
  }
  return norm;
}

}  // namespace

TEST(exp_is_within_one_unit) {
  for (const cpu::Kernels* target : runnable_targets()) {
    std::vector<float> x, y;
    for (double v = -87.0; v < 88.7; v += 0.00737) x.push_back(static_cast<float>(v));
    y.resize(x.size());
    target->exp(x.data(), y.data(), static_cast<int>(x.size()));
    double worst = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
      worst = std::max(worst, units_off(y[i], std::exp(static_cast<double>(x[i]))));
    }
    EXPECT(worst <= 1.0);
  }
}

TEST(tanh_is_close_to_double) {
  std::vector<float> x, y;
  for (double v = -12.0; v < 12.0; v += 0.00091) x.push_back(static_cast<float>(v));
  for (float v : {0.0f, 1e-30f, -1e-30f, 100.0f, -3e38f}) x.push_back(v);
  y.resize(x.size());
  const float inf = std::numeric_limits<float>::infinity();
  for (const cpu::Kernels* target : runnable_targets()) {
    target->tanh(x.data(), y.data(), static_cast<int>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT(units_off(y[i], std::tanh(double{x[i]})) <= 3.0);
    }
    const std::vector<float> ends = {inf, -inf, std::nanf("")};
    target->tanh(ends.data(), y.data(), 3);
    EXPECT(y[0] == 1.0f && y[1] == -1.0f && std::isnan(y[2]));
  }
}

TEST(logits_are_scaled_and_capped) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (int n : {1, 5, 64, 8192, 8195, 20000}) {
      auto backend = make_cpu_backend(2, target->name);
      backend->prepare(
          {.max_rows = 3, .n_heads = 1, .storages = {{.shape = {1, 4}}}, .vocab_size = n});
      const std::vector<float> x = numbers(size_t(3) * n, 41, 40.0f);
      for (float cap : {0.0f, 7.0f}) {
        std::vector<float> y = x;
        Buffer logits = over(y);
        backend->scale_logits(logits, 2, 0.25f, cap);
        for (size_t i = 0; i < y.size(); ++i) {
          const double v = 0.25 * double{x[i]};
          const double exact = i >= size_t(2) * n ? x[i]
                               : cap == 0.0f      ? v
                                                  : cap * std::tanh(v / cap);
          EXPECT(std::abs(y[i] - exact) <= 5e-7 * std::abs(exact));
        }
      }
    }
  }
}

TEST(exp_at_the_ends) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const cpu::Kernels* target : runnable_targets()) {
    const std::vector<float> x = {0.0f, -0.0f, -inf,  -1e30f, -105.0f,
                                  inf,  1e30f, 90.0f, -95.0f, std::nanf("")};
    std::vector<float> y(x.size());
    target->exp(x.data(), y.data(), static_cast<int>(x.size()));
    EXPECT_EQ(y[0], 1.0f);
    EXPECT_EQ(y[1], 1.0f);
    for (int i : {2, 3, 4}) EXPECT_EQ(y[i], 0.0f);
    for (int i : {5, 6, 7}) EXPECT_EQ(y[i], inf);
    EXPECT(units_off(y[8], std::exp(-95.0)) <= 1.0);  // below the least normal number
    EXPECT(std::isnan(y[9]));
  }
}

TEST(a_lane_has_the_same_bits_in_body_and_tail) {
  const std::vector<float> x = numbers(64, 11, 20.0f);
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    std::vector<float> whole(x.size());
    target->exp(x.data(), whole.data(), static_cast<int>(x.size()));
    for (int n = 1; n <= 33; ++n) {
      for (int first : {0, 1, 5}) {
        std::vector<float> part(n);
        target->exp(x.data() + first, part.data(), n);
        EXPECT(same_bits(part.data(), whole.data() + first, n));
      }
    }
    for (Activation kind : kActivations) {
      const std::vector<float> all = activated(*backend, *target, kind, x, false, DType::kF32);
      for (int n = 1; n <= 33; ++n) {
        const std::vector<float> some(x.begin() + 3, x.begin() + 3 + n);
        const std::vector<float> part =
            activated(*backend, *target, kind, some, false, DType::kF32);
        EXPECT(same_bits(part.data(), all.data() + 3, n));
      }
    }
    const std::vector<float> all = of_xielu(*backend, *target, kXielu, x);
    for (int n = 1; n <= 33; ++n) {
      const std::vector<float> some(x.begin() + 3, x.begin() + 3 + n);
      EXPECT(same_bits(of_xielu(*backend, *target, kXielu, some).data(), all.data() + 3, n));
    }
  }
}

TEST(activations_are_close_to_double) {
  std::vector<float> x;
  for (double v = -30.0; v < 30.0; v += 0.0031) x.push_back(static_cast<float>(v));
  for (float v : {0.0f, 1e-30f, -1e-30f, 1e4f, -1e4f, 3e38f, -3e38f}) x.push_back(v);
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    for (Activation kind : kActivations) {
      const std::vector<float> y = activated(*backend, *target, kind, x, false, DType::kF32);
      for (size_t i = 0; i < x.size(); ++i) {
        const double exact = exact_activation(kind, x[i]);
        if (std::isinf(y[i]) && exact > 3.5e38) continue;
        const double off = std::abs(y[i] - exact);
        EXPECT(off <= 1e-6 * std::abs(exact) + 1.2e-7 * std::min(1.0, std::abs(double{x[i]})));
      }
    }
  }
}

TEST(xielu_is_close_to_double) {
  std::vector<float> x;
  for (double v = -30.0; v < 30.0; v += 0.0031) x.push_back(static_cast<float>(v));
  for (double v = -1e-7; v > -1.0; v *= 1.07) x.push_back(static_cast<float>(v));
  for (float v : {0.0f, -0.0f, 1e-30f, -1e-30f, -88.0f, -104.0f, -1e4f, 1e4f, -1e38f})
    x.push_back(v);
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> ends = {std::nanf(""), inf, -inf, 3e38f};
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    for (const Xielu& a : {kXielu, Xielu{0.2f, 0.7f, 0.5f, -0.3f}, Xielu{2.0f, 0.6f, 0.5f, 1.0f}}) {
      const std::vector<float> y = of_xielu(*backend, *target, a, x);
      for (size_t i = 0; i < x.size(); ++i) {
        const double v = x[i];
        const double below = std::abs(std::expm1(std::min(v, double{a.eps}))) + std::abs(v);
        const double terms =
            std::abs(a.beta * v) + (v > 0.0 ? a.alpha_p * v * v : a.alpha_n * below);
        EXPECT(std::abs(y[i] - exact_xielu(a, v)) <= 3e-7 * terms + 1e-37);
      }
    }
    const std::vector<float> y = of_xielu(*backend, *target, kXielu, ends);
    EXPECT(std::isnan(y[0]) && y[1] == inf && std::isnan(y[2]) && y[3] == inf);
  }
}

TEST(xielu_of_rows_and_parts_of_rows) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (int threads : {1, 2}) {
      auto backend = make_cpu_backend(threads, target->name);
      for (int n : {1, 17, 1024, 2500}) {
        constexpr int kRows = 5;
        const std::vector<float> x = numbers(static_cast<size_t>(kRows) * n, 31, 3.0f);
        for (DType dtype : {DType::kF32, DType::kBF16}) {
          Activations out = backend->make_activations(kRows, n, dtype);
          backend->xielu(over(x), kRows, kXielu, out);
          for (int r = 0; r < kRows; ++r) {
            const float* row = x.data() + static_cast<size_t>(r) * n;
            const std::vector<float> alone =
                of_xielu(*backend, *target, kXielu, std::vector<float>(row, row + n));
            const std::vector<float> got = read_activations(out, *target, r);
            for (int i = 0; i < n; ++i) EXPECT_EQ(got[i], rounded(alone[i], dtype));
            for (size_t i = n; i < got.size(); ++i) EXPECT_EQ(got[i], 0.0f);
          }
        }
      }
    }
  }
}

TEST(gated_activation_multiplies_by_up) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (int threads : {1, 2}) {
      auto backend = make_cpu_backend(threads, target->name);
      for (int n : {1, 17, 1024, 2500}) {
        constexpr int kRows = 5;
        const std::vector<float> x = numbers(static_cast<size_t>(kRows) * 2 * n, 31, 3.0f);
        for (DType dtype : {DType::kF32, DType::kBF16}) {
          Activations out = backend->make_activations(kRows, n, dtype);
          backend->activate(over(x), kRows, Activation::kSilu, true, out);
          for (int r = 0; r < kRows; ++r) {
            const float* row = x.data() + static_cast<size_t>(r) * 2 * n;
            const std::vector<float> gate(row, row + n);
            const std::vector<float> act =
                activated(*backend, *target, Activation::kSilu, gate, false, DType::kF32);
            const std::vector<float> got = read_activations(out, *target, r);
            for (int i = 0; i < n; ++i) EXPECT_EQ(got[i], rounded(act[i] * row[n + i], dtype));
            for (size_t i = n; i < got.size(); ++i) EXPECT_EQ(got[i], 0.0f);
          }
        }
      }
    }
  }
}

TEST(norms_are_close_to_double) {
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    for (NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
      for (int n : kLengths) {
        const Norm norm = make_norm(*backend, kind, n);
        std::vector<float> x = numbers(n, 41, 4.0f);
        for (float& v : x) v += 1.0f;
        double mean = 0.0, squares = 0.0;
        for (float v : x) mean += v / static_cast<double>(n);
        if (kind == NormKind::kRms) mean = 0.0;
        for (float v : x) squares += (v - mean) * (v - mean) / n;
        const double factor = 1.0 / std::sqrt(squares + double{norm.eps});

        Activations out = backend->make_activations(1, n, DType::kF32);
        backend->norm(over(x), {.n = 1}, norm, out);
        const std::vector<float> y = read_activations(out, *target, 0);
        const float* weight = norm.weight.values.as<float>();
        const float* bias = norm.bias.values.as<float>();
        for (int i = 0; i < n; ++i) {
          const double exact = (x[i] - mean) * factor * weight[i] + (bias ? bias[i] : 0.0f);
          EXPECT(std::abs(y[i] - exact) <= 2e-6 * (1.0 + std::abs(x[i] * factor)));
        }
      }
    }
  }
}

TEST(norm_takes_rows_in_any_order_and_number) {
  constexpr int kRows = 40, kHidden = 1027;
  const std::vector<float> x = numbers(kRows * kHidden, 51);
  for (const cpu::Kernels* target : runnable_targets()) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      auto single = make_cpu_backend(1, target->name);
      auto threaded = make_cpu_backend(3, target->name);
      const Norm norm = make_norm(*single, NormKind::kLayer, kHidden);
      std::vector<int32_t> rows;
      for (int r : shuffled(kRows, 1)) rows.push_back(r);
      Activations all = threaded->make_activations(kRows, kHidden, dtype);
      constexpr int kFirst = 7;
      Activations some = threaded->make_activations(kRows - kFirst, kHidden, dtype);
      plan_rows(*threaded, {.n_rows = kRows, .logits_rows = rows, .pooled_rows = rows});
      threaded->norm(over(x), {Rows::Of::kLogitsRows, 0, kRows}, norm, all);
      threaded->norm(over(x), {Rows::Of::kPooledRows, kFirst, kRows - kFirst}, norm, some);
      for (int i = 0; i < kRows; ++i) {
        Activations one = single->make_activations(1, kHidden, dtype);
        single->norm(over(x), {.first = rows[i], .n = 1}, norm, one);
        EXPECT(same_bits(read_activations(one, *target, 0), read_activations(all, *target, i)));
        if (i < kFirst) continue;
        EXPECT(same_bits(read_activations(one, *target, 0),
                         read_activations(some, *target, i - kFirst)));
      }
    }
  }
}

TEST(a_norm_that_is_added_is_the_norm) {
  constexpr int kRows = 40;
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    for (int n : {1, 7, 64, 577, 1200}) {
      const Norm norm = make_norm(*backend, NormKind::kRms, n);
      const std::vector<float> y = numbers(size_t(kRows) * n, 51, 2.0f);
      const std::vector<float> before = numbers(size_t(kRows) * n, 52, 2.0f);
      std::vector<float> x = before;
      Buffer residual = over(x);
      backend->norm_add(over(y), kRows, norm, residual);
      Activations alone = backend->make_activations(kRows, n, DType::kF32);
      backend->norm(over(y), {.n = kRows}, norm, alone);
      for (int r = 0; r < kRows; ++r) {
        const std::vector<float> normed = read_activations(alone, *target, r);
        for (int i = 0; i < n; ++i) {
          const size_t at = size_t(r) * n + i;
          const double exact = double{before[at]} + normed[i];
          EXPECT(std::abs(x[at] - exact) <= 2e-7 * (std::abs(exact) + std::abs(normed[i])));
        }
      }
    }
  }
}

TEST(rounded_rows_are_those_of_the_type) {
  constexpr int kRows = 3, kCols = 70;
  const std::vector<float> x = numbers(size_t(kRows) * kCols, 53, 2.0f);
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      Activations out = backend->make_activations(kRows, kCols, dtype);
      backend->round(over(x), kRows, out);
      for (int r = 0; r < kRows; ++r) {
        const std::vector<float> row = read_activations(out, *target, r);
        for (int i = 0; i < kCols; ++i) EXPECT_EQ(row[i], rounded(x[size_t(r) * kCols + i], dtype));
      }
    }
  }
}

// Each head is that of a layer without norms, normed.
TEST(heads_are_normed_after_their_rotation) {
  constexpr int kHeads = 3, kKvHeads = 2, kDim = 10, kRows = 2;
  const std::vector<float> qkv = numbers(size_t(kRows) * (kHeads + 2 * kKvHeads) * kDim, 55, 2.0f);
  const std::vector<int32_t> block_table = {0};
  const std::vector<int32_t> positions = {0, 1};
  const std::vector<SequenceRows> sequences = {
      {.n_rows = kRows, .block_tables = {block_table.data()}}};
  const std::vector<float> inv_freq = {1.0f, 0.5f, 0.2f, 0.1f, 0.05f}, factors = {1.0f, 1.0f};
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    KvStorage kv = backend->make_kv(1, 32, 1, kKvHeads, kDim, DType::kF32);
    backend->prepare(
        {.max_rows = kRows, .n_heads = kHeads, .storages = {{.shape = {kKvHeads, kDim}}}});
    const Norm norm = make_norm(*backend, NormKind::kRms, kDim);
    const RopeTable rope = backend->make_rope(inv_freq, factors);
    const auto rotated = [&](const Norm* of_heads) {
      std::vector<float> rows = qkv;
      Buffer buffer = over(rows);
      backend->plan({.n_rows = kRows, .positions = positions.data(), .sequences = sequences}, kv);
      backend->rope_and_store(buffer,
                              {.n_heads = kHeads,
                               .n_kv_heads = kKvHeads,
                               .head_dim = kDim,
                               .rope = &rope,
                               .q_norm = of_heads,
                               .k_norm = of_heads,
                               .norms_after_rope = true},
                              kv);
      return rows;
    };
    const std::vector<float> plain = rotated(nullptr), normed = rotated(&norm);
    for (size_t head = 0; head < plain.size() / kDim; ++head) {
      const float* from = plain.data() + head * kDim;
      std::vector<float> expected(from, from + kDim);
      if (head % (kHeads + 2 * kKvHeads) < kHeads + kKvHeads) {
        Activations out = backend->make_activations(1, kDim, DType::kF32);
        backend->norm(over(expected), {.n = 1}, norm, out);
        expected = read_activations(out, *target, 0);
      }
      EXPECT(same_bits(expected.data(), &normed[head * kDim], kDim));
    }
  }
}

TEST(norms_of_all_heads_at_once) {
  constexpr int kHeads = 3, kKvHeads = 2, kDim = 6, kRows = 2;
  const std::vector<float> qkv = numbers(size_t(kRows) * (kHeads + 2 * kKvHeads) * kDim, 54, 2.0f);
  const std::vector<int32_t> block_table = {0};
  const std::vector<int32_t> positions = {0, 1};
  const std::vector<SequenceRows> sequences = {
      {.n_rows = kRows, .block_tables = {block_table.data()}}};
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    KvStorage kv = backend->make_kv(1, 32, 1, kKvHeads, kDim, DType::kF32);
    backend->prepare(
        {.max_rows = kRows, .n_heads = kHeads, .storages = {{.shape = {kKvHeads, kDim}}}});
    const Norm q_norm = make_norm(*backend, NormKind::kRms, kHeads * kDim);
    const Norm k_norm = make_norm(*backend, NormKind::kRms, kKvHeads * kDim);
    std::vector<float> rows = qkv;
    Buffer buffer = over(rows);
    backend->plan({.n_rows = kRows, .positions = positions.data(), .sequences = sequences}, kv);
    backend->rope_and_store(buffer,
                            {.n_heads = kHeads,
                             .n_kv_heads = kKvHeads,
                             .head_dim = kDim,
                             .q_norm = &q_norm,
                             .k_norm = &k_norm},
                            kv);
    const auto normed = [&](const Norm& norm, const float* from) {
      const int n = norm.weight.size;
      const std::vector<float> row(from, from + n);
      Activations out = backend->make_activations(1, n, DType::kF32);
      backend->norm(over(row), {.n = 1}, norm, out);
      return read_activations(out, *target, 0);
    };
    for (int r = 0; r < kRows; ++r) {
      const size_t at = size_t(r) * (kHeads + 2 * kKvHeads) * kDim, keys = at + kHeads * kDim;
      EXPECT(same_bits(normed(q_norm, &qkv[at]).data(), &rows[at], kHeads * kDim));
      EXPECT(same_bits(normed(k_norm, &qkv[keys]).data(), &rows[keys], kKvHeads * kDim));
      const size_t values = keys + kKvHeads * kDim;
      EXPECT(same_bits(&qkv[values], &rows[values], kKvHeads * kDim));
    }
  }
}

TEST(bf16_activations_round_to_nearest_even) {
  // A norm of weight 1 over a row whose mean square is 1 leaves it as it is but for the rounding.
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    const int n = 37;
    const Norm norm = make_norm(*backend, NormKind::kRms, n);
    const std::vector<float> x = numbers(n, 61, 2.0f);
    Activations wide = backend->make_activations(1, n, DType::kF32);
    Activations narrow = backend->make_activations(1, n, DType::kBF16);
    backend->norm(over(x), {.n = 1}, norm, wide);
    backend->norm(over(x), {.n = 1}, norm, narrow);
    const std::vector<float> exact = read_activations(wide, *target, 0);
    const std::vector<float> got = read_activations(narrow, *target, 0);
    for (int i = 0; i < n; ++i) EXPECT_EQ(got[i], rounded(exact[i], DType::kBF16));
  }
}

TEST(nan_stays_nan_in_bf16) {
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(1, target->name);
    // All bits set: rounding up would carry through the exponent into the sign.
    const std::vector<float> x = {1.0f, std::bit_cast<float>(0x7fffffffu), 2.0f};
    const std::vector<float> y =
        activated(*backend, *target, Activation::kGelu, x, false, DType::kBF16);
    EXPECT(std::isnan(y[1]));
    EXPECT(!std::isnan(y[0]) && !std::isnan(y[2]));
  }
}

TEST(rope_turns_pairs_by_position_times_frequency) {
  for (const cpu::Kernels* target : runnable_targets()) {
    auto backend = make_cpu_backend(2, target->name);
    for (int head_dim : {2, 6, 64, 80}) {
      const int half = head_dim / 2;
      std::vector<float> inv_freq(half);
      for (int i = 0; i < half; ++i) {
        inv_freq[i] = static_cast<float>(std::pow(10000.0, -2.0 * i / head_dim));
      }
      inv_freq[half - 1] = 0.0f;  // a pair that does not turn keeps its length too
      const RopeTable table = backend->make_rope(inv_freq, std::vector<float>(700, 1.25f));
      for (int position : {0, 1, 255, 699}) {
        std::vector<float> head = numbers(head_dim, 71);
        const std::vector<float> before = head;
        cpu::RotateArgs args;
        args.head_dim = head_dim;
        args.cosines = table.cosines.as<float>() + position * half;
        args.sines = table.sines.as<float>() + position * half;
        target->rotate(args, head.data());
        for (int i = 0; i < half; ++i) {
          const double angle = static_cast<float>(position) * inv_freq[i];
          const double factor = i == half - 1 ? 1.0 : 1.25;
          const double c = factor * std::cos(angle), s = factor * std::sin(angle);
          EXPECT(std::abs(head[i] - (before[i] * c - before[i + half] * s)) < 1e-6);
          EXPECT(std::abs(head[i + half] - (before[i + half] * c + before[i] * s)) < 1e-6);
        }
      }
    }
  }
}

PB_TEST_MAIN()
