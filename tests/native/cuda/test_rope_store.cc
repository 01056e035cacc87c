// Rotary positions, norms of heads, the write of keys and values, and the copy of KV blocks.
#include "cuda/attention/attention_launch.h"
#include "cuda_fixture.h"
#include "formats/dtype.h"

namespace pb::test {
namespace {

template <typename Params>
void run(const cuda::Launch<Params>& l) {
  launch(l.kernel, dim3(l.grid.x, l.grid.y, l.grid.z), dim3(l.threads), l.shared_bytes, l.params);
}

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kInt8};

enum class HeadNormKind { kNone, kRms, kLayer };

struct RopeCase {
  DType kv = DType::kF32;
  int head_dim = 64;
  int n_heads = 3;
  int n_kv_heads = 2;
  int block_shift = 2;
  bool rotated = true;
  HeadNormKind norm = HeadNormKind::kNone;
  bool norms_v = false;
  bool norms_last = false;
  bool writes_kv = true;

  int n_all() const { return n_heads + 2 * n_kv_heads; }
  int row_size() const { return n_all() * head_dim; }
  size_t number_size() const { return kv == DType::kF32 ? 4 : kv == DType::kInt8 ? 1 : 2; }
};

constexpr int kBlocks = 4;
constexpr int kPositions = 100;
constexpr float kEps = 1e-5f;

// Everything that a pass of some rows reads and leaves.
struct Pass {
  RopeCase c;
  std::vector<float> qkv;  // (n_rows, row_size)
  std::vector<cuda::AttentionRow> rows;
  std::vector<float> cosines, sines;                      // (kPositions, head_dim / 2), of k
  std::vector<float> q_cosines, q_sines;                  // of q
  std::vector<float> q_weight, q_bias, k_weight, k_bias;  // (head_dim)
  std::vector<float> v_weight;                            // likewise
  std::vector<float> out;                                 // qkv afterwards
  std::vector<uint8_t> numbers;  // (kBlocks, 2, n_kv_heads, block_size, head_dim)
  std::vector<float> scales;     // (kBlocks, 2, n_kv_heads, block_size)

  Pass(const RopeCase& case_, std::vector<cuda::AttentionRow> rows_) : c(case_), rows(rows_) {
    Numbers numbers_(3);
    const auto half = static_cast<size_t>(c.head_dim / 2);
    for (size_t i = 0; i < kPositions * half; ++i) {
      const double angle = static_cast<double>(i / half) * std::pow(100.0, -1.0 * (i % half));
      cosines.push_back(static_cast<float>(std::cos(angle)));
      sines.push_back(static_cast<float>(std::sin(angle)));
      q_cosines.push_back(1.5f * cosines.back());
      q_sines.push_back(1.25f * sines.back());
    }
    for (auto* v : {&q_weight, &q_bias, &k_weight, &k_bias, &v_weight}) {
      *v = numbers_.floats(2 * half);
    }
    for (const cuda::AttentionRow& row : rows) {  // a row's numbers go with its position
      Numbers own(static_cast<uint32_t>(100 + row.position));
      const std::vector<float> x = own.floats(static_cast<size_t>(c.row_size()), 2.0f);
      qkv.insert(qkv.end(), x.begin(), x.end());
    }
    const size_t n = static_cast<size_t>((kBlocks * 2 * c.n_kv_heads) << c.block_shift);
    numbers.assign(n * static_cast<size_t>(c.head_dim) * c.number_size(), 0xee);
    scales.assign(n, -1.0f);
  }

  // max_rows: of the grid, which may have room for more.
  void launch_rows(int max_rows) {
    DeviceArray<float> dqkv(qkv);
    const DeviceArray<cuda::AttentionRow> drows(rows);
    const DeviceArray<int32_t> n_rows(std::vector<int32_t>{static_cast<int32_t>(rows.size())});
    const DeviceArray<float> dcosines(cosines), dsines(sines);
    const DeviceArray<float> dq_cosines(q_cosines), dq_sines(q_sines);
    const DeviceArray<float> qw(q_weight), qb(q_bias), kw(k_weight), kb(k_bias);
    const DeviceArray<float> vw(v_weight);
    DeviceArray<uint8_t> dnumbers(numbers);
    DeviceArray<float> dscales(scales);
    const bool normed = c.norm != HeadNormKind::kNone;
    const int layer_norm = c.norm == HeadNormKind::kLayer ? 1 : 0;
    const cuda::RopeStoreParams params{
        .qkv = dqkv.get(),
        .rows = drows.get(),
        .n_rows = n_rows.get(),
        .cosines = c.rotated ? dcosines.get() : nullptr,
        .sines = dsines.get(),
        .q_cosines = dq_cosines.get(),
        .q_sines = dq_sines.get(),
        .q_norm = {normed ? qw.get() : nullptr, qb.get(), kEps, layer_norm},
        .k_norm = {normed ? kw.get() : nullptr, kb.get(), kEps, layer_norm},
        .v_norm = {c.norms_v ? vw.get() : nullptr, nullptr, kEps, 0},
        .norms_last = c.norms_last ? 1 : 0,
        .n_heads = c.n_heads,
        .n_computed = c.writes_kv ? c.n_all() : c.n_heads,
        .kv = {dnumbers.get(), dscales.get(), c.n_kv_heads, c.block_shift, c.head_dim}};
    run(cuda::launch_rope_store(c.kv, max_rows, params));
    out = dqkv.host();
    numbers = dnumbers.host();
    scales = dscales.host();
  }

