// Sequences with random q, k and v, attended to by the CUDA kernels in any passes.
#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "cuda/attention/attention_launch.h"
#include "cuda/attention/attention_plan.h"
#include "cuda_fixture.h"
#include "formats/dtype.h"

namespace pb::test {

// Launches what the host has decided.
template <typename Params>
void launch(const cuda::Launch<Params>& launch_) {
  launch(launch_.kernel, dim3(launch_.grid.x, launch_.grid.y, launch_.grid.z),
         dim3(launch_.threads), launch_.shared_bytes, launch_.params);
}

struct AttentionCase {
  DType kv = DType::kBF16;
  int head_dim = 64;
  int n_kv_heads = 2;
  int group = 2;
  int block_size = 32;
  int sliding_window = 0;
  int planned_window = -1;  // of the plan, where it has wider layers too; -1: that of this one
  bool causal = true;
  float softcap = 0.0f;
  std::vector<float> sinks = {};  // (n_heads), or empty
  bool out_bf16 = false;
  // How the work is cut.
  bool large_tiles = true;
  bool maps = false;  // keys and values of large tiles by tensor maps, where there is a kernel
  bool maps_refused = false;  // by the driver, when tiles have been planned for them
  int n_multiprocessors = 2;
  int64_t state_bytes = int64_t{4} << 20;

  int n_heads() const { return n_kv_heads * group; }
  int row_size() const { return (n_heads() + 2 * n_kv_heads) * head_dim; }
  int out_size() const { return n_heads() * head_dim; }
  int after() const {
    if (causal) return 0;
    return sliding_window > 0 ? sliding_window - 1 : std::numeric_limits<int>::max();
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }
};

// qkv (length, row_size) as rope_and_store has it: q heads, k heads, v heads.
struct Sequence {
  std::vector<float> qkv;
  std::vector<int32_t> block_table;
};

// Rows [first, first + n) of a sequence, in a pass.
struct Part {
  const Sequence* sequence;
  int first;
  int n;
};

// Sequences with the same prefix have the same seed, and KV blocks, for it.
inline Sequence make_sequence(const AttentionCase& c, int length, uint32_t seed, int first_block,
                              const Sequence* prefix = nullptr, int prefix_length = 0) {
  Sequence s;
  Numbers numbers(seed);
  s.qkv = numbers.floats(static_cast<size_t>(length) * static_cast<size_t>(c.row_size()));
  const int n_blocks = (length + c.block_size - 1) / c.block_size;
  for (int i = 0; i < n_blocks; ++i) s.block_table.push_back(first_block + (i * 7 + 3) % n_blocks);
  if (n_blocks % 7 == 0) {
    for (int i = 0; i < n_blocks; ++i) s.block_table[static_cast<size_t>(i)] = first_block + i;
  }
  if (prefix != nullptr) {
    std::copy_n(prefix->qkv.begin(), prefix_length * c.row_size(), s.qkv.begin());
    std::copy_n(prefix->block_table.begin(), prefix_length / c.block_size, s.block_table.begin());
  }
  return s;
}

// One layer's keys and values. What was not written is NaN (of int8: in its scale).
class KvCache {
 public:
  KvCache(const AttentionCase& c, int n_blocks)
      : case_(c),
        rows_(static_cast<size_t>(n_blocks) * 2 * static_cast<size_t>(c.n_kv_heads * c.block_size)),
        numbers_(rows_ * static_cast<size_t>(c.head_dim) * size(), 0xff),
        scales_(c.kv == DType::kInt8 ? rows_ : 0, std::nanf("")) {}

  int n_blocks() const {
    return static_cast<int>(rows_) / (2 * case_.n_kv_heads * case_.block_size);
  }
  size_t size() const { return case_.kv == DType::kF32 ? 4 : case_.kv == DType::kInt8 ? 1 : 2; }

