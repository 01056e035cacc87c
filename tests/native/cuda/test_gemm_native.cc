// CUDA's matrix products with native-only weights (int4 with zero points, super-blocks,
// MXFP4): the bits of a bf16 product of the numbers that they stand for, from every kernel.
#include <cmath>

#include "cuda/weights/expand_mxfp4.cuh"
#include "cuda/weights/expand_super.cuh"
#include "gemm_fixture.h"

namespace pb::cuda {
namespace {

struct ExpandParams {
  const unsigned char* values;  // (n_rows, n_in), as weight_formats.h has them
  const unsigned char* scales;  // (n_rows, scale_bytes)
  uint16_t* out;                // (n_rows, n_in) bf16
  int n_in;
  int scale_bytes;
};

// Grid: a block a row; a thread a group.
template <typename Format>
__device__ void expand_rows(const ExpandParams& p) {
  const auto g = static_cast<int>(threadIdx.x);
  const size_t row = blockIdx.x;
  const unsigned char* const scales = p.scales + row * p.scale_bytes;
  const unsigned char* const tail = scales + Format::tail_offset(p.n_in);
  const GroupOf<Format> group(GroupOf<Format>::load(scales, g, tail, g), g % 2);
  const unsigned char* const values = p.values + (row * p.n_in + g * 32) * Format::kBits / 8;
  uint16_t* const out = p.out + row * p.n_in + g * 32;
  if constexpr (Format::kBits < 8) {
    for (int j = 0; j < 8; ++j) {
      unsigned low;
      unsigned high;
      group.pairs(values[2 * j] | unsigned{values[2 * j + 1]} << 8, j, low, high);
      out[2 * j] = static_cast<uint16_t>(low);
      out[2 * j + 1] = static_cast<uint16_t>(low >> 16);
      out[2 * j + 16] = static_cast<uint16_t>(high);
      out[2 * j + 17] = static_cast<uint16_t>(high >> 16);
    }
  }
}

#define PB_EXPAND_ROWS(constant, name, Type) \
  PB_KERNEL(expand_rows_##name, ExpandParams, 1024) { expand_rows<Type##Format>(p); }
PB_CUDA_FORMATS(PB_EXPAND_ROWS)

}  // namespace
}  // namespace pb::cuda

namespace pb::test {
namespace {

// A finite f16, any bits.
uint16_t finite_f16(uint64_t seed, size_t i) {
  const auto bits = static_cast<uint16_t>(uniform(seed, i) * 0x10000);
  return (bits & 0x7c00u) == 0x7c00u ? static_cast<uint16_t>(bits & 0xbfffu) : bits;
}

void expect_expanded(const TensorView& view, const std::vector<float>& values) {
  const auto n_in = static_cast<int>(view.cols);
  const auto n_rows = static_cast<int>(view.rows);
  const HostWeight host = packed({&view, 1}, n_rows, n_in, view.dtype);
  const DeviceWeight weight(host);
  DeviceArray<uint16_t> out(values.size());
  const auto* const bytes = static_cast<const unsigned char*>(weight.pointers().values);
  const auto* const scales = reinterpret_cast<const unsigned char*>(weight.pointers().scales);
  const std::string kernel = std::string("expand_rows_") + dtype_name(view.dtype);
  launch(kernel.c_str(), dim3(n_rows), dim3(n_in / kGroup), 0,
         cuda::ExpandParams{bytes, scales, out.get(), n_in, host.layout.scale_stride * 2});
  const std::vector<uint16_t> expanded = out.host();
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t expected = f32_to_bf16(values[i]);
    // Zero has no sign here: as an addend to a sum from +0, it does not matter.
    EXPECT(expanded[i] == expected || ((expanded[i] | expected) & 0x7fffu) == 0);
  }
}

// Random whole numbers and scales in groups, and any finite f16 for what they are multiplied by.
TEST(every_number_is_expanded_exactly) {
  constexpr int kRows = kIsSlow ? 2 : 40;
  for (const DType dtype : kCudaF16NativeDTypes) {
    RandomBlocks blocks(kRows, 2304, dtype, 5);
    for (size_t i = 0; i < blocks.n_blocks(); ++i) {
      blocks.set_scale(i, finite_f16(6, i));
      if (blocks.has_min()) blocks.set_min_scale(i, finite_f16(7, i));
    }
    expect_expanded(blocks.view(), blocks.values());
  }
}

// Of mxfp4 all exponents that leave every code finite.
TEST(every_exponent_is_expanded_exactly) {
  RandomMxfp4 blocks(253, 64, 8);
  for (size_t i = 0; i < blocks.groups.size(); ++i) {
    blocks.groups[i].scale = static_cast<uint8_t>(i / 2);
    for (int b = 0; b < 16; ++b) {  // every code, in both nibbles
      blocks.groups[i].pairs[b] = static_cast<uint8_t>(b | (15 - b) << 4);
    }
  }
  expect_expanded(blocks.view(), blocks.values());
}

TEST(every_kernel_gives_the_promised_bits) {
  uint32_t seed = 300;
  for (const DType dtype : kCudaNativeDTypes) {
    const bool is_super = in_super_blocks(dtype);
    for (const int n_in : is_super ? cases({256, 768}) : cases({32, 96, 800, 544})) {
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

// A row of more tiles than share 16 bytes of its tail, too.
TEST(segments_are_added_in_order) {
  uint32_t seed = 400;
  for (const DType dtype : kCudaNativeDTypes) {
    const Problem p = Problem::random({5, 37, 4400, dtype}, true, ++seed);
    const Product product(p);
    const std::vector<float> expected = chained(p);
    set_order(seed);
    for (const GemmChoice& choice : widest_choices(p.sizes)) {
      EXPECT(same_bits(product.run(choice), expected));
    }
  }
}

// The kernels of all weights but f32 have one arithmetic.
TEST(a_product_has_the_bits_of_the_bf16_product_of_its_numbers) {
  for (const DType dtype : kCudaNativeDTypes) {
    const Problem p = Problem::random({19, 45, 480, dtype}, true, 21);
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
  for (const DType dtype : kCudaNativeDTypes) {
    const Problem p = Problem::random({200, 23, 96, dtype}, true, 22);
    const Product product(p);
    const std::vector<float> expected = chained(p);
    set_order(5);
    for (const int n_rows : cases({1, 7, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 200})) {
      GemmSizes sizes = p.sizes;
      sizes.n_rows = n_rows;
      const GemmChoice choice = choose_gemm(sizes, {1 + n_rows % 40});
      EXPECT(same_bits(product.run(choice, n_rows),
                       {expected.begin(), expected.begin() + ptrdiff_t{n_rows} * 23}));
    }
  }
}

TEST(the_order_of_threads_does_not_matter) {
  for (const DType dtype : kCudaNativeDTypes) {
    const Problem p = Problem::random({18, 70, 416, dtype}, true, 23);
    const Product product(p);
    const std::vector<float> expected = chained(p);
    for (uint64_t seed = 1; seed <= n_orders(kIsSlow ? 2 : 4); ++seed) {
      set_order(seed);
      for (const GemmChoice& choice : widest_choices(p.sizes)) {
        EXPECT(same_bits(product.run(choice), expected));
      }
    }
  }
}

TEST(outputs_may_lie_beside_those_of_others) {
  expect_outputs_beside_others({10, 38, 256, DType::kQ4K});
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
