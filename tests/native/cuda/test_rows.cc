// Norms and activations on the emulator: against references in double, and the same bits for a row
// whatever is beside it.
#include <array>
#include <cmath>
#include <vector>

#include "cuda/rows/rows_launch.h"
#include "cuda_fixture.h"

namespace pb::test {
namespace {

constexpr uint64_t kOrders = 10;

template <typename Params>
void run(const cuda::Launch<Params>& l) {
  launch(l.kernel, dim3(l.grid.x, l.grid.y, l.grid.z), dim3(l.threads), l.shared_bytes, l.params);
}

int64_t padded(int cols) { return (cols + 15) / 16 * 16; }

struct NormInput {
  NormInput(int n_states_, int hidden_)
      : n_states(n_states_), hidden(hidden_), x(Numbers(3).floats(size_of(n_states_, hidden_), 2)) {
    weight = Numbers(4).floats(static_cast<size_t>(hidden));
    bias = Numbers(5).floats(static_cast<size_t>(hidden));
    for (float& v : x) v += 0.5f;  // so that a mean matters
  }
  static size_t size_of(int rows, int cols) { return static_cast<size_t>(rows) * cols; }

  int n_states;
  int hidden;
  std::vector<float> x;       // (n_states, hidden)
  std::vector<float> weight;  // (hidden)
  std::vector<float> bias;    // (hidden)
};

constexpr float kEps = 1e-5f;

// out (rows.size(), padded(hidden)), bits of bf16 or of f32
template <typename T>
std::vector<T> normed(NormKind kind, DType dtype, const NormInput& in,
                      const std::vector<int32_t>& rows) {
  const DeviceArray<float> x(in.x);
  const DeviceArray<int32_t> index(rows);
  const DeviceArray<float> weight(in.weight);
  const DeviceArray<float> bias(in.bias);
  DeviceArray<T> out(rows.size() * static_cast<size_t>(padded(in.hidden)));
  const cuda::NormParams params = {
      .x = x.get(),
      .rows = index.get(),
      .weight = weight.get(),
      .bias = kind == NormKind::kLayer ? bias.get() : nullptr,
      .hidden = in.hidden,
      .eps = kEps,
      .out = out.get(),
      .row_stride = padded(in.hidden),
  };
  run(cuda::norm_launch(kind, dtype, static_cast<int>(rows.size()), params));
  return out.host();
}

std::vector<double> norm_reference(NormKind kind, const NormInput& in, int row) {
  const float* x = in.x.data() + static_cast<int64_t>(row) * in.hidden;
  double mean = 0.0;
  double squares = 0.0;
  if (kind == NormKind::kLayer) {
    for (int i = 0; i < in.hidden; ++i) mean += double{x[i]} / in.hidden;
  }
  for (int i = 0; i < in.hidden; ++i) squares += (x[i] - mean) * (x[i] - mean) / in.hidden;
  std::vector<double> out;
  for (int i = 0; i < in.hidden; ++i) {
    const auto at = static_cast<size_t>(i);
    out.push_back((x[i] - mean) / std::sqrt(squares + kEps) * in.weight[at] +
                  (kind == NormKind::kLayer ? in.bias[at] : 0.0f));
  }
  return out;
}

float value(float v) { return v; }
float value(uint16_t bits) { return __bfloat162float({bits}); }

template <typename T>
void expect_norm_is_right(NormKind kind, DType dtype, double tolerance) {
  for (const int hidden : {1, 7, 48, 255, 257, 1000, 2048}) {
    const NormInput in(4, hidden);
    const std::vector<int32_t> rows = {2, 0, 2, 3};
    const auto out = normed<T>(kind, dtype, in, rows);
    const auto stride = static_cast<size_t>(padded(hidden));
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto expected = norm_reference(kind, in, rows[r]);
      for (size_t i = 0; i < stride; ++i) {
        const float made = value(out[r * stride + i]);
        if (i >= expected.size()) {
          EXPECT_EQ(made, 0.0f);
        } else {  // numbers near 0 are differences of numbers near 1
          EXPECT(std::abs(made - expected[i]) <= tolerance * (std::abs(expected[i]) + 2.0));
        }
      }
    }
  }
}

TEST(norms_match_a_reference_in_double) {
  set_order(1);
  expect_norm_is_right<float>(NormKind::kRms, DType::kF32, 1e-6);
  expect_norm_is_right<float>(NormKind::kLayer, DType::kF32, 1e-6);
  expect_norm_is_right<uint16_t>(NormKind::kRms, DType::kBF16, 1.0 / 256);
  expect_norm_is_right<uint16_t>(NormKind::kLayer, DType::kBF16, 1.0 / 256);
}

// A bf16 result is the f32 one, rounded.
TEST(norms_round_once) {
  const NormInput in(1, 300);
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    const auto exact = normed<float>(kind, DType::kF32, in, {0});
    const auto rounded = normed<uint16_t>(kind, DType::kBF16, in, {0});
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_EQ(rounded[i], __float2bfloat16_rn(exact[i]).bits);
    }
  }
}

