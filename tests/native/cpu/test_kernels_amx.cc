// Products on AMX: what is multiplied, bit for bit, and that a row's bits are its own.
// Elsewhere test_kernels_gemm.cc holds every target against sums in double.
#include <algorithm>
#include <bit>

#include "cpu/weights/pack.h"
#include "cpu_fixture.h"

namespace {

using namespace pb;
using namespace pb::test;

#if defined(__x86_64__)

struct Weights {
  DType dtype;
  bool compressed = false;
};
constexpr Weights kWeights[] = {
    {DType::kBF16}, {DType::kBF16, true}, {DType::kInt8}, {DType::kInt4}};

const cpu::Kernels* amx_kernels() { return cpu::find_target("avx512_amx"); }

// The target, or null, said, where it cannot run.
const cpu::Kernels* amx() {
  if (cpu::cpu_supports(*amx_kernels())) return amx_kernels();
  std::printf("  skipped: no AMX, or no permission to use it\n");
  return nullptr;
}

struct Product {
  int n_out, n_in, rows;
  const cpu::ProductKernel& kernel;
  std::unique_ptr<Backend> backend = make_cpu_backend(1, "avx512_amx");
  Matrix w;
  Activations x;

  Product(int n_out, int n_in, int rows, Weights weights)
      : n_out(n_out),
        n_in(n_in),
        rows(rows),
        kernel(weights.compressed ? amx_kernels()->compressed_bf16
                                  : product_of(*amx_kernels(), weights.dtype)) {
    std::vector<float> values = numbers(static_cast<size_t>(n_out) * n_in, 1);
    if (weights.compressed) {  // patches
      for (size_t i = 0; i < values.size(); i += 1009) values[i] = 0x1p9f + static_cast<float>(i);
    }
    w = backend->place(packed_as(kernel.tile, view_of(values, n_out, n_in), weights.dtype));
    EXPECT_EQ(w.compressed, weights.compressed);
    x = backend->make_activations(rows, n_in, weights.dtype);
    for (int r = 0; r < rows; ++r) {
      write_activations(x, *amx_kernels(), r, numbers(n_in, 100 + r).data());
    }
  }

  // y (rows, n_out or more) of rows [begin, end) of x by one call of the kernel for some tiles.
  void run(int tile_begin, int tile_end, int begin, int end, std::vector<float>& y,
           bool add = false) const {
    AlignedBuffer scratch(kernel.scratch_bytes);
    AlignedBuffer out(y.size() * sizeof(float));  // on a line's border, as a backend's y
    std::memcpy(out.as<float>(), y.data(), out.bytes());
    cpu::GemmArgs args;
    args.weights = w.packed.as<std::byte>();
    args.x = x.data.as<std::byte>();
    args.x_stride = x.row_stride;
    args.y = out.as<float>();
    args.y_stride = static_cast<int64_t>(y.size()) / rows;
    args.n_out = n_out;
    args.n_in = n_in;
    args.add = add;
    kernel.tiles(args, tile_begin, tile_end, begin, end, scratch.as<std::byte>());
    std::memcpy(y.data(), out.as<float>(), out.bytes());
  }

  int n_tiles() const { return static_cast<int>(cpu::tiles_of(n_out, kernel.tile.columns)); }

  std::vector<float> empty() const {
    return std::vector<float>(static_cast<size_t>(rows) * n_out, std::nanf(""));
  }

