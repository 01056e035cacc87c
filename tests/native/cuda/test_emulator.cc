// The emulator: what kernels may rely on, and what it calls an error.
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cuda_fixture.h"

namespace pb::cuda {
namespace {

struct ReverseParams {
  const float* x;  // (n)
  int n;
  float* copy;  // (n): each 64 numbers turned round
};

PB_KERNEL(reverse, ReverseParams, 64) {
  __shared__ float reversed[64];
  const int t = static_cast<int>(threadIdx.x);
  const int at = static_cast<int>(blockIdx.x) * 64 + t;
  reversed[63 - t] = at < p.n ? p.x[at] : 0.0f;
  __syncthreads();
  if (at < p.n) p.copy[at] = reversed[t];
}

struct TransposeParams {
  const __nv_bfloat16* a;  // (16, 16)
  const __nv_bfloat16* b;  // (16, 16)
  float* c;                // (16, 16): a b
  float* by_two;           // (16, 16): the same, b by ldmatrix_x2
};

// b as it lies in memory, by the transposing load.
PB_KERNEL(multiply_untransposed, TransposeParams, 32) {
  __shared__ __align__(16) __nv_bfloat16 as[16 * 16];
  __shared__ __align__(16) __nv_bfloat16 bs[16 * 16];
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) as[i] = p.a[i];
  for (int i = lane; i < 256; i += 32) bs[i] = p.b[i];
  __syncwarp();
  unsigned a[4];
  unsigned b[4];
  ldmatrix_x4(a, as + lane % 16 * 16 + lane / 16 * 8);
  ldmatrix_x4<true>(b, bs + lane % 16 * 16 + lane / 16 * 8);
  for (int j = 0; j < 2; ++j) {
    unsigned two[2];
    ldmatrix_x2<true>(two, lane < 16 ? bs + lane * 16 + j * 8 : nullptr);
    float sums[4] = {};
    mma_bf16(sums, a, {b[2 * j], b[2 * j + 1]});
    float sums_by_two[4] = {};
    mma_bf16(sums_by_two, a, two);
    for (int i = 0; i < 4; ++i) {
      const int at = (lane / 4 + i / 2 * 8) * 16 + j * 8 + lane % 4 * 2 + i % 2;
      p.c[at] = sums[i];
      p.by_two[at] = sums_by_two[i];
    }
  }
}

struct WarpParams {
  int* out;  // (9, 32): a row for each operation
};

PB_KERNEL(warp_operations, WarpParams, 32) {
  const int lane = static_cast<int>(threadIdx.x);
  const auto put = [&](int row, int value) { p.out[row * 32 + lane] = value; };
  put(0, __shfl_sync(~0u, lane, 7));
  put(1, __shfl_xor_sync(~0u, lane, 5));
  put(2, __shfl_up_sync(~0u, lane, 3));
  put(3, __shfl_down_sync(~0u, lane, 3));
  put(4, static_cast<int>(__ballot_sync(~0u, lane % 3 == 0)));
  put(5, __any_sync(~0u, lane == 40) * 2 + __any_sync(~0u, lane == 4));
  put(6, __all_sync(~0u, lane < 31) * 2 + __all_sync(~0u, lane < 32));
  // Halves of a warp go their own ways and meet again.
  const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
  int sum = lane;
  for (int i = 0; i < (lane < 16 ? 3 : 5); ++i) sum += __shfl_xor_sync(half, sum, 1);
  put(7, sum);
  put(8, __shfl_sync(~0u, sum, 31 - lane));
}

struct AtomicParams {
  unsigned* sum;             // (1)
  int* least;                // (1)
  int* greatest;             // (1)
  unsigned long long* wide;  // (1)
};

PB_KERNEL(atomics, AtomicParams, 64) {
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(p.sum, 2u);
  atomicMin(p.least, 5 - at);
  atomicMax(p.greatest, at - 5);
  atomicAdd(p.wide, 1ull << 40);
}

struct NoParams {
  int n;
};

PB_KERNEL(divergent_barriers, NoParams, 64) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
PB_KERNEL(lonely_lane, NoParams, 64) {
  if (threadIdx.x != 3) __syncwarp();
}
PB_KERNEL(divergent_lanes, NoParams, 64) {
  if (threadIdx.x % 2 == 0) {
    __syncwarp();
  } else {
    __syncwarp();
  }
}
PB_KERNEL(overlapping_masks, NoParams, 64) {
  __syncwarp(threadIdx.x % 32 < 16 ? 0x1ffffu : 0xffff8000u);
}
PB_KERNEL(lane_not_in_its_mask, NoParams, 64) { __syncwarp(1u); }
PB_KERNEL(shuffle_from_outside_of_the_mask, NoParams, 64) {
  if (threadIdx.x < 16) __shfl_sync(0xffffu, 1, 20);
}
PB_KERNEL(copies_left_under_way, NoParams, 64) {
  DYNAMIC_SHARED(float, shared);
  cp_async_16(shared, shared + 4, 16);
  cp_async_commit();
}
PB_KERNEL(copy_to_an_odd_address, NoParams, 64) {
  DYNAMIC_SHARED(float, shared);
  cp_async_16(shared + 1, shared, 0);
}
PB_KERNEL(arrays_beyond_shared_memory, NoParams, 64) {
  SharedArrays arrays;
  arrays.take<float>(16);
  arrays.take<float>(static_cast<size_t>(p.n));
}

struct SharedParams {
  float* out;  // (2, 32)
};

// Reads what was never written; the copy of cp.async before it is waited for, and after.
PB_KERNEL(read_early, SharedParams, 32) {
  DYNAMIC_SHARED(float, shared);
  const int t = static_cast<int>(threadIdx.x);
  if (t == 0) p.out[1] = shared[16];
  if (t < 4) cp_async_16(shared + 4 * t, p.out + 16 + 4 * t, t < 3 ? 16 : 0);
  cp_async_commit();
  __syncthreads();
  if (t == 0) p.out[0] = shared[0];
  cp_async_wait<0>();
  __syncthreads();
  if (t < 16) p.out[32 + t] = shared[t];
}

}  // namespace
}  // namespace pb::cuda

