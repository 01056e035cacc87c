#include "cpu/attention.h"

#include <algorithm>
#include <limits>

#include "cpu/kv_layout.h"

namespace pb::cpu {
namespace {

static_assert(kSegment == kAttentionSegment);

constexpr int kItemsPerThread = 4;        // fewer than that are split by segments
constexpr int kSplitSlotsPerThread = 16;  // parts a round of a split pass may hold
constexpr int64_t kWorthThreads = 32768;  // multiply-adds below which threads are not woken

}  // namespace

void AttentionRunner::prepare(int max_rows, int n_heads, int head_dim) {
  const int threads = pool_.n_threads();
  value_stride_ = (head_dim + kLayoutVector - 1) / kLayoutVector * kLayoutVector;
  n_split_slots_ = kSplitSlotsPerThread * threads;
  // Blocks of a pass: full ones, and at most one rest for each sequence, of which there are at most
  // max_rows.
  const int64_t full_blocks = static_cast<int64_t>(max_rows) * n_heads / kQueriesPerBlock;
  blocks_.assign(full_blocks + max_rows, Block{});
  scores_ = AlignedBuffer(sizeof(float) * threads * kQueriesPerBlock * kSegment);
  const size_t slots =
      static_cast<size_t>(2 * threads) + n_split_slots_ + kItemsPerThread * threads;
  states_ = AlignedBuffer(sizeof(float) * slots * kQueriesPerBlock * (value_stride_ + 2));
}

SoftmaxState AttentionRunner::state_at(int slot) {
  float* base =
      states_.as<float>() + static_cast<size_t>(slot) * kQueriesPerBlock * (value_stride_ + 2);
  return {base, base + kQueriesPerBlock, base + 2 * kQueriesPerBlock};
}

void AttentionRunner::clear(const SoftmaxState& state) const {
  std::fill_n(state.max, kQueriesPerBlock, -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, kQueriesPerBlock, 0.0f);
  std::fill_n(state.accumulator, kQueriesPerBlock * value_stride_, 0.0f);
}

void AttentionRunner::plan_blocks(const RowBatch& batch, Pass& pass) {
  int n = 0;
  for (const SequenceRows& sequence : batch.sequences) {
    const int queries = sequence.n_rows * pass.group;
    for (int first = 0; first < queries; first += kQueriesPerBlock) {
      blocks_[n++] = {&sequence, first, std::min(kQueriesPerBlock, queries - first)};
    }
  }
  pass.n_blocks = n;
  pass.n_items = n * pass.layer->n_kv_heads;
}

AttentionRunner::Item AttentionRunner::make_item(const Pass& pass, int index) const {
  const AttentionLayer& layer = *pass.layer;
  const int kv_head = index / pass.n_blocks;
  const Block& block = blocks_[index % pass.n_blocks];
  const int64_t row_size =
      static_cast<int64_t>(layer.n_heads + 2 * layer.n_kv_heads) * layer.head_dim;
  Item item;
  item.args.layout = pass.layout;
  item.args.head = pass.keys + kv_head * pass.layout.head_bytes;
  item.args.pages = block.sequence->pages;
  item.args.scale = layer.scale;
  item.queries.n = block.n;
  int lowest = std::numeric_limits<int>::max();
  int highest = 0;
  for (int i = 0; i < block.n; ++i) {
    const int row = (block.first + i) / pass.group;
    const int head = kv_head * pass.group + (block.first + i) % pass.group;
    const int position = block.sequence->first_position + row;
    item.queries.q[i] =
        pass.qkv + (block.sequence->first_row + row) * row_size + head * layer.head_dim;
    item.queries.end[i] = position + 1;
    item.queries.begin[i] =
        layer.sliding_window > 0 ? std::max(0, position + 1 - layer.sliding_window) : 0;
    lowest = std::min(lowest, item.queries.begin[i]);
    highest = std::max(highest, item.queries.end[i]);
  }
  item.first_segment = lowest / kSegment;
  item.end_segment = (highest + kSegment - 1) / kSegment;
  return item;
}

void AttentionRunner::finish(const Pass& pass, int index, const SoftmaxState& state) const {
  const int kv_head = index / pass.n_blocks;
  const Block& block = blocks_[index % pass.n_blocks];
  for (int i = 0; i < block.n; ++i) {
    const int row = block.sequence->first_row + (block.first + i) / pass.group;
    const int head = kv_head * pass.group + (block.first + i) % pass.group;
    kernels_.finish_attention(pass.layout, state, i, pass.out->row(row),
                              head * pass.layout.head_dim);
  }
}

void AttentionRunner::run_whole(const Pass& pass, int64_t work) {
  const int64_t grain = work < kWorthThreads ? std::max(1, pass.n_items) : 1;
  pool_.parallel_for(pass.n_items, grain, [&](int64_t begin, int64_t end, int worker) {
    float* scores = scores_.as<float>() + static_cast<size_t>(worker) * kQueriesPerBlock * kSegment;
    const SoftmaxState part = state_at(2 * worker);
    const SoftmaxState total = state_at(2 * worker + 1);
    for (int64_t index = begin; index < end; ++index) {
      const Item item = make_item(pass, static_cast<int>(index));
      clear(total);
      for (int segment = item.first_segment; segment < item.end_segment; ++segment) {
        kernels_.attend_segment(item.args, item.queries, segment, scores, part);
        kernels_.merge_segment(pass.layout, item.queries, segment, part, total);
      }
      finish(pass, static_cast<int>(index), total);
    }
  });
}

void AttentionRunner::run_split(const Pass& pass, int n_segments) {
  const int threads = pool_.n_threads();
  const int first_part = 2 * threads;
  const int first_total = first_part + n_split_slots_;
  const int per_round = n_split_slots_ / pass.n_items;  // segments of each item
  for (int i = 0; i < pass.n_items; ++i) clear(state_at(first_total + i));
  for (int round = 0; round < n_segments; round += per_round) {
    const int in_round = std::min(per_round, n_segments - round);
    pool_.parallel_for(pass.n_items * in_round, 1, [&](int64_t begin, int64_t end, int worker) {
      float* scores =
          scores_.as<float>() + static_cast<size_t>(worker) * kQueriesPerBlock * kSegment;
      for (int64_t index = begin; index < end; ++index) {
        const Item item = make_item(pass, static_cast<int>(index / in_round));
        const int segment = item.first_segment + round + static_cast<int>(index % in_round);
        if (segment >= item.end_segment) continue;
        kernels_.attend_segment(item.args, item.queries, segment, scores,
                                state_at(first_part + static_cast<int>(index)));
      }
    });
    for (int i = 0; i < pass.n_items; ++i) {
      const Item item = make_item(pass, i);
      for (int j = 0; j < in_round; ++j) {
        const int segment = item.first_segment + round + j;
        if (segment >= item.end_segment) break;
        kernels_.merge_segment(pass.layout, item.queries, segment,
                               state_at(first_part + i * in_round + j), state_at(first_total + i));
      }
    }
  }
  for (int i = 0; i < pass.n_items; ++i) finish(pass, i, state_at(first_total + i));
}

void AttentionRunner::run(const float* qkv, const RowBatch& batch, const AttentionLayer& layer,
                          const KvStorage& kv, const RowsOut& out) {
  Pass pass{qkv, &layer, kv_layout(kv), nullptr, &out, layer.n_heads / layer.n_kv_heads, 0, 0};
  pass.keys = kv.data.as<std::byte>() + layer.layer * pass.layout.layer_bytes;
  plan_blocks(batch, pass);

  int n_segments = 0;
  int64_t work = 0;
  for (int i = 0; i < pass.n_blocks; ++i) {
    const Item item = make_item(pass, i);  // of kv head 0; the others see the same positions
    n_segments = std::max(n_segments, item.end_segment - item.first_segment);
    for (int q = 0; q < item.queries.n; ++q) work += item.queries.end[q] - item.queries.begin[q];
  }
  work *= int64_t{2} * layer.head_dim * layer.n_kv_heads;
  const int threads = pool_.n_threads();
  if (threads > 1 && n_segments > 1 && pass.n_items < kItemsPerThread * threads) {
    run_split(pass, n_segments);
  } else {
    run_whole(pass, work);
  }
}

}  // namespace pb::cpu