  size_t kv_row(int row, int head, bool value) const {
    const int size = 1 << c.block_shift;
    const int slot = rows[static_cast<size_t>(row)].slot;
    return static_cast<size_t>(((slot / size * 2 + (value ? 1 : 0)) * c.n_kv_heads + head) * size +
                               slot % size);
  }
  double stored(int row, int head, bool value, int d) const {
    const size_t at =
        kv_row(row, head, value) * static_cast<size_t>(c.head_dim) + static_cast<size_t>(d);
    if (c.kv == DType::kInt8) {
      return double{scales[kv_row(row, head, value)]} * static_cast<int8_t>(numbers[at]);
    }
    if (c.kv == DType::kF32) {
      float x;
      std::memcpy(&x, &numbers[4 * at], 4);
      return x;
    }
    uint16_t x;
    std::memcpy(&x, &numbers[2 * at], 2);
    return c.kv == DType::kBF16 ? bf16_to_f32(x) : f16_to_f32(x);
  }

  // Head `head` of q, k and v, in double precision.
  std::vector<double> expected(int row, int head) const {
    const float* from = qkv.data() + row * c.row_size() + head * c.head_dim;
    std::vector<double> x(from, from + c.head_dim);
    if (head >= c.n_heads + c.n_kv_heads) {
      double squares = 0.0;
      for (double v : x) squares += v * v / c.head_dim;
      for (size_t d = 0; c.norms_v && d < x.size(); ++d) {
        x[d] *= v_weight[d] / std::sqrt(squares + double{kEps});
      }
      return x;
    }
    if (!c.norms_last) normalise(x, head);
    if (c.rotated) rotate(x, row, head);
    if (c.norms_last) normalise(x, head);
    return x;
  }

 private:
  void normalise(std::vector<double>& x, int head) const {
    if (c.norm == HeadNormKind::kNone) return;
    const bool is_q = head < c.n_heads;
    double mean = 0.0;
    if (c.norm == HeadNormKind::kLayer) {
      for (double v : x) mean += v / c.head_dim;
    }
    double squares = 0.0;
    for (double v : x) squares += (v - mean) * (v - mean) / c.head_dim;
    for (size_t d = 0; d < x.size(); ++d) {
      x[d] = (x[d] - mean) / std::sqrt(squares + double{kEps}) * (is_q ? q_weight : k_weight)[d];
      if (c.norm == HeadNormKind::kLayer) x[d] += (is_q ? q_bias : k_bias)[d];
    }
  }

