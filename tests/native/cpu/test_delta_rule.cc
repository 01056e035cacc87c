// The gated delta rule: against the formulas in double precision, and the same bits however rows
// are cut into passes, shared by threads, or beside which sequences they are.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "cpu_fixture.h"

namespace {

using namespace pb;
using namespace pb::test;

constexpr int kBlock = 8;
constexpr int kBlocks = 12;
constexpr int kMaxRows = 64;
constexpr float kEps = 1e-6f;

// A layer, the second of two, and blocks of states that hold garbage until they are written to.
struct Layer {
  Layer(const cpu::Kernels& target, const DeltaShape& shape, int n_threads)
      : shape(shape), backend(make_cpu_backend(n_threads, target.name)) {
    backend->prepare({.max_rows = kMaxRows,
                      .max_sequences = 4,
                      .n_positions = 256,
                      .n_heads = 1,
                      .storages = {{.shape = {1, 4}}},
                      .vocab_size = 8,
                      .block_size = kBlock});
    kv = backend->make_kv(kBlocks, kBlock, 1, 1, 4, DType::kF32);
    states = backend->recurrent()->make_states(kBlocks, 2, shape);
    states.block_size = kBlock;
    states.group = 1;
    std::fill_n(states.data.as<float>(), states.data.bytes() / sizeof(float), std::nanf(""));
    const int heads = shape.n_value_heads;
    weights = numbers(size_t(shape.conv_size) * shape.n_channels(), 51);
    decays = numbers(size_t(heads), 52);
    for (float& d : decays) d = -std::exp(2.0f * d);
    biases = numbers(size_t(heads), 53);
    norm_weights = numbers(size_t(shape.value_dim), 54);
    convolution = backend->make_vector(view_of(weights, int(weights.size()), 1));
    decay = backend->make_vector(view_of(decays, heads, 1));
    decay_bias = backend->make_vector(view_of(biases, heads, 1));
    norm.eps = kEps;
    norm.weight = backend->make_vector(view_of(norm_weights, shape.value_dim, 1));
  }

  // y of the rows of a pass. x (rows, row_size)
  std::vector<float> run(const std::vector<SequenceRows>& sequences, std::vector<float> x) {
    const int n_rows = int(x.size()) / shape.row_size();
    const std::vector<int32_t> zeros(size_t(n_rows), 0);
    backend->plan({.n_rows = n_rows,
                   .tokens = zeros.data(),
                   .positions = zeros.data(),
                   .sequences = sequences},
                  kv);
    std::vector<float> y(size_t(n_rows) * shape.value_size());
    Buffer out = over(y);
    const DeltaLayer layer{.shape = shape,
                           .layer = 1,
                           .convolution = &convolution,
                           .decay = &decay,
                           .decay_bias = &decay_bias,
                           .norm = &norm};
    backend->recurrent()->delta_rule(over(x), n_rows, layer, states, out);
    return y;
  }

  // A sequence's rows in passes of so many, with its blocks from `first_block` on.
  std::vector<float> run_in(int n_rows, const std::vector<float>& x, int first_block) {
    std::vector<int32_t> table;
    for (int i = 0; i < 5; ++i) table.push_back(first_block + i);
    const int total = int(x.size()) / shape.row_size();
    std::vector<float> y;
    for (int first = 0; first < total; first += n_rows) {
      const int n = std::min(n_rows, total - first);
      const auto begin = x.begin() + ptrdiff_t(first) * shape.row_size();
      SequenceRows rows{.n_rows = n, .first_position = first};
      rows.block_tables[0] = rows.block_tables[1] = table.data();
      if (first > 0) rows.state_from = table[size_t((first - 1) / kBlock)];
      const auto part = run({rows}, {begin, begin + ptrdiff_t(n) * shape.row_size()});
      y.insert(y.end(), part.begin(), part.end());
    }
    return y;
  }