TEST(a_norms_row_has_the_same_bits_alone_and_in_company) {
  for (const int hidden : {48, 777}) {
    const NormInput in(32, hidden);
    std::vector<int32_t> all(32);
    for (int i = 0; i < 32; ++i) all[static_cast<size_t>(i)] = 31 - i;
    const auto stride = static_cast<ptrdiff_t>(padded(hidden));
    for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
      set_order(0);
      const auto together = normed<float>(kind, DType::kF32, in, all);
      for (uint64_t seed = 1; seed <= n_orders(kOrders); ++seed) {
        set_order(seed);
        EXPECT(same_bits(normed<float>(kind, DType::kF32, in, all), together));
        const auto row = static_cast<ptrdiff_t>(seed % 32);
        const std::vector<float> expected(together.begin() + row * stride,
                                          together.begin() + (row + 1) * stride);
        const std::vector<int32_t> one = {all[static_cast<size_t>(row)]};
        EXPECT(same_bits(normed<float>(kind, DType::kF32, in, one), expected));
      }
    }
  }
}

// -- norms of rows in f32 ----------------------------------------------------------------------

// y (n, stride), of which `hidden` are normed; added to out, or in place.
std::vector<float> rows_normed(const std::vector<float>& y, const NormInput& in, int64_t stride,
                               std::vector<float> out) {
  const DeviceArray<float> weight(in.weight);
  const DeviceArray<float> from(y);
  DeviceArray<float> to(out.empty() ? y : out);
  const auto n = static_cast<int>(static_cast<int64_t>(y.size()) / stride);
  run(cuda::norm_rows_launch(n, {.y = out.empty() ? to.get() : from.get(),
                                 .y_stride = stride,
                                 .weight = weight.get(),
                                 .hidden = in.hidden,
                                 .eps = kEps,
                                 .out = to.get(),
                                 .out_stride = stride,
                                 .adds = out.empty() ? 0 : 1}));
  return to.host();
}

TEST(a_norm_in_place_has_the_bits_of_one_that_is_not) {
  set_order(5);
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    for (const int hidden : {7, 257, 1000}) {
      const NormInput in(3, hidden);
      const auto stride = static_cast<size_t>(padded(hidden));
      const auto expected = normed<float>(kind, DType::kF32, in, {0, 1, 2});
      DeviceArray<float> x(in.x);
      const DeviceArray<int32_t> index(std::vector<int32_t>{0, 1, 2});
      const DeviceArray<float> weight(in.weight), bias(in.bias);
      run(cuda::norm_launch(kind, DType::kF32, 3,
                            {.x = x.get(),
                             .rows = index.get(),
                             .weight = weight.get(),
                             .bias = kind == NormKind::kLayer ? bias.get() : nullptr,
                             .hidden = hidden,
                             .eps = kEps,
                             .out = x.get(),
                             .row_stride = hidden}));
      const auto made = x.host();
      for (size_t at = 0; at < made.size(); ++at) {
        const auto width = static_cast<size_t>(hidden);
        EXPECT_EQ(made[at], expected[at / width * stride + at % width]);
      }
    }
  }
}

