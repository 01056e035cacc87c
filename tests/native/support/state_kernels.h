// The kernels of recurrent layers, whatever their kind, and passes of rows.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda/driver/launch.h"
#include "cuda/recurrent/params_recurrent.h"
#include "cuda_fixture.h"

namespace pb::test {

// A sequence of a pass.
struct StatePart {
  int n_rows;
  int first_position;
  int from;                     // a block, or -1
  std::vector<int32_t> blocks;  // that its rows lie in
};

// A pass as kernels take it, with rows and sequences that are nobody's.
struct StatePass {
  int n_rows;
  int n_sequences;
  const cuda::StateRow* rows;
  const cuda::StateSequence* sequences;
  const int32_t* blocks;
};

// A layer, the second of two, with blocks of states that hold NaN until they are written to.
class StateKernels {
 public:
  static constexpr int kBlockSize = 8;

  virtual ~StateKernels() = default;

  // y of a pass, (rows, y_size), after which nobody's rows and sequences come, up to padded_rows.
  // x (rows, row_size)
  std::vector<float> run(const std::vector<StatePart>& parts, std::vector<float> x,
                         int padded_rows = 0) {
    const auto n_rows = static_cast<int>(x.size()) / row_size_;
    const int n = std::max(n_rows, padded_rows);
    std::vector<cuda::StateRow> rows;
    std::vector<cuda::StateSequence> sequences;
    std::vector<int32_t> blocks;
    for (const StatePart& part : parts) {
      sequences.push_back({.first_row = static_cast<int32_t>(rows.size()),
                           .n_rows = part.n_rows,
                           .first_place = part.first_position % kBlockSize,
                           .from = part.from,
                           .first_block = static_cast<int32_t>(blocks.size())});
      for (int i = 0; i < part.n_rows; ++i) rows.push_back({i, part.from});
      blocks.insert(blocks.end(), part.blocks.begin(), part.blocks.end());
    }
    rows.resize(size_t(n), {.n_before = 0, .from = -1});
    if (padded_rows > 0) sequences.resize(size_t(padded_rows), {});
    x.resize(size_t(n) * row_size_, 0.5f);
    const DeviceArray<float> inputs(x);
    const DeviceArray<cuda::StateRow> of_rows(rows);
    const DeviceArray<cuda::StateSequence> of_sequences(sequences);
    const DeviceArray<int32_t> of_blocks(blocks);
    DeviceArray<float> y(size_t(n) * y_size_);
    launch_all({.n_rows = n,
                .n_sequences = static_cast<int>(sequences.size()),
                .rows = of_rows.get(),
                .sequences = of_sequences.get(),
                .blocks = of_blocks.get()},
               inputs.get(), y.get());
    std::vector<float> out = y.host();
    out.resize(size_t(n_rows) * y_size_);
    return out;
  }

  // One sequence's rows in passes of so many, in `blocks`.
  std::vector<float> run_in(int n_rows, const std::vector<float>& x,
                            const std::vector<int32_t>& blocks) {
    const auto total = static_cast<int>(x.size()) / row_size_;
    std::vector<float> y;
    for (int first = 0; first < total; first += n_rows) {
      const int n = std::min(n_rows, total - first);
      const std::vector<float> part = run({part_of(first, n, blocks)}, rows_of(x, first, n));
      y.insert(y.end(), part.begin(), part.end());
    }
    return y;
  }

  // Rows [first, first + n) of a sequence in `blocks`.
  StatePart part_of(int first, int n, const std::vector<int32_t>& blocks) const {
    const auto block = [&](int position) { return blocks.begin() + position / kBlockSize; };
    return {
        n, first, first == 0 ? -1 : *block(first - 1), {block(first), block(first + n - 1) + 1}};
  }

  std::vector<float> rows_of(const std::vector<float>& x, int first, int n) const {
    const auto begin = x.begin() + ptrdiff_t{first} * row_size_;
    return {begin, begin + ptrdiff_t{n} * row_size_};
  }

  // All layers of all blocks.
  std::vector<float> states() const { return states_.host(); }
  // The layer's part of a block.
  std::vector<float> state_in(int block) const {
    const std::vector<float> all = states();
    const auto begin = all.begin() + (2 * block + 1) * of_layer_;
    return {begin, begin + of_layer_};
  }

 protected:
  // row_size, y_size: numbers of a row of x and of y. of_layer: of a layer's part of a block.
  StateKernels(int row_size, int y_size, int64_t of_layer, int n_blocks)
      : row_size_(row_size),
        y_size_(y_size),
        of_layer_(of_layer),
        states_(size_t(n_blocks) * 2 * of_layer) {}

  cuda::StateBlocks layer_states() { return {states_.get() + of_layer_, 2 * of_layer_}; }

  template <typename Params>
  void launch_one(const cuda::Launch<Params>& l) {
    launch(l.kernel, dim3(l.grid.x, l.grid.y, l.grid.z), dim3(l.threads), l.shared_bytes, l.params);
  }

 private:
  // x (pass.n_rows, row_size) -> y (pass.n_rows, y_size)
  virtual void launch_all(const StatePass& pass, const float* x, float* y) = 0;

  int row_size_;
  int y_size_;
  int64_t of_layer_;
  DeviceArray<float> states_;
};

// Sequences of a pass do not see each other, of which some are nobody's; what they do not own stays
// as it was, bit for bit. Of new kernels of one layer. x: 10 rows; z: 7 rows.
template <typename Kernels, typename Shape>
void expect_sequences_apart(const Shape& shape, const std::vector<float>& x,
                            const std::vector<float>& z) {
  for (const int padded_rows : {0, 32}) {
    Kernels of_x(shape), of_z(shape), both(shape);
    const auto y_x = of_x.run_in(10, x, {2, 5});
    const auto y_z = of_z.run_in(7, z, {3});
    (void)both.run({both.part_of(0, 1, {2, 5})}, both.rows_of(x, 0, 1));
    std::vector<float> rows = both.rows_of(x, 1, 9);
    rows.insert(rows.end(), z.begin(), z.end());
    std::vector<float> expected(y_x.begin() + ptrdiff_t(y_x.size() / 10), y_x.end());
    expected.insert(expected.end(), y_z.begin(), y_z.end());
    EXPECT(same_bits(
        both.run({both.part_of(1, 9, {2, 5}), both.part_of(0, 7, {3})}, rows, padded_rows),
        expected));
    const auto of_all = both.states();
    const auto own_x = of_x.states(), own_z = of_z.states();
    for (size_t i = 0; i < of_all.size(); ++i) {
      const size_t block = i / (of_all.size() / 6);
      const float wanted = block == 3 ? own_z[i] : own_x[i];
      EXPECT(std::memcmp(&of_all[i], &wanted, sizeof(float)) == 0);
    }
  }
}

// The same bits and the same last state however rows are cut into passes. x: 37 rows, of which the
// last lie in block 5.
template <typename Kernels, typename Shape, typename Cuts>
void expect_same_bits_in_parts(const Shape& shape, const std::vector<float>& x,
                               const std::vector<int32_t>& blocks, const Cuts& cuts) {
  Kernels kernels(shape);
  const auto expected = kernels.run_in(37, x, blocks);
  const auto last = kernels.state_in(5);
  for (const int n_rows : cuts) {
    set_order(static_cast<uint64_t>(n_rows));
    Kernels other(shape);
    EXPECT(same_bits(other.run_in(n_rows, x, blocks), expected));
    EXPECT(same_bits(other.state_in(5), last));
  }
}

}  // namespace pb::test
