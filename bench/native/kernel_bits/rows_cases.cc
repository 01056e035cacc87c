// Norms, activations, rounding and logits: rows of many together, and one alone.
#include <span>

#include "cases.h"
#include "cuda/rows/rows_launch.h"
#include "cuda_fixture.h"

namespace pb::bench {
namespace {

using namespace pb::test;

template <typename Params>
void launch_one(const cuda::Launch<Params>& l) {
  launch(l.kernel, dim3(l.grid.x, l.grid.y, l.grid.z), dim3(l.threads), l.shared_bytes, l.params);
}

size_t bytes_of(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

std::vector<std::byte> bytes_of_numbers(const std::vector<float>& numbers) {
  const auto bytes = std::as_bytes(std::span(numbers));
  return {bytes.begin(), bytes.end()};
}

// Runs rows 0..n-1 by `make`, and row 2 alone: make(rows) returns their bytes.
void run_together_and_alone(Cases& cases, const std::string& name, int n,
                            FunctionRef<std::vector<std::byte>(std::vector<int32_t>)> make) {
  std::vector<int32_t> all(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) all[static_cast<size_t>(i)] = i;
  cases.run<std::byte>({name, name, false}, [&] { return make(all); });
  const std::string group = name + ", row 2";
  cases.run<std::byte>({group + " of all", group, false}, [&] {
    const std::vector<std::byte> bytes = make(all);
    const auto row = static_cast<ptrdiff_t>(bytes.size() / all.size());
    return std::vector<std::byte>(bytes.begin() + 2 * row, bytes.begin() + 3 * row);
  });
  cases.run<std::byte>({group + " alone", group, false}, [&] { return make({2}); });
}

void run_norm(Cases& cases, NormKind kind, DType dtype, int hidden) {
  constexpr int kRows = 5;
  const size_t stride = (static_cast<size_t>(hidden) + 15) / 16 * 16;
  const std::vector<float> x = Numbers(1).floats(size_t{kRows} * hidden, 3.0f);
  const std::vector<float> weight = Numbers(2).floats(hidden);
  const std::vector<float> bias = Numbers(3).floats(hidden);
  const std::string name = std::string(kind == NormKind::kRms ? "rms_norm " : "layer_norm ") +
                           dtype_name(dtype) + " of " + std::to_string(hidden);
  run_together_and_alone(cases, name, kRows, [&](std::vector<int32_t> rows) {
    const DeviceArray<float> device_x(x), device_weight(weight), device_bias(bias);
    const DeviceArray<int32_t> index(rows);
    DeviceArray<std::byte> out(rows.size() * stride * bytes_of(dtype));
    launch_one(cuda::norm_launch(kind, dtype, static_cast<int>(rows.size()),
                                 {.x = device_x.get(),
                                  .rows = index.get(),
                                  .weight = device_weight.get(),
                                  .bias = kind == NormKind::kLayer ? device_bias.get() : nullptr,
                                  .hidden = hidden,
                                  .eps = 1e-5f,
                                  .out = out.get(),
                                  .row_stride = static_cast<int64_t>(stride)}));
    return out.host();
  });
}

void run_norm_rows(Cases& cases, int hidden, bool adds, float scale = 1.0f) {
  constexpr int kRows = 5;
  const auto width = static_cast<size_t>(hidden);
  const std::vector<float> y = Numbers(5).floats(kRows * width, 3.0f);
  const std::vector<float> x = Numbers(6).floats(kRows * width, 3.0f);
  const std::vector<float> weight = Numbers(7).floats(hidden);
  const std::string name = std::string("rms_norm_rows of ") + std::to_string(hidden) +
                           (adds ? ", added" : "") + (scale == 1.0f ? "" : ", scaled");
  run_together_and_alone(cases, name, kRows, [&](std::vector<int32_t> rows) {
    std::vector<float> own_y, own_x;
    for (const int32_t row : rows) {
      const auto at = static_cast<ptrdiff_t>(width) * row;
      own_y.insert(own_y.end(), y.begin() + at, y.begin() + at + hidden);
      own_x.insert(own_x.end(), x.begin() + at, x.begin() + at + hidden);
    }
    const DeviceArray<float> from(own_y), device_weight(weight);
    DeviceArray<float> out(own_x);
    launch_one(cuda::norm_rows_launch(static_cast<int>(rows.size()), {.y = from.get(),
                                                                      .y_stride = hidden,
                                                                      .weight = device_weight.get(),
                                                                      .hidden = hidden,
                                                                      .eps = 1e-5f,
                                                                      .out = out.get(),
                                                                      .out_stride = hidden,
                                                                      .adds = adds ? 1 : 0,
                                                                      .scale = scale}));
    return bytes_of_numbers(out.host());
  });
}

void run_round(Cases& cases, DType dtype) {
  constexpr int kCols = 300;
  constexpr int64_t kStride = 304;
  const std::vector<float> x = Numbers(8).floats(size_t{2} * kCols, 3.0f);
  const std::string name = std::string("round_rows ") + dtype_name(dtype);
  cases.run<std::byte>({name, name, false}, [&] {
    const DeviceArray<float> from(x);
    DeviceArray<std::byte> out(2 * kStride * bytes_of(dtype));
    launch_one(cuda::round_launch(
        dtype, 2, {.x = from.get(), .cols = kCols, .out = out.get(), .row_stride = kStride}));
    return out.host();
  });
}

void run_permute(Cases& cases, DType dtype) {
  constexpr int kCols = 300;
  constexpr int64_t kStride = 304;
  const std::vector<float> x = Numbers(10).floats(size_t{2} * kStride, 3.0f);
  std::vector<int32_t> order(kCols);
  for (int i = 0; i < kCols; ++i) order[static_cast<size_t>(i)] = i * 7 % kCols;
  const std::string name = std::string("permute_rows ") + dtype_name(dtype);
  cases.run<std::byte>({name, name, false}, [&] {
    const DeviceArray<float> from(x);
    const DeviceArray<int32_t> lies(order);
    DeviceArray<std::byte> out(2 * kStride * bytes_of(dtype));
    launch_one(cuda::permute_launch(dtype, 2,
                                    {.x = from.get(),
                                     .x_stride = kStride,
                                     .order = lies.get(),
                                     .cols = kCols,
                                     .out = out.get(),
                                     .row_stride = kStride}));
    return out.host();
  });
}

// Rows 4 and 1 of five are given, from the second column of their values on.
void run_give_rows(Cases& cases, bool adds) {
  constexpr int kCols = 300;
  constexpr int kStride = 302;
  const std::vector<float> x = Numbers(11).floats(size_t{5} * kCols, 3.0f);
  const std::vector<float> values = Numbers(12).floats(size_t{2} * kStride, 3.0f);
  const std::string name = std::string("give_rows ") + (adds ? "added" : "set");
  cases.run<std::byte>({name, name, false}, [&] {
    DeviceArray<float> to(x);
    const DeviceArray<float> from(values);
    const DeviceArray<int32_t> rows(std::vector<int32_t>{4, 1});
    launch_one(cuda::give_rows_launch(2, {.values = from.get() + 1,
                                          .stride = kStride,
                                          .rows = rows.get(),
                                          .columns = kCols,
                                          .x = to.get(),
                                          .adds = adds ? 1 : 0}));
    return bytes_of_numbers(to.host());
  });
}

void run_scale_logits(Cases& cases, float softcap) {
  std::vector<float> x = Numbers(9).floats(1000, 30.0f);
  x[0] = 0.0f;
  x[1] = -200.0f;
  x[2] = 1e-30f;
  const std::string name = "scale_logits capped at " + std::to_string(softcap);
  cases.run<std::byte>({name, name, false}, [&] {
    DeviceArray<float> logits(x);
    launch_one(cuda::scale_logits_launch({.logits = logits.get(),
                                          .n = static_cast<int64_t>(x.size()),
                                          .scale = 0.7f,
                                          .softcap = softcap}));
    return bytes_of_numbers(logits.host());
  });
}

void run_activation(Cases& cases, Activation kind, const char* kind_name, DType dtype, bool gated) {
  constexpr int kRows = 3;
  constexpr int kCols = 1025;
  constexpr int64_t kStride = 1040;
  const size_t width = gated ? 2 * kCols : kCols;
  std::vector<float> x = Numbers(4).floats(kRows * width, 4.0f);
  x[0] = 0.0f;
  x[1] = -200.0f;
  x[2] = 200.0f;
  x[3] = 1e-30f;
  const std::string name =
      std::string(kind_name) + " " + dtype_name(dtype) + (gated ? " gated" : "");
  run_together_and_alone(cases, name, kRows, [&](std::vector<int32_t> rows) {
    std::vector<float> own;
    for (const int32_t row : rows) {
      const auto at = x.begin() + static_cast<ptrdiff_t>(width) * row;
      own.insert(own.end(), at, at + static_cast<ptrdiff_t>(width));
    }
    const DeviceArray<float> gate_up(own);
    DeviceArray<std::byte> out(rows.size() * kStride * bytes_of(dtype));
    launch_one(cuda::activate_launch(kind, dtype, static_cast<int>(rows.size()),
                                     {.gate = gate_up.get(),
                                      .gate_stride = static_cast<int64_t>(width),
                                      .up = gated ? gate_up.get() + kCols : nullptr,
                                      .up_stride = static_cast<int64_t>(width),
                                      .cols = kCols,
                                      .out = out.get(),
                                      .row_stride = kStride}));
    return out.host();
  });
}

void run_xielu(Cases& cases, DType dtype) {
  constexpr int kRows = 3;
  constexpr int kCols = 1025;
  constexpr int64_t kStride = 1040;
  std::vector<float> x = Numbers(11).floats(size_t{kRows} * kCols, 4.0f);
  x[0] = 0.0f;
  x[1] = -200.0f;
  x[2] = 200.0f;
  x[3] = -1e-7f;
  const std::string name = std::string("xielu ") + dtype_name(dtype);
  run_together_and_alone(cases, name, kRows, [&](std::vector<int32_t> rows) {
    std::vector<float> own;
    for (const int32_t row : rows) {
      const auto at = x.begin() + ptrdiff_t{kCols} * row;
      own.insert(own.end(), at, at + kCols);
    }
    const DeviceArray<float> from(own);
    DeviceArray<std::byte> out(rows.size() * kStride * bytes_of(dtype));
    launch_one(cuda::xielu_launch(
        dtype, static_cast<int>(rows.size()),
        {.rows = {.gate = from.get(),
                  .gate_stride = kCols,
                  .up = nullptr,
                  .up_stride = 0,
                  .cols = kCols,
                  .out = out.get(),
                  .row_stride = kStride},
         .of_layer = {.alpha_p = 0.9f, .alpha_n = 1.3f, .beta = 0.4f, .eps = -1e-6f}}));
    return out.host();
  });
}

}  // namespace

void run_rows_cases(Cases& cases) {
  for (const int hidden : {7, 257, 4096}) {
    run_norm_rows(cases, hidden, false);
    run_norm_rows(cases, hidden, true);
    run_norm_rows(cases, hidden, true, 0.7f);
  }
  for (const bool adds : {false, true}) run_give_rows(cases, adds);
  for (const float softcap : {0.0f, 20.0f}) run_scale_logits(cases, softcap);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    run_round(cases, dtype);
    run_permute(cases, dtype);
    run_xielu(cases, dtype);
    for (const int hidden : {7, 257, 4096}) {
      run_norm(cases, NormKind::kRms, dtype, hidden);
      run_norm(cases, NormKind::kLayer, dtype, hidden);
    }
    for (const bool gated : {false, true}) {
      run_activation(cases, Activation::kSilu, "silu", dtype, gated);
      run_activation(cases, Activation::kGeluTanh, "gelu_tanh", dtype, gated);
      run_activation(cases, Activation::kGelu, "gelu", dtype, gated);
      run_activation(cases, Activation::kReluSquared, "relu_squared", dtype, gated);
      run_activation(cases, Activation::kSigmoid, "sigmoid", dtype, gated);
    }
  }
}

}  // namespace pb::bench
