// The kernels of the gated delta rule on arrays that are exactly so large as they need be.
#pragma once

#include <algorithm>
#include <vector>

#include "cuda/recurrent_launch.h"
#include "cuda_fixture.h"
#include "delta_fixture.h"

namespace pb::test {

// A sequence of a pass.
struct DeltaPart {
  int n_rows;
  int first_position;
  int from;                     // a block, or -1
  std::vector<int32_t> blocks;  // that its rows lie in
};

// A layer, the second of two, with blocks of states that hold NaN until they are written to.
class DeltaKernels {
 public:
  explicit DeltaKernels(const DeltaShape& shape, int n_blocks = 6, int block_size = 8)
      : numbers(shape),
        shape_(shape),
        sizes_(cuda::delta_sizes(shape)),
        block_size_(block_size),
        of_layer_(cuda::delta_state_size(sizes_)),
        convolution_(numbers.convolution),
        decays_(numbers.decays),
        biases_(numbers.biases),
        norm_(numbers.norm),
        states_(size_t(n_blocks) * 2 * of_layer_) {}

  // y of a pass, (rows, value_size), after which nobody's rows and sequences come, up to
  // padded_rows. x (rows, row_size)
  std::vector<float> run(const std::vector<DeltaPart>& parts, std::vector<float> x,
                         int padded_rows = 0) {
    const auto n_rows = static_cast<int>(x.size()) / shape_.row_size();
    const int n = std::max(n_rows, padded_rows);
    std::vector<cuda::DeltaRow> rows;
    std::vector<cuda::DeltaSequence> sequences;
    std::vector<int32_t> blocks;
    for (const DeltaPart& part : parts) {
      sequences.push_back({.first_row = static_cast<int32_t>(rows.size()),
                           .n_rows = part.n_rows,
                           .first_place = part.first_position % block_size_,
                           .from = part.from,
                           .first_block = static_cast<int32_t>(blocks.size())});
      for (int i = 0; i < part.n_rows; ++i) rows.push_back({i, part.from});
      blocks.insert(blocks.end(), part.blocks.begin(), part.blocks.end());
    }
    rows.resize(size_t(n), {.n_before = 0, .from = -1});
    if (padded_rows > 0) sequences.resize(size_t(padded_rows), {});
    x.resize(size_t(n) * shape_.row_size(), 0.5f);
    const DeviceArray<float> inputs(x);
    const DeviceArray<cuda::DeltaRow> of_rows(rows);
    const DeviceArray<cuda::DeltaSequence> of_sequences(sequences);
    const DeviceArray<int32_t> of_blocks(blocks);
    const cuda::DeltaScratchSizes scratch_sizes = cuda::delta_scratch_sizes(n, sizes_);
    DeviceArray<float> queries(size_t(scratch_sizes.queries)), keys(queries.size());
    DeviceArray<float> values(size_t(scratch_sizes.values)), gates(size_t(scratch_sizes.gates));
    DeviceArray<float> y(size_t(n) * shape_.value_size());
    const cuda::DeltaScratch scratch{queries.get(), keys.get(), values.get(), gates.get()};
    const cuda::DeltaStates states{states_.get() + of_layer_, 2 * of_layer_};
    launch_one(cuda::delta_inputs_launch(n, {.sizes = sizes_,
                                             .x = inputs.get(),
                                             .rows = of_rows.get(),
                                             .states = states,
                                             .convolution = convolution_.get(),
                                             .decay = decays_.get(),
                                             .decay_bias = biases_.get(),
                                             .scratch = scratch}));
    launch_one(cuda::delta_rule_launch(static_cast<int>(sequences.size()),
                                       {.sizes = sizes_,
                                        .x = inputs.get(),
                                        .sequences = of_sequences.get(),
                                        .blocks = of_blocks.get(),
                                        .block_size = block_size_,
                                        .states = states,
                                        .scratch = scratch}));
    launch_one(cuda::delta_outputs_launch(n, {.sizes = sizes_,
                                              .x = inputs.get(),
                                              .values = values.get(),
                                              .weight = norm_.get(),
                                              .eps = numbers.eps,
                                              .y = y.get()}));
    std::vector<float> out = y.host();
    out.resize(size_t(n_rows) * shape_.value_size());
    return out;
  }

  // One sequence's rows in passes of so many, in `blocks`.
  std::vector<float> run_in(int n_rows, const std::vector<float>& x,
                            const std::vector<int32_t>& blocks) {
    const auto total = static_cast<int>(x.size()) / shape_.row_size();
    std::vector<float> y;
    for (int first = 0; first < total; first += n_rows) {
      const int n = std::min(n_rows, total - first);
      const std::vector<float> part = run({part_of(first, n, blocks)}, rows_of(x, first, n));
      y.insert(y.end(), part.begin(), part.end());
    }
    return y;
  }

  // Rows [first, first + n) of a sequence in `blocks`.
  DeltaPart part_of(int first, int n, const std::vector<int32_t>& blocks) const {
    const auto block = [&](int position) { return blocks.begin() + position / block_size_; };
    return {
        n, first, first == 0 ? -1 : *block(first - 1), {block(first), block(first + n - 1) + 1}};
  }

  std::vector<float> rows_of(const std::vector<float>& x, int first, int n) const {
    const auto begin = x.begin() + ptrdiff_t{first} * shape_.row_size();
    return {begin, begin + ptrdiff_t{n} * shape_.row_size()};
  }

  void set_decays(const std::vector<float>& decays) {
    numbers.decays = decays;
    decays_.set(decays);
  }

  // All layers of all blocks.
  std::vector<float> states() const { return states_.host(); }
  // The layer's part of a block.
  std::vector<float> state_in(int block) const {
    const std::vector<float> all = states();
    const auto begin = all.begin() + (2 * block + 1) * of_layer_;
    return {begin, begin + of_layer_};
  }

  DeltaNumbers numbers;

 private:
  template <typename Params>
  void launch_one(const cuda::Launch<Params>& l) {
    launch(l.kernel, dim3(l.grid.x, l.grid.y, l.grid.z), dim3(l.threads), l.shared_bytes, l.params);
  }

  DeltaShape shape_;
  cuda::DeltaSizes sizes_;
  int block_size_;
  int64_t of_layer_;
  DeviceArray<float> convolution_, decays_, biases_, norm_;
  DeviceArray<float> states_;
};

}  // namespace pb::test