  // Each row by a call of its own.
  std::vector<float> row_by_row() const {
    std::vector<float> y = empty();
    for (int r = 0; r < rows; ++r) run(0, n_tiles(), r, r + 1, y);
    return y;
  }
};

// Groups whose scales are of every size, signs and subnormal ones included.
template <typename Group>
std::vector<Group> random_groups(int n) {
  std::vector<Group> groups(n);
  auto* bytes = reinterpret_cast<uint8_t*>(groups.data());
  for (size_t i = 0; i < n * sizeof(Group); ++i) {
    bytes[i] = static_cast<uint8_t>(integer(1, i, 256));
  }
  for (int i = 0; i < n; ++i) groups[i].scale &= 0xbfff;  // finite, below 2
  return groups;
}

// The weights that the product multiplies, one by one: rows of x with a single 1.
template <typename Group>
void expect_exact_expansion(DType dtype) {
  constexpr int kOut = 70, kIn = 96;
  const std::vector<Group> groups = random_groups<Group>(kOut * kIn / kGroup);
  auto backend = make_cpu_backend(1, "avx512_amx");
  const Matrix m = make(*backend, {{"w", groups.data(), dtype, kOut, kIn, kIn, 1}}, dtype);
  for (int n_rows : {1, kIn}) {  // both ways in which weights are expanded
    for (int first = 0; first < kIn; first += n_rows) {
      Activations x = backend->make_activations(n_rows, kIn, dtype);
      for (int r = 0; r < n_rows; ++r) {
        std::vector<float> one(kIn, 0.0f);
        one[first + r] = 1.0f;
        write_activations(x, *amx_kernels(), r, one.data());
      }
      std::vector<float> y(static_cast<size_t>(n_rows) * kOut);
      Buffer out = over(y);
      backend->matmul(x, n_rows, m, out, Store::kSet);
      for (int r = 0; r < n_rows; ++r) {
        for (int o = 0; o < kOut; ++o) {
          const int k = first + r;
          float values[kGroup];
          dequantise_cut(groups[(o * kIn + k) / kGroup], values);
          EXPECT_EQ(y[r * kOut + o], values[k % kGroup]);
        }
      }
    }
  }
}

}  // namespace

TEST(quantised_weights_are_multiplied_as_cut_to_bf16) {
  if (amx() == nullptr) return;
  expect_exact_expansion<Int8Group>(DType::kInt8);
  expect_exact_expansion<Int4Group>(DType::kInt4);
}

TEST(a_cut_is_about_as_near_as_rounding) {
  double cut_error = 0.0, nearest_error = 0.0, bias = 0.0, size = 0.0;
  for (const Int8Group& group : random_groups<Int8Group>(4096)) {
    float values[kGroup], cut[kGroup];
    dequantise(group, values);
    dequantise_cut(group, cut);
    for (int i = 0; i < kGroup; ++i) {
      const double nearest = bf16_to_f32(f32_to_bf16(values[i]));
      cut_error += std::pow(cut[i] - values[i], 2);
      nearest_error += std::pow(nearest - values[i], 2);
      bias += std::copysign(1.0, values[i]) * (cut[i] - values[i]);
      size += std::abs(values[i]);
    }
  }
  EXPECT(std::sqrt(cut_error) < 1.15 * std::sqrt(nearest_error));
  EXPECT(std::abs(bias) < 0x1p-10 * size);  // an eighth of a unit, in sum
}

TEST(rows_have_the_same_bits_in_every_number_of_rows) {
  if (amx() == nullptr) return;
  for (const Weights& weights : kWeights) {
    for (int n_in : {1, 40, 1184}) {  // a step, two, three blocks of K
      const Product p(70, n_in, 70, weights);
      const std::vector<float> alone = p.row_by_row();
      for (int n = 1; n <= p.rows; ++n) {
        std::vector<float> y = p.empty();
        p.run(0, p.n_tiles(), 0, n, y);
        EXPECT(same_bits(y.data(), alone.data(), static_cast<size_t>(n) * p.n_out));
      }
    }
  }
}

TEST(rows_and_tiles_may_be_split_anywhere) {
  if (amx() == nullptr) return;
  for (const Weights& weights : kWeights) {
    const Product p(200, 700, 67, weights);
    const std::vector<float> alone = p.row_by_row();
    for (int cut : {1, 15, 16, 17, 31, 33, 48, 66}) {
      std::vector<float> y = p.empty();
      const int tile = cut % p.n_tiles();
      p.run(0, tile, 0, cut, y);
      p.run(0, tile, cut, p.rows, y);
      p.run(tile, p.n_tiles(), cut, p.rows, y);
      p.run(tile, p.n_tiles(), 0, cut, y);
      EXPECT(same_bits(y, alone));
    }
  }
}

TEST(many_rows_in_passes_and_parts_of_k_change_no_bit) {
  if (amx() == nullptr) return;
  for (const Weights& weights : kWeights) {
    for (int n_out : {48, 64, 72}) {               // whole lines of y and not
      const Product p(n_out, 1300, 515, weights);  // two passes; three parts of K
      const std::vector<float> alone = p.row_by_row();
      std::vector<float> y = p.empty();
      p.run(0, p.n_tiles(), 0, p.rows, y);
      EXPECT(same_bits(y, alone));
      std::vector<float> sum = numbers(y.size(), 7), expected = sum;
      for (size_t i = 0; i < sum.size(); ++i) expected[i] += alone[i];
      p.run(0, p.n_tiles(), 0, p.rows, sum, true);
      EXPECT(same_bits(sum, expected));
    }
  }
}