  void write(const Sequence& s, int first, int n) {
    for (int position = first; position < first + n; ++position) {
      for (int head = 0; head < case_.n_kv_heads; ++head) {
        for (int value = 0; value < 2; ++value) {
          const float* from = numbers(s, position, head, value != 0);
          const size_t row = row_of(s, position, head, value != 0);
          if (case_.kv == DType::kInt8) scales_[row] = scale_of(from);
          for (int d = 0; d < case_.head_dim; ++d) {
            write_number(row * static_cast<size_t>(case_.head_dim) + static_cast<size_t>(d),
                         from[d], row);
          }
        }
      }
    }
  }

  // Makes a value what it is not: infinite or NaN, in f32 or bf16.
  void spoil_value(const Sequence& s, int position, int head, int d, float x) {
    const size_t row = row_of(s, position, head, true);
    write_number(row * static_cast<size_t>(case_.head_dim) + static_cast<size_t>(d), x, row);
    if (case_.kv == DType::kInt8) scales_[row] = x;
  }

  double read(const Sequence& s, int position, int head, bool value, int d) const {
    const size_t row = row_of(s, position, head, value);
    const size_t at = row * static_cast<size_t>(case_.head_dim) + static_cast<size_t>(d);
    if (case_.kv == DType::kInt8) {
      return double{scales_[row]} * static_cast<int8_t>(numbers_[at]);
    }
    if (case_.kv == DType::kF32) {
      float x;
      std::memcpy(&x, &numbers_[at * 4], 4);
      return x;
    }
    uint16_t x;
    std::memcpy(&x, &numbers_[at * 2], 2);
    return case_.kv == DType::kBF16 ? bf16_to_f32(x) : f16_to_f32(x);
  }

  const std::vector<uint8_t>& numbers() const { return numbers_; }
  const std::vector<float>& scales() const { return scales_; }

 private:
  const float* numbers(const Sequence& s, int position, int head, bool value) const {
    const int heads = case_.n_heads() + (value ? case_.n_kv_heads : 0) + head;
    return s.qkv.data() + position * case_.row_size() + heads * case_.head_dim;
  }
  size_t row_of(const Sequence& s, int position, int head, bool value) const {
    const int block = s.block_table[static_cast<size_t>(position / case_.block_size)];
    return static_cast<size_t>(((block * 2 + (value ? 1 : 0)) * case_.n_kv_heads + head) *
                                   case_.block_size +
                               position % case_.block_size);
  }
  float scale_of(const float* x) const {
    float top = 0.0f;
    for (int d = 0; d < case_.head_dim; ++d) top = std::max(top, std::abs(x[d]));
    return top / 127.0f;
  }
  void write_number(size_t at, float x, size_t row) {
    if (case_.kv == DType::kInt8) {
      const float scale = scales_[row] > 0.0f ? scales_[row] : 1.0f;
      numbers_[at] =
          static_cast<uint8_t>(static_cast<int8_t>(std::isfinite(x) ? std::lrint(x / scale) : 127));
    } else if (case_.kv == DType::kF32) {
      std::memcpy(&numbers_[at * 4], &x, 4);
    } else {
      const uint16_t bits = case_.kv == DType::kBF16 ? f32_to_bf16(x) : f32_to_f16(x);
      std::memcpy(&numbers_[at * 2], &bits, 2);
    }
  }

  AttentionCase case_;
  size_t rows_;
  std::vector<uint8_t> numbers_;
  std::vector<float> scales_;
};

// Three sequences, of which two have a segment in common. rows: of each its first one in the pass,
// and how many.
struct ThreeSequences {
  std::vector<Sequence> sequences;
  KvCache cache;
  std::vector<Part> parts;

  ThreeSequences(const AttentionCase& c, const std::array<std::array<int, 2>, 3>& rows)
      : cache(c, 60) {
    sequences.push_back(make_sequence(c, 330, 11, 0));
    sequences.push_back(make_sequence(c, 300, 12, 20, &sequences[0], 256));
    sequences.push_back(make_sequence(c, 90, 13, 40));
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto [first, n] = rows[i];
      cache.write(sequences[i], 0, first + n);
      parts.push_back({&sequences[i], first, n});
    }
  }
  ThreeSequences(const ThreeSequences&) = delete;
};