namespace pb::test {
namespace {

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const cuda_on_cpu::Error& error) {
    return error.what();
  }
  return "";
}

TEST(shared_memory_is_exchanged_in_every_order) {
  std::vector<float> x(230);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  for (uint64_t seed = 0; seed <= n_orders(20); ++seed) {
    set_order(seed);
    const DeviceArray<float> dx(x);
    DeviceArray<float> copy(x.size());
    launch("reverse", dim3(4), dim3(64), 0, cuda::ReverseParams{dx.get(), 230, copy.get()});
    const std::vector<float> turned = copy.host();
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t from = i / 64 * 64 + 63 - i % 64;
      EXPECT_EQ(turned[i], from < x.size() ? x[from] : 0.0f);
    }
  }
}

TEST(shared_memory_is_nan_until_it_is_written_or_its_copy_is_waited_for) {
  std::vector<float> numbers(64);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  DeviceArray<float> out(numbers);
  launch("read_early", dim3(1), dim3(32), 128, cuda::SharedParams{out.get()});
  const std::vector<float> read = out.host();
  EXPECT(std::isnan(read[0]));
  EXPECT(std::isnan(read[1]));
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(read[32 + i], i < 12 ? numbers[16 + i] : 0.0f);
}

TEST(mma_multiplies_what_ldmatrix_has_loaded) {
  Numbers numbers(1);
  std::vector<__nv_bfloat16> a(256);
  std::vector<__nv_bfloat16> b(256);
  for (__nv_bfloat16& v : a) v = __float2bfloat16_rn(std::round(numbers.next(4.0f)));
  for (__nv_bfloat16& v : b) v = __float2bfloat16_rn(std::round(numbers.next(4.0f)));
  const DeviceArray<__nv_bfloat16> da(a);
  const DeviceArray<__nv_bfloat16> db(b);
  for (const MmaModel model : {MmaModel::kSequential, MmaModel::kAmpere, MmaModel::kHopper}) {
    set_order(3, model);
    DeviceArray<float> c(256);
    DeviceArray<float> by_two(256);
    launch("multiply_untransposed", dim3(1), dim3(32), 0,
           cuda::TransposeParams{da.get(), db.get(), c.get(), by_two.get()});
    const std::vector<float> product = c.host();
    for (size_t i = 0; i < 16; ++i) {
      for (size_t j = 0; j < 16; ++j) {
        float sum = 0.0f;
        for (size_t k = 0; k < 16; ++k) {
          sum += __bfloat162float(a[i * 16 + k]) * __bfloat162float(b[k * 16 + j]);
        }
        EXPECT_EQ(product[i * 16 + j], sum);
      }
    }
    EXPECT(same_bits(product, by_two.host()));
  }
}

TEST(lanes_exchange_numbers_in_every_order) {
  for (uint64_t seed = 0; seed <= n_orders(20); ++seed) {
    set_order(seed);
    DeviceArray<int> out(9 * 32);
    launch("warp_operations", dim3(1), dim3(32), 0, cuda::WarpParams{out.get()});
    const std::vector<int> got = out.host();
    const auto expect_row = [&](int row, auto wanted) {
      for (int lane = 0; lane < 32; ++lane) {
        EXPECT_EQ(got[static_cast<size_t>(row * 32 + lane)], wanted(lane));
      }
    };
    const auto half_sum = [](int lane) { return (2 * (lane / 2) * 2 + 1) * (lane < 16 ? 4 : 16); };
    expect_row(0, [](int) { return 7; });
    expect_row(1, [](int lane) { return lane ^ 5; });
    expect_row(2, [](int lane) { return lane < 3 ? lane : lane - 3; });
    expect_row(3, [](int lane) { return lane > 28 ? lane : lane + 3; });
    expect_row(4, [](int) { return 0x49249249; });
    expect_row(5, [](int) { return 1; });
    expect_row(6, [](int) { return 1; });
    expect_row(7, half_sum);
    expect_row(8, [&](int lane) { return half_sum(31 - lane); });
  }
}