TEST(norms_of_rows_add_or_stay_in_place_and_leave_what_lies_beside) {
  for (const int hidden : {1, 48, 257, 1000}) {
    set_order(3);
    const NormInput in(3, hidden);
    const int64_t wide = hidden + 5;
    std::vector<float> rows;
    for (int r = 0; r < 3; ++r) {
      rows.insert(rows.end(), in.x.begin() + r * hidden, in.x.begin() + (r + 1) * hidden);
      rows.insert(rows.end(), 5, 7.0f);
    }
    const std::vector<float> residual = Numbers(8).floats(rows.size());
    const auto in_place = rows_normed(rows, in, wide, {});
    const auto added = rows_normed(rows, in, wide, residual);
    for (int r = 0; r < 3; ++r) {
      const auto expected = norm_reference(NormKind::kRms, in, r);
      for (int64_t i = 0; i < wide; ++i) {
        const auto at = static_cast<size_t>(r * wide + i);
        if (i >= hidden) {
          EXPECT_EQ(in_place[at], 7.0f);
          EXPECT_EQ(added[at], residual[at]);
          continue;
        }
        const double e = expected[static_cast<size_t>(i)];
        EXPECT(std::abs(in_place[at] - e) <= 1e-6 * (std::abs(e) + 2.0));
        EXPECT(std::abs(added[at] - (e + residual[at])) <= 1e-6 * (std::abs(e) + 2.0));
      }
      const std::vector<float> one(rows.begin() + r * wide, rows.begin() + (r + 1) * wide);
      const std::vector<float> own(in_place.begin() + r * wide, in_place.begin() + (r + 1) * wide);
      set_order(static_cast<uint64_t>(10 + r));
      EXPECT(same_bits(rows_normed(one, in, wide, {}), own));
    }
  }
}

TEST(rounded_rows_and_their_padding) {
  for (const int cols : {1, 16, 300}) {
    const std::vector<float> x = Numbers(12).floats(static_cast<size_t>(2 * cols));
    const DeviceArray<float> from(x);
    const auto stride = static_cast<size_t>(padded(cols));
    DeviceArray<uint16_t> narrow(2 * stride);
    DeviceArray<float> plain(2 * stride);
    const cuda::RoundParams params{.x = from.get(), .cols = cols, .row_stride = padded(cols)};
    cuda::RoundParams to = params;
    to.out = narrow.get();
    run(cuda::round_launch(DType::kBF16, 2, to));
    to.out = plain.get();
    run(cuda::round_launch(DType::kF32, 2, to));
    const std::vector<uint16_t> bits = narrow.host();
    const std::vector<float> numbers = plain.host();
    for (size_t r = 0; r < 2; ++r) {
      for (size_t i = 0; i < stride; ++i) {
        const bool inside = i < static_cast<size_t>(cols);
        const float e = inside ? x[r * static_cast<size_t>(cols) + i] : 0.0f;
        EXPECT_EQ(numbers[r * stride + i], e);
        EXPECT_EQ(bits[r * stride + i], __float2bfloat16_rn(e).bits);
      }
    }
  }
}

TEST(logits_are_scaled_and_capped) {
  std::vector<float> x;
  for (int i = -3000; i <= 3000; ++i) x.push_back(0.01f * static_cast<float>(i));
  x.insert(x.end(), {INFINITY, -INFINITY, NAN, 1e-30f});
  for (const float softcap : {0.0f, 2.0f, 30.0f}) {
    DeviceArray<float> logits(x);
    run(cuda::scale_logits_launch({.logits = logits.get(),
                                   .n = static_cast<int64_t>(x.size()) - 1,
                                   .scale = 0.5f,
                                   .softcap = softcap}));
    const std::vector<float> y = logits.host();
    EXPECT_EQ(y.back(), x.back());
    for (size_t i = 0; i + 1 < x.size(); ++i) {
      const double scaled = 0.5 * double{x[i]};
      const double e = softcap == 0.0f ? scaled : softcap * std::tanh(scaled / softcap);
      if (std::isnan(x[i]) || std::isinf(e)) {
        EXPECT(std::isnan(x[i]) ? std::isnan(y[i]) : y[i] == e);
      } else {
        EXPECT(std::abs(y[i] - e) <= 3e-7 * std::abs(e));
      }
    }
  }
}

// -- activations -----------------------------------------------------------------------------

template <typename T>
std::vector<T> activated(Activation kind, DType dtype, bool gated, int n_rows, int cols,
                         const std::vector<float>& gate_up) {
  const DeviceArray<float> x(gate_up);
  DeviceArray<T> out(static_cast<size_t>(n_rows * padded(cols)));
  const cuda::ActivateParams params = {.gate = x.get(),
                                       .gate_stride = (gated ? 2 : 1) * cols,
                                       .up = gated ? x.get() + cols : nullptr,
                                       .up_stride = 2 * cols,
                                       .cols = cols,
                                       .out = out.get(),
                                       .row_stride = padded(cols)};
  run(cuda::activate_launch(kind, dtype, n_rows, params));
  return out.host();
}

