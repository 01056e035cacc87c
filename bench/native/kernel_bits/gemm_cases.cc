// Matrix products and lookups of rows: each kernel alone, and all of them against each other.
#include <cmath>

#include "cases.h"
#include "gemm_fixture.h"

namespace pb::bench {
namespace {

using namespace pb::test;

constexpr DType kWeights[] = {DType::kF32, DType::kBF16, PB_CUDA_DTYPES};

bool has_mma(const GemmSizes& sizes) { return sizes.weights != DType::kF32; }

std::string title(const GemmSizes& s, const char* what) {
  return std::string("gemm ") + dtype_name(s.weights) + " " + std::to_string(s.n_rows) + "x" +
         std::to_string(s.n_out) + "x" + std::to_string(s.n_in) + " " + what;
}

std::string title(const GemmChoice& choice) {
  return std::string(choice.kernel->name) + " of " + std::to_string(choice.kernel->columns) +
         " columns" + (choice.splits_k ? ", split" : "");
}

// Multiplies all numbers by random powers of two, 2^-spread to 2^spread, and by 2^shift: what is
// cut from a sum, and where, then matters. x stays what bf16 holds, and blocks stay as they are.
Problem scattered(Problem p, int spread, int shift = 0) {
  uint32_t state = 1;
  for (std::vector<float>* numbers : {&p.x, &p.w}) {
    for (float& v : *numbers) {
      state = state * 1664525u + 1013904223u;
      const auto sampled = static_cast<int>((state >> 16) % static_cast<uint32_t>(2 * spread + 1));
      v = std::ldexp(v, sampled - spread + shift);
    }
    if (p.blocks != nullptr) break;
  }
  return p;
}

void run_choices(Cases& cases, const std::string& group, const Problem& p,
                 const std::vector<GemmChoice>& choices,
                 const std::vector<float>* before = nullptr) {
  const Product product(p);
  for (const GemmChoice& choice : choices) {
    cases.run<float>({group + " by " + title(choice), group, has_mma(p.sizes)},
                     [&] { return product.run(choice, p.sizes.n_rows, before); });
  }
}

// A row of many, and the same row alone.
void run_row_alone(Cases& cases, DType dtype) {
  constexpr int kRow = 97;
  constexpr int kOut = 40;
  const Problem p = Problem::random({150, kOut, 136, dtype}, true, 3);
  const std::string group = title(p.sizes, "row 97");
  cases.run<float>({group + " of 150", group, has_mma(p.sizes)}, [&] {
    const std::vector<float> all = Product(p).run(choose_gemm(p.sizes, {.n_sms = 1}));
    return std::vector<float>(all.begin() + kRow * kOut, all.begin() + (kRow + 1) * kOut);
  });
  const Problem alone = p.rows(kRow, 1);
  run_choices(cases, group, alone, {choose_gemm(alone.sizes, {.n_sms = 100})});
}

// Whether a kernel for sm_90a was there: one that is empty for other architectures leaves NaN.
bool wrote_nothing(const std::vector<float>& y) {
  for (const float v : y) {
    if (!std::isnan(v)) return false;
  }
  return true;
}

}  // namespace

void run_wgmma_case(Cases& cases, const CaseInfo& info, FunctionRef<std::vector<float>()> run) {
  if (test_device().properties().major != 9) return cases.leave_out(info, "wgmma is sm_90a's");
  std::vector<float> y;
  try {
    y = run();
  } catch (const Error& error) {
    const bool is_there =
        std::string(error.what()).find("no GPU kernel is called") == std::string::npos;
    if (!is_there) return cases.leave_out(info, error.what());
    return cases.run<float>(info, [&]() -> std::vector<float> { throw; });
  }
  if (wrote_nothing(y)) return cases.leave_out(info, "the kernel has no code for sm_90a");
  cases.run<float>(info, [&] { return y; });
}

namespace {

// A product on mma.sync, by tiles for few and for many rows, and on wgmma where the device has it.
void run_mma_and_wgmma(Cases& cases, const std::string& group, const Problem& p) {
  std::vector<GemmChoice> choices = {{&cuda::gemm_kernels(p.sizes.weights).back(), false}};
  if (p.sizes.n_rows <= 16) choices.push_back(choose_gemm(p.sizes, {.n_sms = 1}));
  run_choices(cases, group, p, choices);
  const GemmChoice choice{&cuda::wgmma_kernel(p.sizes.weights), false};
  const CaseInfo info{group + " by " + title(choice), group, true};
  run_wgmma_case(cases, info, [&] { return Product(p).run(choice); });
}

// Four mma in a chain, of random numbers: how tensor cores add.
void run_single_tiles(Cases& cases) {
  struct Inputs {
    const char* what;
    int spread;
    int shift;
  };
  for (const auto& [what, spread, shift] :
       {Inputs{"of one size", 0, 0}, Inputs{"of near sizes", 3, 0}, Inputs{"far apart", 12, 0},
        Inputs{"farther apart", 40, 0}, Inputs{"with subnormal sums", 3, -69}}) {
    const uint32_t n_seeds = cases.is_small() ? 1 : 16;
    for (uint32_t seed = 1; seed <= n_seeds; ++seed) {
      const Problem p = Problem::random({16, 8, 64, DType::kBF16}, false, 100 + seed);
      const std::string group =
          title(p.sizes, what) + std::string(", seed ") + std::to_string(seed);
      run_mma_and_wgmma(cases, group, scattered(p, spread, shift));
    }
  }
}

// Small numbers between zeros that meet large ones: whether a product that is zero decides where
// the others are cut.
void run_zeros_beside_large(Cases& cases) {
  for (const bool zeros_in_x : {false, true}) {
    Problem p = Problem::random({16, 8, 64, DType::kBF16}, false, 200);
    for (size_t i = 0; i < p.x.size(); ++i) {
      p.x[i] = i % 2 == 0 ? std::ldexp(p.x[i], -30) : zeros_in_x ? 0.0f : std::ldexp(p.x[i], 100);
    }
    for (size_t i = 0; i < p.w.size(); ++i) {
      p.w[i] = i % 2 == 0 ? std::ldexp(p.w[i], -30) : zeros_in_x ? std::ldexp(p.w[i], 100) : 0.0f;
    }
    run_mma_and_wgmma(cases, title(p.sizes, zeros_in_x ? "zeros times large" : "large times zeros"),
                      p);
  }
}

void run_gathers(Cases& cases, DType dtype) {
  constexpr int kRows = 19;
  const std::vector<int32_t> ids = {3, 0, 18, 3, 7};
  const Problem table = Problem::random({1, kRows, 300, dtype}, false, 5);
  const HostWeight host = table.packed_w();
  const std::vector<float> before = Numbers(6).floats(ids.size() * table.sizes.n_in);
  for (const Store store : {Store::kSet, Store::kAdd}) {
    const std::string name =
        std::string("gather_rows ") + dtype_name(dtype) + (store == Store::kAdd ? " added" : "");
    cases.run<float>({name, name, false}, [&] {
      const DeviceWeight weight(host);
      const DeviceArray<int32_t> on_device(ids);
      DeviceArray<float> x(before);
      Product::launch_one(gather_launch(host.layout, weight.pointers(), on_device.get(),
                                        static_cast<int>(ids.size()), x.get(), store));
      return x.host();
    });
  }
}

}  // namespace

void run_gemm_cases(Cases& cases) {
  for (const DType dtype : kWeights) {
    run_gathers(cases, dtype);
    const Problem one = Problem::random({21, 70, 200, dtype}, true, 1);
    run_choices(cases, title(one.sizes, "with a bias"), one, all_choices(one.sizes));
    const Problem segments = Problem::random({5, 37, 2112, dtype}, false, 2);
    const std::vector<float> before = Numbers(7).floats(size_t{5} * 37);
    run_choices(cases, title(segments.sizes, "added"), segments, widest_choices(segments.sizes),
                &before);
    const Problem far = scattered(Problem::random({18, 35, 264, dtype}, false, 8), 12);
    run_choices(cases, title(far.sizes, "far apart"), far, widest_choices(far.sizes));
    run_row_alone(cases, dtype);
    if (cases.is_small()) continue;
    const Problem large = Problem::random({64, 512, 4096, dtype}, false, 9);
    run_choices(cases, title(large.sizes, "large"), large, widest_choices(large.sizes));
  }
  for (const DType dtype : kWeights) {
    if (dtype == DType::kF32) continue;  // for which there is no wgmma
    const Problem one = Problem::random({150, 141, 200, dtype}, true, 4);
    run_mma_and_wgmma(cases, title(one.sizes, "mma and wgmma"), one);
    const Problem far = scattered(Problem::random({130, 129, 264, dtype}, false, 4), 12);
    run_mma_and_wgmma(cases, title(far.sizes, "mma and wgmma, far apart"), far);
    if (cases.is_small()) continue;
    const Problem segments = Problem::random({256, 384, 4104, dtype}, false, 4);
    run_mma_and_wgmma(cases, title(segments.sizes, "mma and wgmma of segments"), segments);
  }
  run_single_tiles(cases);
  run_zeros_beside_large(cases);
}

// Tiles copied by tensor maps, and by cp.async.
void run_tma_cases(Cases& cases) {
  const DeviceArray<uint16_t> any(64);
  const bool has_maps = test_device().make_tensor_map({any.get(), 1, 64, 1}).has_value();
  for (const DType dtype : kWeights) {
    if (dtype == DType::kF32) continue;
    std::vector<Problem> problems = {
        Problem::random({150, 141, 200, dtype}, true, 4),
        scattered(Problem::random({130, 129, 520, dtype}, false, 4), 12)};
    if (!cases.is_small()) problems.push_back(Problem::random({256, 384, 4104, dtype}, false, 4));
    for (const Problem& p : problems) {
      const std::string group = title(p.sizes, "tiles by maps and by cp.async");
      const Product product(p);
      std::vector<std::pair<std::string, GemmChoice>> choices = {
          {"", {&cuda::wgmma_kernel(dtype), false}},
          {"", {&cuda::tma_kernel(dtype), false}},
          {", three blocks", {&cuda::tma_kernel(dtype), false, 3}}};
      if (dtype != DType::kBF16) {
        choices.push_back({", expanded", {&cuda::tma_kernel(DType::kBF16), false, 0, 128}});
      }
      for (const auto& [how, choice] : choices) {
        const CaseInfo info{group + " by " + title(choice) + how, group, true};
        if (choice.kernel->has_maps && !has_maps) {
          cases.leave_out(info, "the driver makes no tensor maps");
        } else {
          run_wgmma_case(cases, info, [&] { return product.run(choice); });
        }
      }
    }
  }
}

}  // namespace pb::bench