// A RowBatch of parts, and what it points to.
struct Batch {
  std::vector<float> qkv;  // (n_rows, row_size)
  std::vector<int32_t> positions;
  std::vector<SequenceRows> sequences;
  RowBatch rows;

  Batch(const AttentionCase& c, std::span<const Part> parts) {
    for (const Part& part : parts) {
      const int first_row = static_cast<int>(positions.size());
      sequences.push_back({first_row, part.n, part.first, part.sequence->block_table.data()});
      for (int i = 0; i < part.n; ++i) positions.push_back(part.first + i);
      const auto from = part.sequence->qkv.begin() + part.first * c.row_size();
      qkv.insert(qkv.end(), from, from + part.n * c.row_size());
    }
    rows = {.n_rows = static_cast<int>(positions.size()),
            .positions = positions.data(),
            .sequences = sequences};
  }
  Batch(const Batch&) = delete;
};

inline cuda::AttentionDevice attention_device(const AttentionCase& c) {
  return {c.n_multiprocessors, test_device().properties().most_shared_bytes, c.maps};
}

inline cuda::AttentionKv attention_kv(const AttentionCase& c) {
  return {c.kv, c.head_dim, c.block_size};
}

inline cuda::AttentionPlan make_plan(const AttentionCase& c, const RowBatch& rows) {
  cuda::AttentionLimits limits;
  limits.max_rows = std::max(1, rows.n_rows);
  for (const SequenceRows& s : rows.sequences) {
    const int end = s.first_position + s.n_rows;
    limits.max_positions = std::max(limits.max_positions, end);
    limits.max_table_entries += (end + c.block_size - 1) / c.block_size;
  }
  limits.block_size = c.block_size;
  limits.group = c.group;
  limits.n_kv_heads = c.n_kv_heads;
  limits.head_dim = c.head_dim;
  limits.widest_window = c.planned_window < 0 ? c.sliding_window : c.planned_window;
  limits.causal = c.causal;
  limits.large_tile = c.large_tiles ? large_tile(attention_device(c), attention_kv(c)) : 0;
  limits.n_resident_blocks = resident_blocks(attention_device(c));
  limits.n_resident_large_blocks = resident_large_blocks(attention_device(c), attention_kv(c));
  limits.state_bytes = c.state_bytes;
  cuda::AttentionPlan plan(limits);
  plan.make(rows);
  return plan;
}

template <typename T>
DeviceArray<T> upload(std::span<const T> values) {
  return DeviceArray<T>(std::vector<T>(values.begin(), values.end()));
}

// How many items kernels by maps have left to those on mma.sync so far.
inline int& n_left_items() {
  static int n = 0;
  return n;
}

