// Bugs in kernels with dynamic shared memory.
#include "blocks_with_bugs.cuh"
#include "gemm_with_bugs.cuh"
#include "planted_bugs.h"
#include "wgmma_with_bugs.cuh"

namespace pb::test {
namespace {

constexpr PlantedBug kBugs[] = {
    {"gemm", nullptr, nullptr, nullptr},
    {"gemm_no_barrier_before", kWrong, kWrong, kRace},
    {"gemm_no_barrier_after", kWrong, kWrong, kRace},
    {"gemm_wrong_wait", kWrong, kWrong, kWrong},
    {"gemm_divergent_barrier", "threads of a block diverge", "threads of a block diverge",
     "threads of a block diverge"},
    {"gemm_no_wait", "copies that nobody waited for", "copies that nobody waited for",
     "copies that nobody waited for"},
    {"gemm_dynamic_bounds", nullptr, kPoison, nullptr},
    {"gemm_array_bounds", kWrong, kPoison, kRace},
    {"gemm_global_read", nullptr, kHeap, nullptr},
    {"gemm_global_write", "device memory was written behind", kHeap,
     "device memory was written behind"},
    {"wgmma", nullptr, nullptr, nullptr},
    {"wgmma_no_proxy_fence", "without fence.proxy.async", "without fence.proxy.async",
     "without fence.proxy.async"},
    {"wgmma_no_wait", kWrong, kWrong, nullptr},
    {"wgmma_loads_too_early", "an operand was changed while it was under way",
     "an operand was changed while it was under way",
     "an operand was changed while it was under way"},
    {"blocks", nullptr, nullptr, nullptr},
    {"blocks_race", nullptr, nullptr, kRace},
    {"blocks_in_order", kWrong, kWrong, kRace},
};

bool gemm_is_right(const std::string& kernel, Numbers& numbers) {
  const int m = 50;
  const int k = 192;
  const auto x = numbers.bf16s(static_cast<size_t>(m) * k);
  const auto w = numbers.bf16s(static_cast<size_t>(64) * k);
  const DeviceArray<__nv_bfloat16> dx(x);
  const DeviceArray<__nv_bfloat16> dw(w);
  DeviceArray<float> y(static_cast<size_t>(m) * 64);
  cuda::SharedBytes shared;
  cuda::take_gemm_arrays(shared);
  launch(kernel, dim3(1), dim3(128), shared.bytes(),
         cuda::GemmParams{dx.get(), dw.get(), y.get(), m, k});
  return are_close(y.host(), product_of(x, w, m, 64, k));
}

bool wgmma_is_right(const std::string& kernel, Numbers& numbers) {
  const int k = 256;
  const auto x = numbers.bf16s(static_cast<size_t>(64) * k);
  const auto w = numbers.bf16s(static_cast<size_t>(128) * k);
  const DeviceArray<__nv_bfloat16> dx(x);
  const DeviceArray<__nv_bfloat16> dw(w);
  DeviceArray<float> y(static_cast<size_t>(64) * 128);
  cuda::SharedBytes shared;
  cuda::take_wgmma_tiles(shared);
  launch(kernel, dim3(1), dim3(128), shared.bytes(),
         cuda::WgmmaParams{dx.get(), dw.get(), y.get(), k});
  return are_close(y.host(), product_of(x, w, 64, 128, k));
}

bool blocks_are_right(const std::string& kernel, Numbers& numbers) {
  const auto x = numbers.floats(8);
  const DeviceArray<float> dx(x);
  DeviceArray<float> y(std::vector<float>(8));
  launch(kernel, dim3(8), dim3(32), 0, cuda::BlocksParams{dx.get(), y.get()});
  std::vector<double> wanted(8);
  for (size_t i = 0; i < 8; ++i) wanted[i] = 2.0 * double{x[i]};
  const std::vector<float> got = y.host();
  if (kernel == "blocks_race") return true;
  return are_close(got, wanted);
}

}  // namespace

const std::span<const PlantedBug> planted_bugs = kBugs;

bool is_right(const std::string& kernel, Numbers& numbers) {
  if (kernel.starts_with("gemm")) return gemm_is_right(kernel, numbers);
  if (kernel.starts_with("wgmma")) return wgmma_is_right(kernel, numbers);
  return blocks_are_right(kernel, numbers);
}

}  // namespace pb::test