double activation_reference(Activation kind, double x) {
  switch (kind) {
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kGeluTanh:
      return x / (1.0 + std::exp(-2.0 * std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kSigmoid:
      return 1.0 / (1.0 + std::exp(-x));
    case Activation::kReluSquared:
      return x > 0.0 ? x * x : 0.0;
    case Activation::kGelu:
    case Activation::kXielu:  // xielu_reference
      break;
  }
  return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
}

constexpr std::array kActivations = {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu,
                                     Activation::kReluSquared, Activation::kSigmoid};

TEST(activations_are_accurate_to_a_few_units_of_f32) {
  constexpr int kCols = 20000;
  std::vector<float> x;
  for (int i = 0; i < kCols; ++i) x.push_back(-5.0f + 18.0f * static_cast<float>(i) / kCols);
  for (const Activation kind : kActivations) {
    const auto y = activated<float>(kind, DType::kF32, false, 1, kCols, x);
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = activation_reference(kind, x[i]);
      const double error = std::abs(y[i] - expected);
      // The tanh form's exponent grows with x^3, and so does what its rounding does to the result.
      const bool rough = kind == Activation::kGeluTanh && x[i] < -2.0f;
      EXPECT(error <= (rough ? 3e-6 : 5e-7) * std::abs(expected));
    }
  }
}

TEST(activations_of_extremes) {
  const std::vector<float> x = {0.0f, -0.0f, 100.0f, -100.0f, 3e38f, -3e38f, NAN, 1e-30f};
  const auto of = [&](Activation kind) {
    return activated<float>(kind, DType::kF32, false, 1, 8, x);
  };
  const auto shares = of(Activation::kSigmoid);
  const std::vector<float> wanted = {0.5f, 0.5f, 1.0f, 0.0f, 1.0f, 0.0f, NAN, 0.5f};
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT(i == 6 ? std::isnan(shares[i]) : shares[i] == wanted[i]);
  }
  const auto squares = of(Activation::kReluSquared);
  for (const size_t i : {0, 1, 3, 5}) EXPECT_EQ(squares[i], 0.0f);
  EXPECT(squares[2] == 1e4f && std::isinf(squares[4]) && std::isnan(squares[6]));
  for (const Activation kind : {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu}) {
    const auto y = of(kind);
    EXPECT_EQ(y[0], 0.0f);
    EXPECT_EQ(y[1], 0.0f);
    EXPECT_EQ(y[2], 100.0f);
    EXPECT_EQ(y[3], 0.0f);
    EXPECT(std::isnan(y[6]));
    EXPECT_EQ(y[7], 0.5e-30f);
  }
}

constexpr Xielu kXielu = {.alpha_p = 0.9f, .alpha_n = 1.3f, .beta = 0.4f, .eps = -1e-6f};

template <typename T>
std::vector<T> of_xielu(DType dtype, int n_rows, int cols, const Xielu& of_layer,
                        const std::vector<float>& numbers) {
  const DeviceArray<float> x(numbers);
  DeviceArray<T> out(static_cast<size_t>(n_rows * padded(cols)));
  run(cuda::xielu_launch(dtype, n_rows,
                         {.rows = {.gate = x.get(),
                                   .gate_stride = cols,
                                   .up = nullptr,
                                   .up_stride = 0,
                                   .cols = cols,
                                   .out = out.get(),
                                   .row_stride = padded(cols)},
                          .of_layer = of_layer}));
  return out.host();
}

double xielu_reference(const Xielu& a, double x) {
  if (x > 0.0) return double{a.alpha_p} * x * x + double{a.beta} * x;
  const double least = std::min(x, double{a.eps});
  return double{a.alpha_n} * (std::expm1(least) - x) + double{a.beta} * x;
}

