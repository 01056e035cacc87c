// Matrices in super-blocks, of any layout.
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "formats/tensors/quantise_super_block.h"
#include "formats/tensors/quantise_tensor.h"
#include "sampling/rng.h"

namespace {

using namespace pb;

std::vector<float> random(size_t n) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(uniform(1, i) - 0.5);
  return x;
}

}  // namespace

TEST(each_row_is_blocks_of_its_own_numbers) {
  constexpr int kRows = 5, kCols = 512;
  const std::vector<float> x = random(kRows * kCols);
  std::vector<float> transposed(x.size());
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kCols; ++c) transposed[c * kRows + r] = x[r * kCols + c];
  }
  const TensorView plain{"w", x.data(), DType::kF32, kRows, kCols, kCols, 1};
  const TensorView strided{"w", transposed.data(), DType::kF32, kRows, kCols, 1, kRows};
  for (const DType dtype : {DType::kQ4K, DType::kQ6K}) {
    const size_t n_bytes = block_bytes(dtype);
    std::vector<std::byte> expected(x.size() / kSuperBlock * n_bytes);
    for (size_t b = 0; b < x.size() / kSuperBlock; ++b) {
      quantise_super_block(dtype, &x[b * kSuperBlock], &expected[b * n_bytes]);
    }
    for (const TensorView& view : {plain, strided}) {
      for (const int n_threads : {1, 3}) {
        ThreadPool pool(n_threads);
        std::vector<std::byte> made(expected.size());
        quantise_tensor(view, dtype, pool, made.data());
        EXPECT(made == expected);
      }
    }
  }
}

TEST(rows_that_are_no_whole_super_blocks_are_refused) {
  const std::vector<float> x = random(2 * 192);
  const TensorView view{"w", x.data(), DType::kF32, 2, 192, 192, 1};
  ThreadPool pool(1);
  std::vector<std::byte> made(1024);
  EXPECT_THROWS(ErrorCode::kModelFormat, quantise_tensor(view, DType::kQ4K, pool, made.data()));
}

TEST(a_number_that_no_scale_represents_is_named_with_its_place) {
  for (const auto& [value, text] : {std::pair{std::numeric_limits<float>::infinity(), "inf"},
                                    std::pair{-std::numeric_limits<float>::infinity(), "-inf"},
                                    std::pair{std::numeric_limits<float>::quiet_NaN(), "nan"},
                                    std::pair{65536.0f, "65536.000000"}}) {
    std::vector<float> x = random(3 * 512);
    x[2 * 512 + 300] = value;
    const TensorView view{"w", x.data(), DType::kF32, 3, 512, 512, 1};
    for (const DType dtype : {DType::kQ4K, DType::kQ5K, DType::kQ6K}) {
      ThreadPool pool(2);
      std::vector<std::byte> made(x.size() / kSuperBlock * block_bytes(dtype));
      std::string problem;
      try {
        quantise_tensor(view, dtype, pool, made.data());
      } catch (const Error& error) {
        problem = error.what();
      }
      EXPECT(problem.starts_with(std::string("tensor 'w' holds ") + text + " at [2, 300]"));
    }
  }
}

PB_TEST_MAIN()
