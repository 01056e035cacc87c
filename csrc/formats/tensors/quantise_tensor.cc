#include "formats/tensors/quantise_tensor.h"

#include <cmath>
#include <string>

#include "base/error.h"
#include "formats/half.h"
#include "formats/tensors/quantise_super_block.h"
#include "formats/tensors/read_tensor.h"

namespace pb {

void quantise_tensor(const TensorView& view, DType dtype, ThreadPool& pool, std::byte* to) {
  if (view.cols % kSuperBlock != 0) {
    throw Error(ErrorCode::kModelFormat,
                "tensor '" + view.name + "' has rows of " + std::to_string(view.cols) +
                    " elements; expected whole super-blocks of " + std::to_string(kSuperBlock));
  }
  Stack stack({&view, 1});  // checks that a quantised view has whole blocks
  const int64_t n_blocks = view.cols / kSuperBlock;
  const auto n_bytes = static_cast<int64_t>(block_bytes(dtype));
  pool.parallel_for(stack.rows(), 1, [&](int64_t begin, int64_t end, int) {
    float x[kSuperBlock];
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t b = 0; b < n_blocks; ++b) {
        for (int i = 0; i < kSuperBlock; i += kReadBlock) {
          read_row(view, row, b * kSuperBlock + i, kReadBlock, x + i);
        }
        for (int i = 0; i < kSuperBlock; ++i) {
          const bool fits_scale = std::abs(x[i]) <= kGreatestF16;  // false for NaN
          if (!fits_scale) stack.note_bad(row, b * kSuperBlock + i);
        }
        quantise_super_block(dtype, x, to + (row * n_blocks + b) * n_bytes);
      }
    }
  });
  stack.refuse_bad(dtype);
}

}  // namespace pb