TEST(xielu_is_accurate_to_a_few_units_of_its_terms) {
  std::vector<float> x;
  for (int i = 0; i < 20000; ++i) x.push_back(-13.0f + 26.0f * static_cast<float>(i) / 20000);
  for (double v = -1e-7; v > -1.0; v *= 1.07) x.push_back(static_cast<float>(v));
  for (float v : {0.0f, -0.0f, 1e-30f, -1e-30f, -86.9f, -87.0f, -88.0f, -1e4f, 1e4f, -3e38f})
    x.push_back(v);
  for (const Xielu& a : {kXielu, Xielu{0.2f, 0.7f, 0.5f, -0.3f}, Xielu{2.0f, 0.6f, 0.5f, 1.0f}}) {
    const auto y = of_xielu<float>(DType::kF32, 1, static_cast<int>(x.size()), a, x);
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = x[i];
      const double below = std::abs(std::expm1(std::min(v, double{a.eps}))) + std::abs(v);
      const double terms = std::abs(a.beta * v) + (v > 0.0 ? a.alpha_p * v * v : a.alpha_n * below);
      EXPECT(std::abs(y[i] - xielu_reference(a, v)) <= 5e-7 * terms + 1e-37);
    }
  }
  const auto ends = of_xielu<float>(DType::kF32, 1, 4, kXielu, {NAN, INFINITY, -INFINITY, 3e38f});
  EXPECT(std::isnan(ends[0]) && ends[1] == INFINITY);
  EXPECT(std::isnan(ends[2]) && ends[3] == INFINITY);
}

TEST(rows_of_xielu_and_padding) {
  for (const int cols : {1, 15, 16, 48, 1023, 1025, 2100}) {
    constexpr int kRows = 3;
    const auto x = Numbers(9).floats(static_cast<size_t>(kRows * cols), 2);
    set_order(5);
    const auto y = of_xielu<float>(DType::kF32, kRows, cols, kXielu, x);
    const auto rounded = of_xielu<uint16_t>(DType::kBF16, kRows, cols, kXielu, x);
    const auto stride = static_cast<size_t>(padded(cols));
    for (size_t r = 0; r < kRows; ++r) {
      const auto row = x.begin() + static_cast<ptrdiff_t>(r) * cols;
      set_order(r);
      const auto alone = of_xielu<float>(DType::kF32, 1, cols, kXielu, {row, row + cols});
      for (size_t i = 0; i < stride; ++i) {
        const float number = y[r * stride + i];
        EXPECT(i < static_cast<size_t>(cols) ? number == alone[i] : number == 0.0f);
        EXPECT_EQ(rounded[r * stride + i], __float2bfloat16_rn(number).bits);
      }
    }
  }
}

TEST(gated_activations_and_padding) {
  for (const int cols : {1, 15, 16, 48, 1023, 1025, 2100}) {
    constexpr int kRows = 3;
    const auto x = Numbers(9).floats(static_cast<size_t>(kRows * 2 * cols), 2);
    for (const Activation kind : kActivations) {
      set_order(5);
      const auto y = activated<float>(kind, DType::kF32, true, kRows, cols, x);
      const auto rounded = activated<uint16_t>(kind, DType::kBF16, true, kRows, cols, x);
      const auto stride = static_cast<size_t>(padded(cols));
      for (size_t r = 0; r < kRows; ++r) {
        const float* gate = x.data() + r * 2 * static_cast<size_t>(cols);
        for (size_t i = 0; i < stride; ++i) {
          const bool inside = i < static_cast<size_t>(cols);
          const double e =
              inside ? activation_reference(kind, gate[i]) * gate[static_cast<size_t>(cols) + i]
                     : 0;
          EXPECT(std::abs(y[r * stride + i] - e) <= 2e-6 * std::abs(e) + 1e-12);
          EXPECT_EQ(rounded[r * stride + i], __float2bfloat16_rn(y[r * stride + i]).bits);
        }
      }
    }
  }
}

TEST(an_activations_row_has_the_same_bits_alone_and_in_company) {
  constexpr int kCols = 1100;
  const auto x = Numbers(6).floats(size_t{32} * 2 * kCols);
  const auto stride = static_cast<ptrdiff_t>(padded(kCols));
  for (const Activation kind : kActivations) {
    set_order(0);
    const auto together = activated<float>(kind, DType::kF32, true, 32, kCols, x);
    for (uint64_t seed = 1; seed <= n_orders(kOrders); ++seed) {
      set_order(seed);
      const auto row = static_cast<ptrdiff_t>(seed * 3 % 32);
      const std::vector<float> one(x.begin() + row * 2 * kCols, x.begin() + (row + 1) * 2 * kCols);
      const std::vector<float> expected(together.begin() + row * stride,
                                        together.begin() + (row + 1) * stride);
      EXPECT(same_bits(activated<float>(kind, DType::kF32, true, 1, kCols, one), expected));
    }
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
