// CUDA's matrix products with int8 and int4 weights: the bits of a bf16 product of the numbers that
// they stand for, from every kernel.
#include "cuda/weights/expand.cuh"
#include "gemm_fixture.h"

namespace pb::cuda {
namespace {

struct ExpandParams {
  const uint16_t* scales;  // (n)
  int n;
  uint16_t* int8;  // (n, 256): whole number -128 + i of each scale, bf16
  uint16_t* int4;  // (n, 2, 16): whole number -8 + i, of low and of high nibbles
};

PB_KERNEL(expand_all, ExpandParams, 256) {
  const auto i = static_cast<unsigned>(threadIdx.x);
  const auto s = static_cast<unsigned>(blockIdx.x);
  const unsigned whole = (i - 128u) & 255u;
  const unsigned pair = expand_int8(whole << 8 | whole, Int8Scale(p.scales[s]));
  p.int8[s * 256 + i] = static_cast<uint16_t>(i % 2 == 0 ? pair : pair >> 16);
  if (i >= 16) return;
  unsigned low;
  unsigned high;
  expand_int4((15 - i) << 12 | i << 8 | (15 - i) << 4 | i, Int4Scale(p.scales[s]), low, high);
  p.int4[s * 32 + i] = static_cast<uint16_t>(i % 2 == 0 ? low : low >> 16);
  p.int4[s * 32 + 16 + 15 - i] = static_cast<uint16_t>(i % 2 == 0 ? high : high >> 16);
}

}  // namespace
}  // namespace pb::cuda

namespace pb::test {
namespace {

constexpr DType kQuantised[] = {DType::kInt8, DType::kInt4};

TEST(every_number_is_expanded_exactly) {
  std::vector<uint16_t> scales;
  for (unsigned bits = 0; bits < 0x7c00u;
       bits += kIsSlow ? 3001 : 37) {  // finite ones, subnormal ones too
    scales.push_back(static_cast<uint16_t>(bits));
    scales.push_back(static_cast<uint16_t>(bits | 0x8000u));
  }
  const DeviceArray<uint16_t> on_device(scales);
  DeviceArray<uint16_t> int8(scales.size() * 256);
  DeviceArray<uint16_t> int4(scales.size() * 32);
  const int n = static_cast<int>(scales.size());
  launch("expand_all", dim3(scales.size()), dim3(256), 0,
         cuda::ExpandParams{on_device.get(), n, int8.get(), int4.get()});
  const auto expect = [](uint16_t got, int whole, uint16_t scale) {
    const uint16_t expected = f32_to_bf16(static_cast<float>(whole) * f16_to_f32(scale));
    // Zero has no sign here: as an addend to a sum from +0, it does not matter.
    EXPECT(got == expected || (((got | expected) & 0x7fffu) == 0));
  };
  const std::vector<uint16_t> wide = int8.host();
  const std::vector<uint16_t> narrow = int4.host();
  for (size_t s = 0; s < scales.size(); ++s) {
    for (int i = 0; i < 256; ++i) expect(wide[s * 256 + i], i - 128, scales[s]);
    for (int i = 0; i < 32; ++i) expect(narrow[s * 32 + i], i % 16 - 8, scales[s]);
  }
}

TEST(every_kernel_gives_the_promised_bits) {
  uint32_t seed = 0;
  for (const DType dtype : kQuantised) {
    for (const int n_in : cases({1, 40, 96, 200, 800, 520})) {
      for (const int n_out : cases({1, 131})) {
        ++seed;
        const Problem p = Problem::random({21, n_out, n_in, dtype}, seed % 2 == 0, seed);
        const Product product(p);
        const std::vector<float> expected = chained(p);
        set_order(seed);
        for (const GemmChoice& choice : all_choices(p.sizes)) {
          EXPECT(same_bits(product.run(choice), expected));
        }
      }
    }
  }
}

TEST(segments_are_added_in_order) {
  uint32_t seed = 200;
  for (const DType dtype : kQuantised) {
    for (const int n_in : cases({2048, 5000, 2049})) {
      const Problem p = Problem::random({5, 37, n_in, dtype}, true, ++seed);
      const Product product(p);
      const std::vector<float> expected = chained(p);
      set_order(seed);
      for (const GemmChoice& choice : widest_choices(p.sizes)) {
        EXPECT(same_bits(product.run(choice), expected));
      }
    }
  }
}

// The kernels of quantised weights and those of bf16 weights have one arithmetic.
TEST(a_product_has_the_bits_of_the_bf16_product_of_its_numbers) {
  for (const DType dtype : kQuantised) {
    Problem p = Problem::random({19, 45, 392, dtype}, true, 21);
    const Product product(p);
    Problem plain = p;
    plain.sizes.weights = DType::kBF16;
    plain.w = rounded(p.w, p.sizes.n_in, dtype);
    const Product plain_product(plain);
    for (const MmaModel model : kModels) {
      set_order(4, model);
      const std::vector<float> expected = plain_product.run(choose_gemm(plain.sizes, {1}));
      expect_near(expected, p);
      for (const GemmChoice& choice : widest_choices(p.sizes)) {
        EXPECT(same_bits(product.run(choice), expected));
      }
    }
  }
}

TEST(a_row_has_the_same_bits_among_any_number_of_rows) {
  for (const DType dtype : kQuantised) {
    const Problem p = Problem::random({200, 23, 72, dtype}, true, 22);
    const Product product(p);
    const std::vector<float> expected = chained(p);
    set_order(5);
    for (const int n_rows : row_counts()) {
      GemmSizes sizes = p.sizes;
      sizes.n_rows = n_rows;
      const GemmChoice choice = choose_gemm(sizes, {1 + n_rows % 40});
      EXPECT(same_bits(product.run(choice, n_rows),
                       {expected.begin(), expected.begin() + ptrdiff_t{n_rows} * 23}));
    }
  }
}

TEST(the_order_of_threads_does_not_matter) {
  for (const DType dtype : kQuantised) {
    const Problem p = Problem::random({18, 70, 424, dtype}, true, 23);
    const Product product(p);
    const std::vector<float> expected = chained(p);
    for (uint64_t seed = 1; seed <= orders(); ++seed) {
      set_order(seed);
      for (const GemmChoice& choice : widest_choices(p.sizes)) {
        EXPECT(same_bits(product.run(choice), expected));
      }
    }
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