// One pass of attention. Returns the rows' outputs (out_size) in f32, in the order of the parts.
inline std::vector<std::vector<float>> attend(const AttentionCase& c, const KvCache& cache,
                                              std::span<const Part> parts) {
  Batch batch(c, parts);
  const cuda::AttentionPlan plan = make_plan(c, batch.rows);
  const cuda::AttentionDevice device = attention_device(c);
  const cuda::AttentionCounts counts = plan.counts();

  DeviceArray<float> qkv(batch.qkv);
  DeviceArray<uint8_t> numbers(cache.numbers());
  DeviceArray<float> scales(cache.scales());
  const DeviceArray<float> sinks(c.sinks);
  const float* const sinks_or_null = c.sinks.empty() ? nullptr : sinks.get();
  const DeviceArray<cuda::AttentionQuery> queries = upload(plan.queries());
  const DeviceArray<cuda::AttentionItem> small_items = upload(plan.small_items());
  const DeviceArray<cuda::AttentionItem> large_items = upload(plan.large_items());
  const DeviceArray<int32_t> split_queries = upload(plan.split_queries());
  const DeviceArray<int32_t> block_tables = upload(plan.block_tables());
  const DeviceArray<cuda::AttentionCounts> device_counts(
      std::vector<cuda::AttentionCounts>{counts});
  DeviceArray<float> states(static_cast<size_t>(plan.n_states() * c.n_kv_heads) *
                            static_cast<size_t>(c.head_dim + 2));
  const int64_t stride = (c.out_size() + 15) / 16 * 16;
  DeviceArray<uint8_t> out(static_cast<size_t>(batch.rows.n_rows * stride) * (c.out_bf16 ? 2 : 4));
  const auto* const at = reinterpret_cast<const int32_t*>(device_counts.get());

  int shift = 0;
  while (1 << shift < c.block_size) ++shift;
  cuda::AttentionParams params{
      .qkv = qkv.get(),
      .kv = {numbers.get(), scales.get(), c.n_kv_heads, shift, c.head_dim},
      .n_heads = c.n_heads(),
      .sliding_window = c.sliding_window,
      .after = c.after(),
      .scale = c.scale(),
      .softcap = c.softcap,
      .sinks = sinks_or_null,
      .queries = queries.get(),
      .items = small_items.get(),
      .n_items = at + offsetof(cuda::AttentionCounts, n_small_items) / sizeof(int32_t),
      .block_tables = block_tables.get(),
      .states = states.get(),
      .n_states = plan.n_states(),
      .out = out.get(),
      .out_stride = stride,
      .out_bf16 = c.out_bf16 ? 1 : 0,
      .left = nullptr};
  launch(cuda::launch_attention(device, c.kv, false, params));
  if (c.large_tiles && large_tile(device, attention_kv(c)) > 0) {
    params.items = large_items.get();
    params.n_items = at + offsetof(cuda::AttentionCounts, n_large_items) / sizeof(int32_t);
    const size_t n_left = plan.large_items().size() * static_cast<size_t>(c.n_kv_heads);
    DeviceArray<int32_t> left(std::vector<int32_t>(n_left, 0));
    if (has_tma_kernel(device, attention_kv(c)) && !c.maps_refused) {
      const auto map = test_device().make_tensor_map(tiled_kv(params.kv, cache.n_blocks()));
      if (!map) throw std::runtime_error("the driver makes no tensor map of keys and values");
      params.left = left.get();
      launch(cuda::launch_tma_attention(device, c.kv, params, *map));
      for (const int32_t is_left : left.host()) n_left_items() += is_left;
    }
    launch(cuda::launch_attention(device, c.kv, true, params));
    for (const int32_t is_left : left.host()) EXPECT_EQ(is_left, 0);
  }
  launch(cuda::launch_merge(
      device,
      {.states = states.get(),
       .n_states = plan.n_states(),
       .queries = queries.get(),
       .split_queries = split_queries.get(),
       .n_split_queries = at + offsetof(cuda::AttentionCounts, n_split_queries) / sizeof(int32_t),
       .n_heads = c.n_heads(),
       .n_kv_heads = c.n_kv_heads,
       .head_dim = c.head_dim,
       .sliding_window = c.sliding_window,
       .after = c.after(),
       .sinks = sinks_or_null,
       .out = out.get(),
       .out_stride = stride,
       .out_bf16 = params.out_bf16}));

  const std::vector<uint8_t> bytes = out.host();
  std::vector<std::vector<float>> rows;
  for (int r = 0; r < batch.rows.n_rows; ++r) {
    rows.emplace_back();
    for (int i = 0; i < c.out_size(); ++i) {
      const size_t number = static_cast<size_t>(r * stride + i);
      float x;
      if (c.out_bf16) {
        uint16_t bits;
        std::memcpy(&bits, &bytes[number * 2], 2);
        x = bf16_to_f32(bits);
      } else {
        std::memcpy(&x, &bytes[number * 4], 4);
      }
      rows.back().push_back(x);
    }
  }
  return rows;
}

}  // namespace pb::test
