// Rotary positions, norms of heads, the write of keys and values, and the copy of KV blocks.
#include <cmath>

#include "cases.h"
#include "cuda/attention/attention_launch.h"
#include "cuda_fixture.h"

namespace pb::bench {
namespace {

using namespace pb::test;

constexpr int kHeads = 3;
constexpr int kKvHeads = 2;
constexpr int kBlocks = 4;
constexpr int kBlockShift = 2;
constexpr int kPositions = 100;

template <typename Params>
void launch_one(const cuda::Launch<Params>& l) {
  launch(l.kernel, dim3(l.grid.x, l.grid.y, l.grid.z), dim3(l.threads), l.shared_bytes, l.params);
}

// layer_norm: of heads, -1 for none. has_axes: pair i is rotated by position i % 3 of its row;
// these differ by `spread`. What is left of q, keys, values and scales, in bytes.
std::vector<std::byte> rotate_and_store(DType kv, int head_dim, int layer_norm,
                                        bool norms_last = false, bool has_axes = false,
                                        int spread = 0) {
  const auto half = static_cast<size_t>(head_dim) / 2;
  std::vector<float> cosines, sines;
  for (size_t i = 0; i < kPositions * half; ++i) {
    // Halves of a circle in exact steps: cos and sin of libraries differ in last bits.
    const float t = static_cast<float>((i * 37) % 1024) / 1024.0f;
    const float square = 1.0f + t * t;
    cosines.push_back((1.0f - t * t) / square);
    sines.push_back(2.0f * t / square);
  }
  const std::vector<cuda::AttentionRow> rows = {{0, 13}, {7, 0}, {99, 3}, {8, 7}, {50, 6}};
  const size_t row_size = size_t{kHeads + 2 * kKvHeads} * head_dim;
  const size_t n = size_t{kBlocks * 2 * kKvHeads} << kBlockShift;
  const size_t number_size = kv == DType::kF32 ? 4 : kv == DType::kInt8 ? 1 : 2;
  Numbers numbers(1);
  DeviceArray<float> qkv(numbers.floats(rows.size() * row_size, 2.0f));
  const DeviceArray<float> q_weight(numbers.floats(head_dim)), q_bias(numbers.floats(head_dim));
  const DeviceArray<float> k_weight(numbers.floats(head_dim)), k_bias(numbers.floats(head_dim));
  const DeviceArray<float> v_weight(numbers.floats(head_dim));
  const DeviceArray<cuda::AttentionRow> device_rows(rows);
  const DeviceArray<int32_t> n_rows(std::vector<int32_t>{static_cast<int32_t>(rows.size())});
  std::vector<int32_t> axes, positions;
  for (size_t i = 0; i < half; ++i) axes.push_back(static_cast<int32_t>(i % 3));
  for (const cuda::AttentionRow& row : rows) {
    for (int axis = 0; axis < cuda::kRopePositions; ++axis) {
      positions.push_back((row.position + axis * spread) % kPositions);
    }
  }
  const DeviceArray<int32_t> device_axes(axes), device_positions(positions);
  const DeviceArray<float> device_cosines(cosines), device_sines(sines);
  DeviceArray<uint8_t> stored(n * head_dim * number_size);
  DeviceArray<float> scales(n);
  const bool normed = layer_norm >= 0;
  launch_one(cuda::launch_rope_store(
      kv, static_cast<int>(rows.size()) + 2,
      {.qkv = qkv.get(),
       .rows = device_rows.get(),
       .n_rows = n_rows.get(),
       .cosines = device_cosines.get(),
       .sines = device_sines.get(),
       .q_cosines = device_cosines.get(),
       .q_sines = device_sines.get(),
       .axes = has_axes ? device_axes.get() : nullptr,
       .rope_positions = device_positions.get(),
       .q_norm = {normed ? q_weight.get() : nullptr, q_bias.get(), 1e-5f, layer_norm > 0 ? 1 : 0},
       .k_norm = {normed ? k_weight.get() : nullptr, k_bias.get(), 1e-5f, layer_norm > 0 ? 1 : 0},
       .v_norm = {normed ? v_weight.get() : nullptr, nullptr, 1e-5f, 0},
       .norms_last = norms_last ? 1 : 0,
       .n_heads = kHeads,
       .n_computed = kHeads + 2 * kKvHeads,
       .kv = {stored.get(), scales.get(), kKvHeads, kBlockShift, head_dim}}));
  std::vector<std::byte> all;
  const auto add = [&all](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    all.insert(all.end(), bytes.begin(), bytes.end());
  };
  add(qkv.host());
  add(stored.host());
  add(scales.host());
  return all;
}

}  // namespace

void run_rope_cases(Cases& cases) {
  constexpr const char* kNorms[] = {"", ", rms_norm", ", layer_norm"};
  for (const DType kv : {DType::kF32, DType::kBF16, DType::kF16, DType::kInt8}) {
    for (const int head_dim : {6, 64, 128, 256, 512}) {
      for (const int layer_norm : {-1, 0, 1}) {
        const std::string name = std::string("rope_store ") + dtype_name(kv) + " of heads of " +
                                 std::to_string(head_dim) + kNorms[layer_norm + 1];
        cases.run<std::byte>({name, name, false},
                             [&] { return rotate_and_store(kv, head_dim, layer_norm); });
      }
      const std::string name = std::string("rope_store ") + dtype_name(kv) + " of heads of " +
                               std::to_string(head_dim) + ", then rms_norm";
      cases.run<std::byte>({name, name, false},
                           [&] { return rotate_and_store(kv, head_dim, 0, true); });
    }
  }
  for (const int64_t block_bytes : {int64_t{7}, int64_t{48}, int64_t{20000}}) {
    const std::string name = "copy_block of " + std::to_string(block_bytes) + " bytes";
    cases.run<uint8_t>({name, name, false}, [&] {
      std::vector<uint8_t> data(static_cast<size_t>(3 * 5 * block_bytes));
      for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 31 + i / 251);
      DeviceArray<uint8_t> device(data);
      launch_one(cuda::launch_copy_block(3, {device.get(), block_bytes, 5, 3, 1}));
      return device.host();
    });
  }
}

}  // namespace pb::bench
