// The inputs of the last rows that recurrent layers store per channel for later rows.
#pragma once

#include "cuda/device_code/device_code.h"
#include "cuda/recurrent/params_recurrent.h"

namespace pb::cuda {
namespace {

// Stores n_kept inputs of a channel after the last row of each block that contains rows of the
// sequence. `kept` points to the channel's numbers, which are n_channels apart. input(row) is the
// input of a row of the pass. The order of the copies ensures that an input that is overwritten in
// place has been read before.
template <typename Input>
__device__ __forceinline__ void keep_inputs(const StateBlocks& kept, int n_channels, int n_kept,
                                            const StateSequence& sequence, const int32_t* blocks,
                                            int block_size, Input input) {
  const float* from = sequence.from < 0 ? nullptr : kept.data + sequence.from * kept.block_stride;
  const int32_t* block = blocks + sequence.first_block;
  int place = sequence.first_place;
  int n = 0;
  for (int done = 0; done < sequence.n_rows; done += n) {
    const int left = sequence.n_rows - done;
    n = left < block_size - place ? left : block_size - place;
    const int64_t first_row = sequence.first_row + done;
    float* const to = kept.data + *block++ * kept.block_stride;
    for (int i = 0; i < n_kept; ++i) {
      const int row = n - n_kept + i;
      float made = 0.0f;
      if (row >= 0) {
        made = input(first_row + row);
      } else if (from != nullptr) {
        made = from[static_cast<int64_t>(row + n_kept) * n_channels];
      }
      to[static_cast<int64_t>(i) * n_channels] = made;
    }
    from = to;
    place = 0;
  }
}

}  // namespace
}  // namespace pb::cuda
