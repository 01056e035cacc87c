#include "cpu/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/attention/kv_layout.h"

namespace pb::cpu {
namespace {

static_assert(kSegment == kAttentionSegment);

constexpr int kFanOutBits = 3;
constexpr int kFanOut = 1 << kFanOutBits;
constexpr int kLevels = 8;                // enough for 2^29 positions
constexpr int kTasksPerThread = 4;        // shares per thread, if the work is divided
constexpr int64_t kWorthThreads = 32768;  // fewer multiply-adds do not wake threads

// Returns the number of segments of a node.
constexpr int size_of(int level) { return 1 << (kFanOutBits * level); }

// The nodes of a level that cover the segments [first, end).
struct Nodes {
  int first;
  int end;
};
Nodes nodes_of(int first_segment, int end_segment, int level) {
  const int size = size_of(level);
  return {first_segment / size, (end_segment + size - 1) / size};
}

// Returns the first key that the query at `position` sees.
int first_seen(int position, const AttentionLayer& layer) {
  return layer.sliding_window > 0 ? std::max(0, position + 1 - layer.sliding_window) : 0;
}

// Returns the end of the keys that the query at `position` of a sequence sees.
int end_seen(int position, const SequenceRows& sequence, const AttentionLayer& layer) {
  if (layer.causal) return position + 1;
  const int end = sequence.end_position();
  return layer.sliding_window > 0 ? std::min(end, position + layer.sliding_window) : end;
}

}  // namespace

void AttentionRunner::prepare(int model, int max_rows, int n_heads,
                              std::span<const LayerStorage> storages) {
  const int threads = pool_.n_threads();
  std::vector<AttentionPlan>& plans = plans_[static_cast<size_t>(model)];
  plans = std::vector<AttentionPlan>(storages.size());
  size_t most_blocks = 0;
  for (size_t i = 0; i < storages.size(); ++i) {
    const LayerStorage& storage = storages[i];
    plans[i].reserve(max_rows, n_heads / storage.shape.n_heads, storage.group);
    most_blocks = std::max(most_blocks, plans[i].max_blocks());
    value_stride_ = std::max(value_stride_, value_stride_of(storage.shape.head_dim));
  }
  // A split block has at most kFanOut + 2 nodes for each share of the work.
  max_parts_ = threads == 1 ? 0 : (kFanOut + 2) * kTasksPerThread * threads;
  tasks_.reserve(most_blocks + static_cast<size_t>(max_parts_));
  splits_.reserve(static_cast<size_t>(max_parts_));
  scratch_ = AlignedBuffer(sizeof(float) * threads * kAttentionScratch);
  const auto slots = static_cast<size_t>(threads * kLevels + max_parts_);
  states_ = AlignedBuffer(sizeof(float) * slots * kQueriesPerBlock * (value_stride_ + 2));
}

void AttentionRunner::plan(const RowBatch& batch, int block_size) {
  model_ = static_cast<size_t>(batch.model);
  for (AttentionPlan& plan : plans_[model_]) plan.make(batch, block_size);
}

float* AttentionRunner::scratch_at(int worker) {
  return scratch_.as<float>() + static_cast<size_t>(worker) * kAttentionScratch;
}

SoftmaxState AttentionRunner::state_at(int slot) {
  float* base =
      states_.as<float>() + static_cast<size_t>(slot) * kQueriesPerBlock * (value_stride_ + 2);
  return {base, base + kQueriesPerBlock, base + 2 * kQueriesPerBlock};
}

SoftmaxState AttentionRunner::state_at(int worker, int level) {
  return state_at(worker * kLevels + level);
}

int AttentionRunner::part_slot(int kv_head, int part) const {
  return pool_.n_threads() * kLevels + kv_head * n_parts_ + part;
}

// Cuts the work of a kv head into tasks. Returns the number of multiply-adds of all heads.
int64_t AttentionRunner::make_tasks(const AttentionLayer& layer) {
  tasks_.clear();
  splits_.clear();
  n_parts_ = 0;
  int64_t keys = 0, segments = 0;  // each key and segment counts once per query
  const auto for_blocks = [&](auto body) {
    for (int b = 0; b < static_cast<int>(plan_->blocks().size()); ++b) {
      const AttentionPlan::Block& block = plan_->blocks()[static_cast<size_t>(b)];
      int lowest = std::numeric_limits<int>::max(), highest = 0;
      for (const AttentionPlan::Member& member : plan_->members(block)) {
        const int position = member.sequence->first_position;
        const int last = position + (member.first + member.n - 1) / plan_->group();
        lowest = std::min(lowest, first_seen(position + member.first / plan_->group(), layer));
        highest = std::max(highest, end_seen(last, *member.sequence, layer));
      }
      body(b, block.n_queries, lowest, highest);
    }
  };
  for_blocks([&](int, int n_queries, int lowest, int highest) {
    const Nodes nodes = nodes_of(lowest / kSegment, (highest + kSegment - 1) / kSegment, 0);
    keys += int64_t{n_queries} * (highest - lowest);
    segments += int64_t{n_queries} * (nodes.end - nodes.first);
  });
  const int64_t shares = int64_t{kTasksPerThread} * pool_.n_threads();
  const int64_t most = pool_.n_threads() == 1 ? std::numeric_limits<int>::max()
                                              : segments * layer.n_kv_heads / shares;
  for_blocks([&](int block, int, int lowest, int highest) {
    add_tasks(block, lowest / kSegment, (highest + kSegment - 1) / kSegment, most,
              layer.n_kv_heads);
  });
  return keys * 2 * layer.head_dim * layer.n_kv_heads;
}

// Adds the block as a whole, or its nodes of the highest level at which a node costs at most
// `most`. The cost is the number of segments times the number of queries.
void AttentionRunner::add_tasks(int block, int first_segment, int end_segment, int64_t most,
                                int n_kv_heads) {
  const int64_t queries = plan_->blocks()[static_cast<size_t>(block)].n_queries;
  if (queries * (end_segment - first_segment) > 2 * most) {
    int level = 0;
    while (queries * size_of(level + 1) <= most) ++level;
    const Nodes nodes = nodes_of(first_segment, end_segment, level);
    const int n = nodes.end - nodes.first;
    if (n > 1 && (n_parts_ + n) * n_kv_heads <= max_parts_) {
      splits_.push_back({block, level, nodes.first, n_parts_});
      for (int node = nodes.first; node < nodes.end; ++node) {
        tasks_.push_back({block, static_cast<int>(splits_.size()) - 1, node});
      }
      n_parts_ += n;
      return;
    }
  }
  tasks_.push_back({block, -1, 0});
}

AttentionRunner::Item AttentionRunner::make_item(const Pass& pass, int block, int kv_head) const {
  const AttentionLayer& layer = *pass.layer;
  const int64_t row_size =
      static_cast<int64_t>(layer.n_heads + 2 * layer.n_kv_heads) * layer.head_dim;
  Item item;
  item.args.layout = pass.layout;
  item.args.head = pass.keys + kv_head * pass.layout.head_bytes;
  item.args.scale = layer.scale;
  item.args.softcap = layer.softcap;
  item.members = plan_->members(plan_->blocks()[static_cast<size_t>(block)]);
  int lowest = std::numeric_limits<int>::max();
  int highest = 0;
  int query = 0;
  for (const AttentionPlan::Member& member : item.members) {
    int row = member.first / plan_->group();
    int head = member.first % plan_->group();
    for (const int end = query + member.n; query < end; ++query) {
      const int position = member.sequence->first_position + row;
      item.queries.q[query] = pass.qkv + (member.sequence->first_row + row) * row_size +
                              (kv_head * plan_->group() + head) * layer.head_dim;
      item.queries.begin[query] = first_seen(position, layer);
      item.queries.end[query] = end_seen(position, *member.sequence, layer);
      lowest = std::min(lowest, item.queries.begin[query]);
      highest = std::max(highest, item.queries.end[query]);
      if (++head == plan_->group()) head = 0, ++row;
    }
  }
  item.queries.n = query;
  item.first_segment = lowest / kSegment;
  item.end_segment = (highest + kSegment - 1) / kSegment;
  return item;
}

// A sink has no value, so it is added to the sum only, after all keys.
void AttentionRunner::finish(const Pass& pass, int block, int kv_head,
                             const SoftmaxState& state) const {
  const float* sinks =
      pass.layer->sinks == nullptr ? nullptr : pass.layer->sinks->values.as<float>();
  int query = 0;
  for (const AttentionPlan::Member& member :
       plan_->members(plan_->blocks()[static_cast<size_t>(block)])) {
    for (int i = member.first; i < member.first + member.n; ++i, ++query) {
      const int row = member.sequence->first_row + i / plan_->group();
      const int head = kv_head * plan_->group() + i % plan_->group();
      if (sinks != nullptr) state.sum[query] += std::exp(sinks[head] - state.max[query]);
      kernels_.finish_attention(pass.layout, state, query, pass.out->row(row),
                                head * pass.layout.head_dim);
    }
  }
}

// Members that share a segment have it in the same KV blocks, so one call reads the blocks for all
// of them.
void AttentionRunner::attend(const Item& item, int segment, float* scratch,
                             const SoftmaxState& out) const {
  AttentionArgs args = item.args;
  for (size_t m = 0; m < item.members.size();) {
    args.block_table = item.members[m].sequence->block_tables[layer_group_];
    args.first_query = args.end_query;
    do {
      args.end_query += item.members[m++].n;
    } while (m < item.members.size() && item.members[m].shared > segment);
    kernels_.attend_segment(args, item.queries, segment, scratch, out);
  }
}

// out = the state of a node of which the item sees at least a part.
void AttentionRunner::fold(const Item& item, int level, int node, int worker, const Done& done,
                           const SoftmaxState& out) {
  if (level == 0) return attend(item, node, scratch_at(worker), out);
  std::fill_n(out.max, item.queries.n, -std::numeric_limits<float>::infinity());
  std::fill_n(out.sum, item.queries.n, 0.0f);
  std::fill_n(out.accumulator, item.queries.n * value_stride_, 0.0f);
  const int below = level - 1;
  const Nodes seen = nodes_of(item.first_segment, item.end_segment, below);
  const int end = std::min((node + 1) * kFanOut, seen.end);
  for (int child = std::max(node * kFanOut, seen.first); child < end; ++child) {
    SoftmaxState part = state_at(worker, below);
    if (below == done.level) {
      part = state_at(done.first_slot + child - done.first_node);
    } else {
      fold(item, below, child, worker, done, part);
    }
    kernels_.merge_states(item.args.layout, item.queries, child * size_of(below) * kSegment,
                          (child + 1) * size_of(below) * kSegment, part, out);
  }
}

// Computes the state of the lowest inner node that covers the whole item. The level of that node
// does not change the result, because merging a state into an empty state returns the same state.
SoftmaxState AttentionRunner::fold_all(const Item& item, int worker, const Done& done) {
  int level = 1;
  while (size_of(level) < item.end_segment) ++level;
  const SoftmaxState total = state_at(worker, level);
  fold(item, level, 0, worker, done, total);
  return total;
}

// Sets the item's prefetch target to the keys that this thread reads first if its next task is
// `task`. If another thread takes the task, only the prefetch is wasted.
void AttentionRunner::expect(const Pass& pass, int64_t task, Item& item) const {
  const auto n_tasks = static_cast<int64_t>(tasks_.size());
  if (task >= n_tasks * pass.layer->n_kv_heads) return;
  const Task& next = tasks_[static_cast<size_t>(task % n_tasks)];
  const AttentionPlan::Member& member =
      plan_->members(plan_->blocks()[static_cast<size_t>(next.block)]).front();
  const int position = member.sequence->first_position + member.first / plan_->group();
  int segment = first_seen(position, *pass.layer) / kSegment;
  if (next.split >= 0) {
    const int size = size_of(splits_[static_cast<size_t>(next.split)].level);
    segment = std::max(segment, next.node * size);
  }
  const int first = segment * (kSegment / pass.layout.block_size);
  item.args.next_head = pass.keys + task / n_tasks * pass.layout.head_bytes;
  item.args.next_block_table = member.sequence->block_tables[layer_group_] + first;
  item.args.n_next_blocks = position / pass.layout.block_size + 1 - first;
}

void AttentionRunner::run_task(const Pass& pass, int64_t index, int worker) {
  const auto n_tasks = static_cast<int64_t>(tasks_.size());
  const Task& task = tasks_[static_cast<size_t>(index % n_tasks)];
  const int kv_head = static_cast<int>(index / n_tasks);
  Item item = make_item(pass, task.block, kv_head);
  expect(pass, index + pool_.n_threads(), item);
  if (task.split < 0) {
    return finish(pass, task.block, kv_head, fold_all(item, worker, Done{}));
  }
  const Split& split = splits_[static_cast<size_t>(task.split)];
  const int part = split.first_part + task.node - split.first_node;
  fold(item, split.level, task.node, worker, Done{}, state_at(part_slot(kv_head, part)));
}

void AttentionRunner::finish_split(const Pass& pass, const Split& split, int kv_head, int worker) {
  const Item item = make_item(pass, split.block, kv_head);
  const Done done{split.level, split.first_node, part_slot(kv_head, split.first_part)};
  finish(pass, split.block, kv_head, fold_all(item, worker, done));
}

void AttentionRunner::run(const float* qkv, const AttentionLayer& layer, const KvStorage& kv,
                          const RowsOut& out) {
  Pass pass{qkv, &layer, kv_layout(kv), nullptr, &out};
  pass.keys = kv.data.as<std::byte>() + layer.layer * pass.layout.layer_bytes;
  layer_group_ = static_cast<size_t>(layer.group);
  plan_ = &plans_[model_][static_cast<size_t>(layer.storage)];
  const int64_t work = make_tasks(layer);
  // Tasks of the same kv head are consecutive, so that a task finds the keys of the previous one in
  // the cache.
  const auto n_tasks = static_cast<int64_t>(tasks_.size());
  const int64_t grain = work < kWorthThreads ? n_tasks * layer.n_kv_heads : 1;
  pool_.parallel_for(n_tasks * layer.n_kv_heads, grain,
                     [&](int64_t begin, int64_t end, int worker) {
                       for (int64_t i = begin; i < end; ++i) run_task(pass, i, worker);
                     });
  const auto n_splits = static_cast<int64_t>(splits_.size());
  pool_.parallel_for(n_splits * layer.n_kv_heads, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      finish_split(pass, splits_[static_cast<size_t>(i % n_splits)], static_cast<int>(i / n_splits),
                   worker);
    }
  });
}

}  // namespace pb::cpu
