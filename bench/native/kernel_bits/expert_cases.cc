// Mixtures of experts: routing, rows, and each kernel of their products beside the plain ones.
#include <cstring>

#include "cases.h"
#include "expert_fixture.h"

namespace pb::bench {
namespace {

using namespace pb::test;

constexpr DType kWeights[] = {DType::kF32, DType::kBF16, PB_CUDA_DTYPES};
constexpr cuda::GemmDevice kWithWgmma{.n_sms = 1, .has_wgmma = true};

bool is_wgmma(const GemmKernel& kernel) { return std::strstr(kernel.name, "wgmma") != nullptr; }

// All experts' products by every kernel; and those of one expert, which are a plain product too.
void run_products(Cases& cases, DType dtype) {
  constexpr size_t kExpert = 2;
  const bool has_mma = dtype != DType::kF32;
  const ExpertProducts products({3, 0, 41, 1, 9}, 70, 200, dtype, true, 11);
  const std::string group = std::string("experts ") + dtype_name(dtype);
  for (const GemmKernel& kernel : cuda::expert_kernels(dtype, kWithWgmma)) {
    const CaseInfo info{
        group + " by " + kernel.name + " of " + std::to_string(kernel.columns) + " columns", group,
        has_mma};
    const auto run = [&] { return products.run(kernel, kernel.rows); };
    if (is_wgmma(kernel)) {
      run_wgmma_case(cases, info, run);
    } else {
      cases.run<float>(info, run);
    }
  }
  const std::string of_one = group + ", one of them";
  cases.run<float>({of_one + " in company", of_one, has_mma}, [&] {
    const GemmKernel kernel = cuda::expert_kernels(dtype, {.n_sms = 1}).front();
    return products.part_of_expert(products.run(kernel, kernel.rows), kExpert);
  });
  cases.run<float>({of_one + " as a plain product", of_one, has_mma}, [&] {
    const Problem& p = products.of_expert(kExpert);
    return Product(p).run(choose_gemm(p.sizes, {.n_sms = 1}));
  });
}

// What routing made of some rows, from row `row` on: experts, bits of weights.
std::vector<int32_t> choices(const Routed& routed, size_t row, size_t n_rows, size_t k) {
  std::vector<int32_t> out;
  for (size_t i = row * k; i < (row + n_rows) * k; ++i) {
    int32_t bits;
    std::memcpy(&bits, &routed.weights[i], sizeof(bits));
    out.insert(out.end(), {routed.experts[i], bits});
  }
  return out;
}

constexpr int kRoutedExperts = 70;

// rule: of sigmoids, or of softmaxes with biases; null: of softmaxes.
void run_routing(Cases& cases, bool normalised, const ByScore* rule) {
  constexpr int kRows = 40;
  constexpr int kExperts = kRoutedExperts;
  constexpr int kPerRow = 6;
  constexpr int kRow = 17;
  std::vector<float> logits = Numbers(12).floats(size_t{kRows} * kExperts, 3.0f);
  logits[5] = logits[6] = logits[40] = 20.0f;
  const std::vector<float> scales = Numbers(13).floats(kExperts);
  const std::string name = std::string(rule == nullptr ? "routing"
                                       : rule->sigmoid ? "routing by sigmoids"
                                                       : "routing by softmaxes and biases") +
                           (normalised ? ", normalised" : "");
  const auto routed = [&](int first, int n_rows) {
    const auto begin = logits.begin() + ptrdiff_t{first} * kExperts;
    return route_rows({begin, begin + ptrdiff_t{n_rows} * kExperts}, kExperts, kPerRow, normalised,
                      scales, 8, rule);
  };
  cases.run<int32_t>({name, name, false}, [&] {
    const Routed all = routed(0, kRows);
    std::vector<int32_t> out = choices(all, 0, kRows, kPerRow);
    out.insert(out.end(), all.pairs.begin(), all.pairs.end());
    out.insert(out.end(), all.begins.begin(), all.begins.end());
    out.insert(out.end(), all.tiles.begin(), all.tiles.begin() + 1 + 3 * ptrdiff_t{all.tiles[0]});
    return out;
  });
  const std::string of_row = name + " of row 17";
  cases.run<int32_t>({of_row + " in company", of_row, false},
                     [&] { return choices(routed(0, kRows), kRow, 1, kPerRow); });
  cases.run<int32_t>({of_row + " alone", of_row, false},
                     [&] { return choices(routed(kRow, 1), 0, 1, kPerRow); });
}

void run_rows(Cases& cases) {
  constexpr int kHidden = 300;
  const std::vector<int32_t> pairs = {1, 4, 0, 3, 2, 5};  // of two rows
  const std::vector<float> y = Numbers(14).floats(size_t{6} * kHidden, 3.0f);
  const std::vector<float> weights = Numbers(15).floats(6);
  cases.run<float>({"gather_pairs", "gather_pairs", false}, [&] {
    const DeviceArray<float> x(std::vector<float>(y.begin(), y.begin() + ptrdiff_t{2} * kHidden));
    const DeviceArray<int32_t> numbers(pairs);
    DeviceArray<float> out(size_t{6} * kHidden);
    Product::launch_one(cuda::gather_pairs_launch(2, {.x = x.get(),
                                                      .pairs = numbers.get(),
                                                      .n_per_row = 3,
                                                      .row_bytes = kHidden * 4,
                                                      .out = out.get()}));
    return out.host();
  });
  for (const int adds : {0, 1}) {
    const std::string name = std::string("combine_pairs") + (adds != 0 ? ", added" : "");
    cases.run<float>({name, name, false}, [&] {
      const DeviceArray<float> from(y), of_pairs(weights);
      const DeviceArray<int32_t> numbers(pairs);
      DeviceArray<float> x(Numbers(16).floats(size_t{2} * kHidden));
      Product::launch_one(cuda::combine_pairs_launch(2, {.y = from.get(),
                                                         .pairs = numbers.get(),
                                                         .weights = of_pairs.get(),
                                                         .n_per_row = 3,
                                                         .hidden = kHidden,
                                                         .x = x.get(),
                                                         .adds = adds}));
      return x.host();
    });
  }
}

void run_add_shared(Cases& cases) {
  constexpr int kHidden = 300;
  const std::vector<float> y = Numbers(18).floats(size_t{3} * kHidden, 3.0f);
  const std::vector<float> before = Numbers(19).floats(size_t{3} * kHidden);
  cases.run<float>({"add_shared", "add_shared", false}, [&] {
    const DeviceArray<float> from(y), logits(std::vector<float>{0.7f, -95.0f, 200.0f});
    DeviceArray<float> x(before);
    Product::launch_one(cuda::add_shared_launch(
        3, {.y = from.get(), .logits = logits.get(), .hidden = kHidden, .x = x.get()}));
    return x.host();
  });
}

template <typename T>
void run_clamped_swiglu(Cases& cases, DType dtype) {
  constexpr int kCols = 1025;
  constexpr int64_t kStride = 1040;
  std::vector<float> gate_up = Numbers(17).floats(size_t{2} * 2 * kCols, 4.0f);
  gate_up[0] = -200.0f;
  gate_up[1] = 200.0f;
  const std::string name = std::string("clamped_swiglu ") + dtype_name(dtype);
  cases.run<T>({name, name, false}, [&] {
    const DeviceArray<float> from(gate_up);
    DeviceArray<T> out(2 * kStride);
    Product::launch_one(cuda::clamped_swiglu_launch(dtype, 2,
                                                    {.gate_up = from.get(),
                                                     .alpha = 1.702f,
                                                     .limit = 7.0f,
                                                     .cols = kCols,
                                                     .out = out.get(),
                                                     .row_stride = kStride}));
    return out.host();
  });
}

}  // namespace

void run_expert_cases(Cases& cases) {
  const ByScore by_sigmoid{.bias = Numbers(14).floats(kRoutedExperts, 0.3f), .scale = 1.7f};
  const ByScore by_softmax{.bias = Numbers(16).floats(kRoutedExperts, 0.1f), .sigmoid = false};
  for (const ByScore* const rule :
       {static_cast<const ByScore*>(nullptr), &by_sigmoid, &by_softmax}) {
    for (const bool normalised : {false, true}) run_routing(cases, normalised, rule);
  }
  run_rows(cases);
  run_add_shared(cases);
  run_clamped_swiglu<float>(cases, DType::kF32);
  run_clamped_swiglu<uint16_t>(cases, DType::kBF16);
  for (const DType dtype : kWeights) run_products(cases, dtype);
}

}  // namespace pb::bench
