#include "cuda/backend/pass_memory.h"

#include <algorithm>

#include "ops/row_batch.h"

namespace pb::cuda {

template <typename T>
void PassMemory::take(Mirrored<T>& array, size_t n) {
  constexpr size_t kAlignment = 256;
  array.offset = bytes_;
  array.capacity = n;
  bytes_ = (bytes_ + array.bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

template <typename T>
void PassMemory::locate(Mirrored<T>& array) {
  array.host = reinterpret_cast<T*>(host_.as<std::byte>() + array.offset);
  array.device = reinterpret_cast<T*>(memory_.as<std::byte>() + array.offset);
}

PassMemory::PassMemory(Device& device, const PassLimits& limits) : device_(device) {
  const auto each = [this](auto&& visit) {
    visit(tokens), visit(positions), visit(rope_positions), visit(given_rows);
    visit(logits_rows), visit(pooled_rows), visit(given);
    for (AttentionMemory& a : attention) {
      visit(a.counts), visit(a.rows), visit(a.queries);
      visit(a.small_items), visit(a.large_items), visit(a.split_queries);
    }
    visit(state_rows), visit(state_sequences), visit(state_blocks);
    visit(block_tables), visit(sampling), visit(changes), visit(sampled);
  };
  take(tokens, limits.max_rows);
  take(positions, limits.max_rows);
  take(rope_positions, limits.max_rows * kRopeAxes);
  take(given_rows, limits.given_columns == 0 ? 0 : limits.max_rows);
  take(logits_rows, limits.max_rows);
  take(pooled_rows, limits.max_rows);
  for (const AttentionMemoryLimits& of_plan : limits.attention) {
    AttentionMemory& a = attention.emplace_back();
    take(a.counts, 1);
    take(a.rows, limits.max_rows);
    take(a.queries, of_plan.max_queries);
    take(a.small_items, of_plan.max_small_items);
    take(a.large_items, of_plan.max_large_items);
    take(a.split_queries, of_plan.max_queries);
  }
  take(state_rows, limits.max_state_rows);
  take(state_sequences, limits.max_state_rows);
  take(state_blocks, limits.max_state_rows);
  take(block_tables, limits.max_block_tables);
  take(given, limits.max_rows * limits.given_columns);
  take(sampling, limits.max_rows);
  take(changes, limits.max_changes);
  take(sampled, limits.max_rows);
  host_ = device_.allocate_pinned(bytes_);
  memory_ = device_.allocate(bytes_);
  each([this](auto& array) { locate(array); });
}

void PassMemory::upload_plan(size_t n_block_tables) {
  const size_t bytes = block_tables.offset + n_block_tables * sizeof(int32_t);
  device_.copy_to_device(memory_.as(), host_.as(), bytes);
}

void PassMemory::upload_given(size_t n_values) {
  if (n_values > 0) device_.copy_to_device(given.device, given.host, n_values * sizeof(float));
}

void PassMemory::upload_sampling(size_t first_row, size_t n_rows, size_t first_change,
                                 size_t n_changes) {
  device_.copy_to_device(sampling.device + first_row, sampling.host + first_row,
                         n_rows * sizeof(RowSampling));
  if (n_changes == 0) return;
  device_.copy_to_device(changes.device + first_change, changes.host + first_change,
                         n_changes * sizeof(ScoreChange));
}

void PassMemory::download_samples(size_t first_row, size_t n_rows) {
  device_.copy_to_host(sampled.host + first_row, sampled.device + first_row,
                       n_rows * sizeof(SampledRow));
}

}  // namespace pb::cuda
