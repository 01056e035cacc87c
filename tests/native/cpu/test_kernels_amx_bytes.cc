// Products of bytes on AMX: the bits of the row kernels, for any rows, tiles and parts of
// K. Those are held against sums in double by test_super_blocks.cc and test_mxfp4_matrix.cc.
#include <cstring>

#include "cpu/weights/pack.h"
#include "native_weight.h"
#include "product_fixture.h"

namespace {

using namespace pb;
using namespace pb::test;

#if defined(__x86_64__)

// The target, or null, said, where it cannot run.
const cpu::Kernels* amx() {
  const cpu::Kernels* target = cpu::find_target("avx512_amx");
  if (cpu::cpu_supports(*target)) return target;
  std::printf("  skipped: no AMX, or no permission to use it\n");
  return nullptr;
}

struct Product : ProductFixture {
  NativeWeight w;
  int rows;

  Product(int n_out, int n_in, int rows, DType dtype)
      : ProductFixture(n_out, n_in, rows, dtype), w(n_out, n_in, dtype, 1), rows(rows) {}

  Matrix matrix(Backend& backend) const { return matrix_of(backend, w.view(), true); }
};

// A product, packed and with its rows, for calls of the kernel itself.
struct Calls {
  const Product& p;
  const cpu::Kernels& target;
  const cpu::ProductKernel& kernel;
  std::unique_ptr<Backend> backend;
  Matrix w;
  Activations x;

  Calls(const Product& p, const cpu::Kernels& target)
      : p(p),
        target(target),
        kernel(product_of(target, p.dtype)),
        backend(make_cpu_backend(1, target.name)),
        w(p.matrix(*backend)),
        x(p.activations(*backend, target, first_rows(p.rows))) {}

  int n_tiles() const { return static_cast<int>(cpu::tiles_of(p.n_out, kernel.tile.columns)); }

  std::vector<float> empty() const {
    return std::vector<float>(static_cast<size_t>(p.rows) * p.n_out, std::nanf(""));
  }

  // y (rows, n_out) of rows [begin, end) of x by one call of the kernel for some tiles.
  void run(int tile_begin, int tile_end, int begin, int end, std::vector<float>& y,
           bool add = false) const {
    AlignedBuffer scratch(kernel.scratch_bytes);
    const cpu::GemmArgs args{.weights = w.packed.as<std::byte>(),
                             .bias = w.bias.as<float>(),
                             .x = x.data.as<std::byte>(),
                             .x_stride = x.row_stride,
                             .groups = x.groups.as<cpu::RowGroup>(),
                             .group_stride = x.group_stride,
                             .y = y.data(),
                             .y_stride = p.n_out,
                             .n_out = p.n_out,
                             .n_in = p.n_in,
                             .add = add};
    kernel.tiles(args, tile_begin, tile_end, begin, end, scratch.as<std::byte>());
  }

  // Each row by a call of its own, which is that of the row kernels.
  std::vector<float> row_by_row() const {
    std::vector<float> y = empty();
    for (int r = 0; r < p.rows; ++r) run(0, n_tiles(), r, r + 1, y);
    return y;
  }
};

// Inputs that are whole blocks: less than a phase of K, several, and several and a piece.
std::vector<int> inputs(DType dtype) {
  return in_super_blocks(dtype) ? std::vector{256, 768} : std::vector{32, 160, 736};
}

#endif

}  // namespace

#if defined(__x86_64__)

TEST(rows_have_the_same_bits_in_every_number_of_rows) {
  if (amx() == nullptr) return;
  for (DType dtype : kNativeDTypes) {
    for (int n_in : inputs(dtype)) {
      const Product p(70, n_in, 70, dtype);
      const Calls calls(p, *amx());
      const std::vector<float> alone = calls.row_by_row();
      for (int n = 1; n <= p.rows; ++n) {
        std::vector<float> y = calls.empty();
        calls.run(0, calls.n_tiles(), 0, n, y);
        EXPECT(same_bits(y.data(), alone.data(), static_cast<size_t>(n) * p.n_out));
      }
    }
  }
}

TEST(many_rows_have_the_bits_of_targets_without_tiles) {
  if (amx() == nullptr) return;
  constexpr int kRows = 200;  // enough in each part that threads take
  for (DType dtype : kNativeDTypes) {
    const Product p(70, 768, kRows, dtype);
    const auto of = [&](const cpu::Kernels& target) {
      auto backend = make_cpu_backend(2, target.name);
      return p.multiply(*backend, target, p.matrix(*backend), first_rows(kRows));
    };
    const std::vector<float> expected = of(*amx());
    for (const cpu::Kernels* target : runnable_targets()) {
      // The scalar target rounds twice where others do once.
      if (std::string(target->name) != "scalar") EXPECT(same_bits(of(*target), expected));
    }
  }
}