  DeltaShape shape;
  std::unique_ptr<Backend> backend;
  KvStorage kv, states;
  std::vector<float> weights, decays, biases, norm_weights;
  Vector convolution, decay, decay_bias;
  Norm norm;
};

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// The formulas of ops/recurrent.h, a row and a head at a time.
std::vector<double> exact(const Layer& layer, const std::vector<float>& x) {
  const DeltaShape& s = layer.shape;
  const int n_rows = int(x.size()) / s.row_size();
  std::vector<double> y;
  std::vector<double> state(size_t(s.value_size()) * s.key_dim, 0.0);
  const auto at = [&](int row, int column) {
    return row < 0 ? 0.0 : double{x[size_t(row) * s.row_size() + column]};
  };
  for (int row = 0; row < n_rows; ++row) {
    const auto convolved = [&](int channel) {
      double sum = 0.0;
      for (int tap = 0; tap < s.conv_size; ++tap) {
        sum += at(row + tap - s.conv_size + 1, channel) *
               layer.weights[size_t(tap) * s.n_channels() + channel];
      }
      return sum * sigmoid(sum);
    };
    for (int head = 0; head < s.n_value_heads; ++head) {
      const int key_head =
          s.in_turn ? head % s.n_key_heads : head / (s.n_value_heads / s.n_key_heads);
      std::vector<double> q, k, v, out;
      double qq = kEps, kk = kEps;
      for (int i = 0; i < s.key_dim; ++i) {
        q.push_back(convolved(key_head * s.key_dim + i));
        k.push_back(convolved(s.key_size() + key_head * s.key_dim + i));
        qq += q.back() * q.back();
        kk += k.back() * k.back();
      }
      for (int i = 0; i < s.key_dim; ++i) {
        q[size_t(i)] /= std::sqrt(qq) * std::sqrt(double(s.key_dim));
        k[size_t(i)] /= std::sqrt(kk);
      }
      const int gates = s.n_channels() + s.value_size();
      const double a = at(row, gates + s.n_value_heads + head) + layer.biases[size_t(head)];
      const double kept = std::exp(layer.decays[size_t(head)] * std::log1p(std::exp(a)));
      const double learnt = sigmoid(at(row, gates + head));
      double squares = 0.0;
      for (int c = 0; c < s.value_dim; ++c) {
        const double value = convolved(2 * s.key_size() + head * s.value_dim + c);
        double* const column = state.data() + size_t(head) * s.key_dim * s.value_dim + c;
        double known = 0.0, got = 0.0;
        for (int i = 0; i < s.key_dim; ++i) {
          column[i * s.value_dim] *= kept;
          known += column[i * s.value_dim] * k[size_t(i)];
        }
        for (int i = 0; i < s.key_dim; ++i) {
          column[i * s.value_dim] += k[size_t(i)] * learnt * (value - known);
          got += column[i * s.value_dim] * q[size_t(i)];
        }
        out.push_back(got);
        squares += got * got;
      }
      for (int c = 0; c < s.value_dim; ++c) {
        const double z = at(row, s.n_channels() + head * s.value_dim + c);
        y.push_back(out[size_t(c)] / std::sqrt(squares / s.value_dim + kEps) *
                    layer.norm_weights[size_t(c)] * z * sigmoid(z));
      }
    }
  }
  return y;
}

const std::vector<DeltaShape> kShapes = {
    {1, 1, 4, 4, 1},     {2, 6, 12, 20, 4}, {3, 3, 16, 64, 4},      {1, 2, 33, 70, 3},
    {2, 2, 128, 128, 4}, {1, 1, 5, 1, 7},   {2, 6, 12, 20, 4, true}};

}  // namespace

TEST(rows_are_those_of_the_formulas) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const DeltaShape& shape : kShapes) {
      Layer layer(*target, shape, 2);
      const auto x = numbers(size_t(30) * shape.row_size(), 55);
      const auto y = layer.run_in(30, x, 0);
      const auto expected = exact(layer, x);
      double error = 0.0, size = 0.0;
      for (size_t i = 0; i < y.size(); ++i) {
        error += (y[i] - expected[i]) * (y[i] - expected[i]);
        size += expected[i] * expected[i];
      }
      EXPECT(std::sqrt(error / size) < 2e-5);
    }
  }
}

TEST(the_same_bits_however_rows_are_cut) {
  for (const cpu::Kernels* target : runnable_targets()) {
    for (const DeltaShape& shape : kShapes) {
      Layer layer(*target, shape, 1);
      const auto x = numbers(size_t(37) * shape.row_size(), 56);
      const auto expected = layer.run_in(37, x, 0);
      for (const int n_rows : {1, 2, 5, 8, 17}) {
        EXPECT(same_bits(layer.run_in(n_rows, x, 6), expected));
      }
      Layer other(*target, shape, 3);
      EXPECT(same_bits(other.run_in(9, x, 1), expected));
    }
  }
}

TEST(sequences_of_a_pass_do_not_see_each_other) {
  const DeltaShape shape{2, 6, 12, 20, 4};
  const size_t width = size_t(shape.row_size());
  for (const cpu::Kernels* target : runnable_targets()) {
    Layer layer(*target, shape, 2);
    const auto x = numbers(10 * width, 57);
    const auto z = numbers(7 * width, 58);
    const auto of_x = layer.run_in(10, x, 0);
    const auto of_z = layer.run_in(7, z, 5);
    Layer both(*target, shape, 2);
    const std::vector<int32_t> tables[] = {{3, 4}, {8}};
    std::vector<float> rows = x;
    rows.insert(rows.end(), z.begin(), z.end());
    std::vector<SequenceRows> sequences = {{.first_row = 0, .n_rows = 10},
                                           {.first_row = 10, .n_rows = 7}};
    for (size_t i = 0; i < 2; ++i) {
      sequences[i].block_tables[0] = sequences[i].block_tables[1] = tables[i].data();
    }
    const auto y = both.run(sequences, rows);
    EXPECT(same_bits({y.begin(), y.begin() + ptrdiff_t(of_x.size())}, of_x));
    EXPECT(same_bits({y.begin() + ptrdiff_t(of_x.size()), y.end()}, of_z));
  }
}

// A block that is gone on from is read, and another is written to: a step can be taken back.
TEST(what_is_gone_on_from_stays_as_it_is) {
  const DeltaShape shape{2, 4, 16, 32, 4};
  const size_t width = size_t(shape.row_size());
  for (const cpu::Kernels* target : runnable_targets()) {
    Layer layer(*target, shape, 1);
    const auto x = numbers(8 * width, 59);
    const auto expected = layer.run_in(8, x, 0);
    (void)layer.run_in(5, {x.begin(), x.begin() + ptrdiff_t(5 * width)}, 2);
    const int32_t others[] = {3, 4};
    for (const int32_t other : others) {
      SequenceRows rows{.n_rows = 3, .first_position = 5, .state_from = 2};
      rows.block_tables[0] = rows.block_tables[1] = &other;
      const auto y = layer.run({rows}, {x.begin() + ptrdiff_t(5 * width), x.end()});
      const auto last = expected.end() - ptrdiff_t(y.size());
      EXPECT(same_bits(y, {last, expected.end()}));
    }
  }
}

PB_TEST_MAIN()
