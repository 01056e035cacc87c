// The emulator: what kernels may rely on, and the arithmetic of its mma.
#include <array>
#include <cmath>
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

struct MmaParams {
  const float* a;  // (16, 16), column-major
  const float* b;  // (8, 16): number (j, k) at j + 8 k
  float* c;        // (16, 8), column-major
};

// One mma of fragments laid out as CUTLASS's CuTe has them (SM80_16x8x16_F32BF16BF16F32_TN).
PB_KERNEL(one_mma, MmaParams, 32) {
  const int t = static_cast<int>(threadIdx.x);
  const auto put = [](float low, float high) {
    return unsigned{__float2bfloat16_rn(low).bits} | unsigned{__float2bfloat16_rn(high).bits} << 16;
  };
  const auto at_a = [&](int v) {
    return t % 4 * 32 + t / 4 + v % 2 * 16 + v / 2 % 2 * 8 + v / 4 * 128;
  };
  const auto at_b = [&](int v) { return t % 4 * 16 + t / 4 + v % 2 * 8 + v / 2 * 64; };
  const auto at_c = [&](int v) { return t % 4 * 32 + t / 4 + v % 2 * 16 + v / 2 * 8; };
  unsigned a[4];
  unsigned b[2];
  for (int i = 0; i < 4; ++i) a[i] = put(p.a[at_a(2 * i)], p.a[at_a(2 * i + 1)]);
  for (int i = 0; i < 2; ++i) b[i] = put(p.b[at_b(2 * i)], p.b[at_b(2 * i + 1)]);
  float c[4] = {};
  mma_bf16(c, a, b);
  for (int i = 0; i < 4; ++i) p.c[at_c(i)] = c[i];
}

}  // namespace
}  // namespace pb::cuda

namespace pb::test {
namespace {

TEST(shared_memory_is_exchanged_in_every_order) {
  std::vector<float> x(230);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  for (uint64_t seed = 0; seed <= n_orders(20); ++seed) {
    set_order(seed);
    const DeviceArray<float> dx(x);
    DeviceArray<float> copy(x.size());
    launch("reverse", dim3(4), dim3(64), 0, cuda::ReverseParams{dx.get(), 230, copy.get()});
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t turned = i / 64 * 64 + 63 - i % 64;
      EXPECT_EQ(copy.get()[i], turned < x.size() ? x[turned] : 0.0f);
    }
  }
}

TEST(mma_multiplies_by_every_model) {
  Numbers numbers(1);
  std::vector<float> a(256);
  std::vector<float> b(128);
  for (float& v : a) v = std::round(numbers.next(4.0f));
  for (float& v : b) v = std::round(numbers.next(4.0f));
  for (const MmaModel model : {MmaModel::kSequential, MmaModel::kAmpere, MmaModel::kHopper}) {
    set_order(3, model);
    DeviceArray<float> c(128);
    launch("one_mma", dim3(1), dim3(32), 0, cuda::MmaParams{a.data(), b.data(), c.get()});
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        float sum = 0.0f;
        for (int k = 0; k < 16; ++k) sum += a[i + 16 * k] * b[j + 8 * k];
        EXPECT_EQ(c.get()[i + 16 * j], sum);
      }
    }
  }
}

// By the models of arXiv:2511.10909: what is cut, and that Hopper keeps one bit more.
TEST(mma_cuts_as_tensor_cores_do) {
  const auto sum_of = [](MmaModel model, float c, const std::vector<float>& products) {
    std::vector<float> a(256);
    std::vector<float> b(128);
    for (size_t k = 0; k < products.size(); ++k) {
      a[16 * k] = products[k];
      b[8 * k] = 1.0f;
    }
    a[16 * 15] = c;
    b[8 * 15] = 1.0f;
    set_order(0, model);
    DeviceArray<float> sum(128);
    launch("one_mma", dim3(1), dim3(32), 0, cuda::MmaParams{a.data(), b.data(), sum.get()});
    return sum.get()[0];
  };
  const float tiny = std::ldexp(1.0f, -25);  // beside 1: beyond 24 bits, within 25
  const std::vector<float> first(8, tiny);
  std::vector<float> second(15, tiny);
  std::fill_n(second.begin(), 8, 0.0f);
  EXPECT_EQ(sum_of(MmaModel::kHopper, 1.0f, first), 1.0f + 8 * tiny);
  EXPECT_EQ(sum_of(MmaModel::kAmpere, 1.0f, second), 1.0f);
  EXPECT(sum_of(MmaModel::kHopper, 1.0f, second) > 1.0f);
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