TEST(rows_and_tiles_may_be_split_anywhere) {
  if (amx() == nullptr) return;
  for (DType dtype : kNativeDTypes) {
    const Product p(200, 512, 103, dtype);
    const Calls calls(p, *amx());
    const std::vector<float> alone = calls.row_by_row();
    for (int cut : {1, 15, 16, 17, 33, 48, 51, 100}) {
      std::vector<float> y = calls.empty();
      const int tile = cut % calls.n_tiles();
      calls.run(0, tile, 0, cut, y);
      calls.run(0, tile, cut, p.rows, y);
      calls.run(tile, calls.n_tiles(), cut, p.rows, y);
      calls.run(tile, calls.n_tiles(), 0, cut, y);
      EXPECT(same_bits(y, alone));
    }
  }
}

TEST(many_rows_in_passes_and_parts_of_k_change_no_bit) {
  if (amx() == nullptr) return;
  for (DType dtype : kNativeDTypes) {
    const Product p(72, 2048, 563, dtype);  // two passes; three parts of K
    const Calls calls(p, *amx());
    const std::vector<float> alone = calls.row_by_row();
    std::vector<float> y = calls.empty();
    calls.run(0, calls.n_tiles(), 0, p.rows, y);
    EXPECT(same_bits(y, alone));
    std::vector<float> sum = numbers(y.size(), 7), expected = sum;
    for (size_t i = 0; i < sum.size(); ++i) expected[i] += alone[i];
    calls.run(0, calls.n_tiles(), 0, p.rows, sum, true);
    EXPECT(same_bits(sum, expected));
  }
}

TEST(what_lies_in_other_rows_is_never_multiplied) {
  if (amx() == nullptr) return;
  for (DType dtype : kNativeDTypes) {
    for (int begin : {0, 1, 16}) {
      const int end = begin + 57;
      const Product p(40, 512, 80, dtype);
      Calls calls(p, *amx());
      std::vector<float> clean = calls.empty(), y = clean;
      calls.run(0, calls.n_tiles(), begin, end, clean);
      const std::vector<float> bad(p.n_in, std::nanf(""));
      for (int r = 0; r < p.rows; ++r) {
        if (r < begin || r >= end) write_activations(calls.x, *amx(), r, bad.data());
      }
      calls.run(0, calls.n_tiles(), begin, end, y);
      EXPECT(same_bits(y, clean));  // those not asked for were not written either
    }
  }
}

// Numbers, factors and zero points at their limits, against row kernels.
TEST(the_greatest_sums_are_exact) {
  if (amx() == nullptr) return;
  constexpr int kRows = 64, kIn = 512;
  for (DType dtype : kF16NativeDTypes) {
    for (const uint8_t byte : {0x00, 0xff, 0x7f, 0x80}) {
      ProductFixture p(33, kIn, kRows, dtype);
      for (size_t i = 0; i < p.x.size(); ++i) p.x[i] = i / kIn % 2 == 0 ? 1.0f : -1.0f;
      RandomBlocks blocks(33, kIn, dtype, 1);
      for (size_t i = 0; i < blocks.n_blocks(); ++i) {
        std::memset(blocks.block(i), byte, block_bytes(dtype));
        blocks.set_scale(i, f32_to_f16(0.25f));
        if (blocks.has_min()) blocks.set_min_scale(i, f32_to_f16(0.5f));
      }
      auto backend = make_cpu_backend(1, amx()->name);
      const Matrix m = p.matrix_of(*backend, blocks.view(), false);
      const std::vector<float> y = p.multiply(*backend, *amx(), m, first_rows(kRows));
      for (int r : {0, 1, 62, 63}) {
        const std::vector<float> alone = p.multiply(*backend, *amx(), m, {r});
        EXPECT(same_bits(y.data() + static_cast<size_t>(r) * p.n_out, alone.data(), p.n_out));
      }
    }
  }
}

TEST(what_is_not_finite_stays_visible_among_many_rows) {
  if (amx() == nullptr) return;
  for (DType dtype : kNativeDTypes) {
    for (float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      Product p(40, 256, 60, dtype);
      auto backend = make_cpu_backend(1, amx()->name);
      const Matrix m = p.matrix(*backend);
      const std::vector<float> finite = p.multiply(*backend, *amx(), m, first_rows(60));
      p.x[256 * 20 + 77] = bad;
      const std::vector<float> y = p.multiply(*backend, *amx(), m, first_rows(60));
      for (int i = 0; i < 60 * 40; ++i) {
        EXPECT(i / 40 == 20 ? !std::isfinite(y[i]) : same_bits(&y[i], &finite[i], 1));
      }
    }
  }
}

#endif

PB_TEST_MAIN()
