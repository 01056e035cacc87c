// Bugs in kernels whose tiles are copied by tensor maps.
#include <iterator>

#include "planted_bugs.h"
#include "tma_with_bugs.cuh"

namespace pb::test {
namespace {

constexpr const char* kTooFew = "it expects too few bytes";
constexpr const char* kTooMany = "more bytes are copied than the phase expects";
constexpr const char* kMoreArrivals = "more arrivals than the phase has";
constexpr const char* kChanged = "an operand was changed while it was under way";
constexpr const char* kNoBarrier = "there is no mbarrier";

constexpr PlantedBug kBugs[] = {
    {"tma", nullptr, nullptr, nullptr},
    {"tma_no_expect", kTooMany, kTooMany, kRace},
    {"tma_too_few_bytes", kTooFew, kTooFew, kTooFew},
    {"tma_too_many_bytes", "0 arrivals and 16 bytes are missing",
     "0 arrivals and 16 bytes are missing", "0 arrivals and 16 bytes are missing"},
    {"tma_wrong_phase", "nobody can go on: thread 0 in mbarrier.try_wait",
     "nobody can go on: thread 0 in mbarrier.try_wait", kRace},
    {"tma_no_empty", kMoreArrivals, kMoreArrivals, kMoreArrivals},
    {"tma_given_back_too_early", kChanged, kChanged, kRace},
    {"tma_no_fence", "made without fence.proxy.async after it",
     "made without fence.proxy.async after it", "made without fence.proxy.async after it"},
    {"tma_no_barrier_after_making", kNoBarrier, kNoBarrier, kNoBarrier},
    {"tma_made_twice", "mbarrier.init: there is one already", "mbarrier.init: there is one already",
     "mbarrier.init: there is one already"},
    {"tma_wrong_coordinates", kWrong, kWrong, kWrong},
    {"tma_no_wait", "nobody can go on: thread 128 in mbarrier.try_wait",
     "nobody can go on: thread 128 in mbarrier.try_wait",
     "nobody can go on: thread 128 in mbarrier.try_wait"},
    {"tma_unswizzled", kWrong, kWrong, kWrong},
    {"tma_map_of_nobody", "a tensor map that the driver has not made",
     "a tensor map that the driver has not made", "a tensor map that the driver has not made"},
};

// (n_rows, k) bf16, boxes of all rows.
cuda::TensorMap unswizzled(const __nv_bfloat16* data, int n_rows, int k) {
  const uint64_t sizes[] = {static_cast<uint64_t>(k), static_cast<uint64_t>(n_rows)};
  const uint64_t row_bytes = 2 * sizes[0];
  const unsigned box[] = {64, static_cast<unsigned>(n_rows)};
  const unsigned steps[] = {1, 1};
  static cuda::TensorMap map;
  test_device().call(cuda_on_cpu::emulated_driver().encode_tensor_map, &map, cuda::kTensorBf16, 2,
                     const_cast<__nv_bfloat16*>(data), std::data(sizes), &row_bytes, std::data(box),
                     std::data(steps), cuda::kTensorNotInterleaved, 0, 0,
                     cuda::kTensorZerosOutside);
  return map;
}

}  // namespace

const std::span<const PlantedBug> planted_bugs = kBugs;

bool is_right(const std::string& kernel, Numbers& numbers) {
  const int k = 320;
  const auto x = numbers.bf16s(static_cast<size_t>(64) * k);
  const auto w = numbers.bf16s(static_cast<size_t>(128) * k);
  const DeviceArray<__nv_bfloat16> dx(x);
  const DeviceArray<__nv_bfloat16> dw(w);
  DeviceArray<float> y(static_cast<size_t>(64) * 128);
  cuda::TmaParams params{*test_device().make_tensor_map({dx.get(), 64, k, 64}),
                         *test_device().make_tensor_map({dw.get(), 128, k, 128}), y.get(), k};
  if (kernel == "tma_unswizzled") params.x = unswizzled(dx.get(), 64, k);
  if (kernel == "tma_map_of_nobody") params.w.opaque[20] ^= 1;
  cuda::SharedBytes shared;
  cuda::take_tma_arrays(shared);
  launch(kernel, dim3(1), dim3(160), shared.bytes(), params);
  return are_close(y.host(), product_of(x, w, 64, 128, k));
}

}  // namespace pb::test