  void rotate(std::vector<double>& x, int row, int head) const {
    const bool is_q = head < c.n_heads;
    const size_t half = x.size() / 2;
    const size_t angles = static_cast<size_t>(rows[static_cast<size_t>(row)].position) * half;
    for (size_t i = 0; i < half; ++i) {
      const double a = x[i], b = x[half + i];
      const double cosine = (is_q ? q_cosines : cosines)[angles + i];
      const double sine = (is_q ? q_sines : sines)[angles + i];
      x[i] = a * cosine - b * sine;
      x[half + i] = b * cosine + a * sine;
    }
  }
};

// What a number of a head may be off by.
double tolerance(DType kv, const std::vector<double>& head, double x) {
  double greatest = 0.0;
  for (double v : head) greatest = std::max(greatest, std::abs(v));
  const double f32 = 1e-5 * greatest;
  if (kv == DType::kInt8) return greatest / 254 * 1.001 + f32;
  if (kv == DType::kF32) return f32;
  return std::abs(x) * (kv == DType::kBF16 ? 0x1p-8 : 0x1p-11) + 0x1p-25 + f32;
}

void expect_right(const Pass& pass) {
  const RopeCase& c = pass.c;
  for (int row = 0; row < static_cast<int>(pass.rows.size()); ++row) {
    for (int head = 0; head < c.n_all(); ++head) {
      const std::vector<double> x = pass.expected(row, head);
      const bool is_q = head < c.n_heads;
      const int kv_head = (head - c.n_heads) % c.n_kv_heads;
      const bool value = head >= c.n_heads + c.n_kv_heads;
      for (int d = 0; d < c.head_dim; ++d) {
        const double got =
            is_q ? pass.out[static_cast<size_t>(row * c.row_size() + head * c.head_dim + d)]
                 : pass.stored(row, kv_head, value, d);
        const double error = std::abs(got - x[static_cast<size_t>(d)]);
        const DType type = is_q ? DType::kF32 : c.kv;
        EXPECT(error <= tolerance(type, x, x[static_cast<size_t>(d)]));
      }
    }
  }
}

const std::vector<cuda::AttentionRow> kRows = {{0, 13}, {7, 0}, {99, 3}, {8, 7}, {50, 6}};

TEST(every_type_and_head_size_is_rotated_and_stored) {
  set_order(1);
  for (const DType kv : kTypes) {
    for (const int head_dim : {2, 6, 64, 80, 256, 258, 512}) {
      RopeCase c;
      c.kv = kv;
      c.head_dim = head_dim;
      Pass pass(c, kRows);
      pass.launch_rows(static_cast<int>(kRows.size()));
      expect_right(pass);
    }
  }
}

TEST(heads_are_normed_or_not_and_rotated_or_not) {
  set_order(2);
  for (const HeadNormKind norm : {HeadNormKind::kNone, HeadNormKind::kRms, HeadNormKind::kLayer}) {
    for (const bool rotated : {false, true}) {
      for (const int head_dim : {10, 128}) {
        RopeCase c;
        c.head_dim = head_dim;
        c.norm = norm;
        c.rotated = rotated;
        Pass pass(c, kRows);
        pass.launch_rows(static_cast<int>(kRows.size()));
        expect_right(pass);
      }
    }
  }
}

TEST(heads_are_normed_after_their_rotation) {
  set_order(4);
  for (const HeadNormKind norm : {HeadNormKind::kRms, HeadNormKind::kLayer}) {
    for (const bool norms_v : {false, true}) {
      for (const int head_dim : {10, 128, 512}) {
        RopeCase c;
        c.head_dim = head_dim;
        c.norm = norm;
        c.norms_v = norms_v;
        c.norms_last = true;
        Pass pass(c, kRows);
        pass.launch_rows(static_cast<int>(kRows.size()));
        expect_right(pass);
      }
    }
  }
}

TEST(heads_of_v_are_normed) {
  set_order(3);
  for (const DType kv : kTypes) {
    for (const int head_dim : {10, 80, 512}) {
      RopeCase c;
      c.kv = kv;
      c.head_dim = head_dim;
      c.norm = HeadNormKind::kRms;
      c.norms_v = true;
      Pass pass(c, kRows);
      pass.launch_rows(static_cast<int>(kRows.size()));
      expect_right(pass);
    }
  }
}

// Layers whose keys and values are those of an earlier one have q alone, in rows as wide.
TEST(q_alone_is_rotated_and_nothing_is_stored) {
  set_order(3);
  for (const DType kv : kTypes) {
    for (const int head_dim : {12, 512}) {
      RopeCase c;
      c.kv = kv;
      c.head_dim = head_dim;
      c.norm = HeadNormKind::kRms;
      Pass all(c, kRows);
      all.launch_rows(static_cast<int>(kRows.size()));
      c.writes_kv = false;
      Pass alone(c, kRows);
      const Pass before = alone;
      alone.launch_rows(static_cast<int>(kRows.size()));
      EXPECT(same_bits(alone.out, all.out));
      EXPECT(same_bits(alone.numbers, before.numbers));
      EXPECT(same_bits(alone.scales, before.scales));
    }
  }
}

TEST(a_row_has_the_same_bits_alone_and_in_any_order) {
  for (const DType kv : kTypes) {
    RopeCase c;
    c.kv = kv;
    c.head_dim = kv == DType::kBF16 ? 400 : 80;
    c.norm = HeadNormKind::kRms;
    c.norms_v = true;
    set_order(0);
    Pass all(c, kRows);
    all.launch_rows(static_cast<int>(kRows.size()));
    for (uint64_t seed = 1; seed <= n_orders(10); ++seed) {
      set_order(seed);
      Pass again(c, kRows);
      again.launch_rows(static_cast<int>(kRows.size()) + 3);  // rows that are not there
      EXPECT(same_bits(again.out, all.out));
      EXPECT(same_bits(again.numbers, all.numbers));
      EXPECT(same_bits(again.scales, all.scales));
    }
    Pass alone(c, {kRows[2]});
    alone.launch_rows(1);
    EXPECT(std::memcmp(alone.out.data(), all.out.data() + 2 * c.row_size(),
                       sizeof(float) * static_cast<size_t>(c.n_heads * c.head_dim)) == 0);
    for (int d = 0; d < c.head_dim; ++d) {
      EXPECT_EQ(alone.stored(0, 1, false, d), all.stored(2, 1, false, d));
      EXPECT_EQ(alone.stored(0, 1, true, d), all.stored(2, 1, true, d));
    }
  }
}

TEST(only_the_slots_of_rows_are_written) {
  set_order(3);
  for (const DType kv : kTypes) {
    RopeCase c;
    c.kv = kv;
    c.head_dim = 6;
    Pass pass(c, kRows);
    std::vector<bool> written(pass.scales.size());
    for (int row = 0; row < static_cast<int>(kRows.size()); ++row) {
      for (int head = 0; head < c.n_kv_heads; ++head) {
        for (const bool value : {false, true}) written[pass.kv_row(row, head, value)] = true;
      }
    }
    pass.launch_rows(8);
    const size_t bytes = static_cast<size_t>(c.head_dim) * c.number_size();
    for (size_t r = 0; r < written.size(); ++r) {
      if (written[r]) continue;
      EXPECT_EQ(pass.scales[r], -1.0f);
      for (size_t i = 0; i < bytes; ++i) EXPECT_EQ(int{pass.numbers[r * bytes + i]}, 0xee);
    }
  }
}

TEST(what_is_too_great_or_not_finite_is_stored_as_the_cpu_does) {
  set_order(4);
  for (const DType kv : kTypes) {
    RopeCase c;
    c.kv = kv;
    c.head_dim = 8;
    c.rotated = false;
    Pass pass(c, kRows);
    const auto first_v = static_cast<size_t>((c.n_heads + c.n_kv_heads) * c.head_dim);
    const auto row = static_cast<size_t>(c.row_size());
    pass.qkv[first_v + 1] = 1e6f;
    pass.qkv[row + first_v + 2] = INFINITY;
    pass.qkv[2 * row + first_v + 6] = std::nanf("");
    for (size_t d = 0; d < 8; ++d) pass.qkv[3 * row + first_v + d] = 0.0f;
    for (size_t d = 0; d < 8; ++d) pass.qkv[4 * row + first_v + d] = static_cast<float>(d) + 0.5f;
    pass.qkv[4 * row + first_v] = -127.0f;  // int8: of scale 1, and half-way numbers
    pass.launch_rows(5);
    const double held = pass.stored(0, 0, true, 1);
    EXPECT(kv == DType::kF16 ? held == 65504.0 : std::abs(held - 1e6) < 4e3);
    EXPECT(!std::isfinite(pass.stored(1, 0, true, 2)));
    EXPECT(std::isnan(pass.stored(2, 0, true, 6)));
    for (int d = 0; d < 8; ++d) EXPECT_EQ(pass.stored(3, 0, true, d), 0.0);
    if (kv == DType::kInt8) {
      EXPECT_EQ(pass.stored(4, 0, true, 0), -127.0);
      for (int d = 1; d < 8; ++d) EXPECT_EQ(pass.stored(4, 0, true, d), (d + 1) / 2 * 2);
    }
  }
}

TEST(a_block_is_copied_in_all_layers) {
  for (const int64_t block_bytes : {int64_t{48}, int64_t{20000}, int64_t{7}}) {
    set_order(5);
    const int n_blocks = 5;
    const int n_layers = 3;
    std::vector<uint8_t> data(static_cast<size_t>(n_layers * n_blocks * block_bytes));
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 31 + i / 251);
    DeviceArray<uint8_t> device(data);
    run(cuda::launch_copy_block(n_layers, {device.get(), block_bytes, n_blocks, 3, 1}));
    for (int layer = 0; layer < n_layers; ++layer) {
      const auto at = [&](int block) { return (layer * n_blocks + block) * block_bytes; };
      std::copy_n(data.begin() + at(3), block_bytes, data.begin() + at(1));
    }
    EXPECT(same_bits(device.host(), data));
  }
}

}  // namespace
}  // namespace pb::test

PB_TEST_MAIN()