// Between the sums of the last tile and the weights that are expanded lies nothing.
TEST(parts_of_k_of_as_many_tiles_and_rows_as_go_at_once_change_no_bit) {
  if (amx() == nullptr) return;
  for (const Weights& weights : kWeights) {
    const Product p(512, 1300, 512, weights);
    const int last = p.n_tiles() - 1;
    std::vector<float> y = p.empty(), alone = y;
    p.run(0, p.n_tiles(), 0, p.rows, y);
    for (int r = 0; r < p.rows; ++r) {
      p.run(last, p.n_tiles(), r, r + 1, alone);
      const size_t columns = static_cast<size_t>(p.kernel.tile.columns);
      const size_t end = static_cast<size_t>(r + 1) * p.n_out;
      EXPECT(same_bits(&y[end - columns], &alone[end - columns], columns));
    }
  }
}

TEST(results_that_bypass_the_caches_have_the_same_bits) {
  if (amx() == nullptr) return;
  constexpr int kStride = 12288;  // so that 512 rows of y are 24 MiB
  for (const Weights& weights : kWeights) {
    for (int n_out : {48, 64, 72}) {  // whole lines of y, which bypass the caches, and not
      const Product p(n_out, 600, 512, weights);  // two blocks of K
      const std::vector<float> alone = p.row_by_row();
      std::vector<float> y(static_cast<size_t>(p.rows) * kStride, 5.0f);
      std::vector<float> expected = y;
      for (int r = 0; r < p.rows; ++r) {
        std::copy_n(alone.data() + r * n_out, n_out, expected.data() + r * kStride);
      }
      p.run(0, p.n_tiles(), 0, p.rows, y);
      EXPECT(same_bits(y, expected));
    }
  }
}

TEST(some_rows_in_parts_of_k_change_no_bit) {
  if (amx() == nullptr) return;
  const Product p(70, 6500, 64, {DType::kInt4});  // two parts of K, three tiles
  const std::vector<float> alone = p.row_by_row();
  for (int rows : {33, 48, 49, 64}) {
    std::vector<float> y = p.empty(), sum = numbers(y.size(), 7), expected = sum;
    p.run(0, p.n_tiles(), 0, rows, y);
    p.run(0, p.n_tiles(), 0, rows, sum, true);
    const size_t n = static_cast<size_t>(rows) * p.n_out;
    for (size_t i = 0; i < n; ++i) expected[i] += alone[i];
    EXPECT(same_bits(y.data(), alone.data(), n));
    EXPECT(same_bits(sum, expected));
  }
}

TEST(what_lies_in_other_rows_is_never_multiplied) {
  if (amx() == nullptr) return;
  for (const Weights& weights : kWeights) {
    for (int begin : {0, 1, 16}) {
      for (int n : {1, 9, 17, 33, 40}) {
        Product p(40, 100, 60, weights);
        std::vector<float> clean = p.empty(), y = clean;
        p.run(0, p.n_tiles(), begin, begin + n, clean);
        const std::vector<float> bad(p.n_in, std::nanf(""));
        for (int r = 0; r < p.rows; ++r) {
          if (r < begin || r >= begin + n) {
            write_activations(p.x, *amx_kernels(), r, bad.data());
          }
        }
        p.run(0, p.n_tiles(), begin, begin + n, y);
        EXPECT(same_bits(y, clean));  // those not asked for were not written either
      }
    }
  }
}

TEST(numbers_too_small_for_a_normal_f32_count_as_zero) {
  if (amx() == nullptr) return;
  const std::vector<float> w = {0x1p-127f};
  auto backend = make_cpu_backend(1, "avx512_amx");
  const Matrix m = make(*backend, {view_of(w, 1, 1)}, DType::kBF16);
  Activations x = backend->make_activations(1, 1, DType::kBF16);
  const float large = 0x1p100f;
  write_activations(x, *amx_kernels(), 0, &large);
  std::vector<float> y = {1.0f};
  Buffer out = over(y);
  backend->matmul(x, 1, m, out, Store::kSet);
  EXPECT_EQ(y[0], 0.0f);
}

#endif

PB_TEST_MAIN()