TEST(atomics_count_every_thread) {
  for (uint64_t seed = 0; seed <= n_orders(4); ++seed) {
    set_order(seed);
    DeviceArray<unsigned> sum(std::vector<unsigned>{1});
    DeviceArray<int> least(std::vector<int>{0});
    DeviceArray<int> greatest(std::vector<int>{0});
    DeviceArray<unsigned long long> wide(std::vector<unsigned long long>{3});
    launch("atomics", dim3(3), dim3(64), 0,
           cuda::AtomicParams{sum.get(), least.get(), greatest.get(), wide.get()});
    EXPECT_EQ(sum.host()[0], 1 + 2 * 192U);
    EXPECT_EQ(least.host()[0], 5 - 191);
    EXPECT_EQ(greatest.host()[0], 191 - 5);
    EXPECT_EQ(wide.host()[0], 3 + (192ULL << 40));
  }
}

TEST(what_cuda_forbids_is_an_error_with_its_place) {
  const struct {
    const char* kernel;
    const char* said;
  } kWrong[] = {
      {"divergent_barriers", "threads of a block diverge: __syncthreads at "},
      {"lonely_lane", "nobody can go on: thread 0 in __syncwarp at "},
      {"divergent_lanes", "lanes of a warp diverge: __syncwarp at "},
      {"overlapping_masks", ": masks that overlap"},
      {"lane_not_in_its_mask", ": the lane is not in its mask"},
      {"shuffle_from_outside_of_the_mask", ": from a lane that is not in the mask"},
      {"copies_left_under_way", ": ends with copies that nobody waited for"},
      {"copy_to_an_odd_address", "cp.async: an address is not a multiple of 16"},
      {"arrays_beyond_shared_memory", "SharedArrays: 4160 bytes of shared memory, the launch gave"},
  };
  for (uint64_t seed = 0; seed <= n_orders(4); ++seed) {
    set_order(seed);
    for (const auto& [kernel, said] : kWrong) {
      const std::string error =
          error_of([&] { launch(kernel, dim3(1), dim3(64), 1024, cuda::NoParams{.n = 1024}); });
      EXPECT(error.starts_with(kernel));
      if (error.find(said) == std::string::npos) EXPECT_EQ(error, said);
    }
  }
}

TEST(a_launch_that_cannot_be_is_an_error) {
  const int params = 0;
  const auto launch_it = [&](const char* kernel, unsigned threads, size_t params_bytes) {
    return error_of(
        [&] { cuda_on_cpu::launch(kernel, dim3(1), dim3(threads), 0, &params, params_bytes); });
  };
  EXPECT_EQ(launch_it("nothing", 64, sizeof params), "there is no kernel nothing");
  EXPECT_EQ(launch_it("lonely_lane", 65, sizeof params),
            "lonely_lane: more threads than it was compiled for");
  EXPECT_EQ(launch_it("lonely_lane", 64, 2 * sizeof params),
            "lonely_lane: parameters of another size");
}

TEST(sizes_of_shared_arrays_are_those_the_kernel_takes) {
  cuda::SharedBytes shared;
  EXPECT(shared.take<char>(3) == nullptr);
  EXPECT_EQ(shared.bytes(), 3U);
  shared.take<float>(2);
  EXPECT_EQ(shared.bytes(), 24U);
  shared.take<float>(1, 1024);
  EXPECT_EQ(shared.bytes(), 1028U);
}

TEST(half_precision_is_rounded_to_the_nearest) {
  for (unsigned bits = 0; bits < 0x7c00U; ++bits) {
    const float v = __half2float({static_cast<uint16_t>(bits)});
    const int exponent = std::max(1, static_cast<int>(bits >> 10));
    const unsigned fraction = (bits & 0x3ffU) + (bits >= 0x400U ? 0x400U : 0U);
    EXPECT_EQ(v, std::ldexp(static_cast<float>(fraction), exponent - 25));
    EXPECT_EQ(__float2half_rn(v).bits, bits);
    EXPECT_EQ(__float2half_rn(-v).bits, bits | 0x8000U);
    const float step = std::ldexp(1.0f, exponent - 25);
    EXPECT_EQ(__float2half_rn(v + step / 2).bits, bits + bits % 2);  // a tie goes to the even one
    EXPECT_EQ(__float2half_rn(std::nextafter(v + step / 2, 0.0f)).bits, bits);
    EXPECT_EQ(__float2half_rn(std::nextafter(v + step / 2, 1e9f)).bits, bits + 1);
  }
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(__half2float({0x7c00}), infinity);
  EXPECT(std::isnan(__half2float({0x7e00})));
  EXPECT_EQ(__float2half_rn(infinity).bits, 0x7c00);
  EXPECT_EQ(__float2half_rn(-1e9f).bits, 0xfc00);
  EXPECT_EQ(__float2half_rn(NAN).bits, 0x7fff);
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
