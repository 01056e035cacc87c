// Attention of a pass: the runner distributes the planned blocks of queries over the threads, and
// merges the segments of each block in a fixed order.
//
// The order is a tree over absolute positions: a node of level 0 is a segment, and a node of level
// l is the merge of kFanOut nodes of level l - 1 in ascending order. The amount of work determines
// where the tree is cut for the threads, so that a long context beside many short ones does not
// leave threads idle. The order of merges does not depend on the cut, and so neither do the bits.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "cpu/attention/attention_plan.h"
#include "cpu/dispatch/kernels.h"
#include "ops/backend.h"
#include "os/thread_pool.h"

namespace pb::cpu {

// The rows of Activations that kernels write to.
struct RowsOut {
  RowOut first;
  int64_t row_bytes = 0;
  int64_t group_stride = 0;

  RowOut row(int64_t r) const {
    RowOut out = first;
    out.numbers = static_cast<std::byte*>(first.numbers) + r * row_bytes;
    if (first.groups != nullptr) out.groups = first.groups + r * group_stride;
    return out;
  }
};

class AttentionRunner {
 public:
  AttentionRunner(const Kernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

  // Allocates memory for passes of a model: at most max_rows rows, for layers with these KV
  // storages.
  void prepare(int model, int max_rows, int n_heads, std::span<const LayerStorage> storages);

  // plan() and run() implement Backend::plan and Backend::attention. If rows are quantised, heads
  // consist of whole groups.
  void plan(const RowBatch& batch, int block_size);
  void run(const float* qkv, const AttentionLayer& layer, const KvStorage& kv, const RowsOut& out);

 private:
  // A block that is cut into nodes of one level of the tree, starting with first_node. The states
  // of the nodes are stored as parts of their kv head, starting with first_part.
  struct Split {
    int block;
    int level;
    int first_node;
    int first_part;
  };
  // A block as a whole (split < 0), or one node of a split block.
  struct Task {
    int block;
    int split;
    int node;
  };
  // A block with one kv head.
  struct Item {
    AttentionArgs args;
    QueryBlock queries;
    std::span<const AttentionPlan::Member> members;
    int first_segment;
    int end_segment;
  };
  struct Pass {
    const float* qkv;
    const AttentionLayer* layer;
    KvLayout layout;
    const std::byte* keys;
    const RowsOut* out;
  };
  // The nodes of an item that are already computed: nodes of one level, in consecutive slots of
  // states_.
  struct Done {
    int level = -1;
    int first_node = 0;
    int first_slot = 0;
  };

  int64_t make_tasks(const AttentionLayer& layer);
  void add_tasks(int block, int first_segment, int end_segment, int64_t most, int n_kv_heads);
  Item make_item(const Pass& pass, int block, int kv_head) const;
  void finish(const Pass& pass, int block, int kv_head, const SoftmaxState& state) const;
  void expect(const Pass& pass, int64_t task, Item& item) const;
  void run_task(const Pass& pass, int64_t task, int worker);
  void finish_split(const Pass& pass, const Split& split, int kv_head, int worker);

  void attend(const Item& item, int segment, float* scratch, const SoftmaxState& out) const;
  void fold(const Item& item, int level, int node, int worker, const Done& done,
            const SoftmaxState& out);
  SoftmaxState fold_all(const Item& item, int worker, const Done& done);

  float* scratch_at(int worker);
  SoftmaxState state_at(int slot);
  SoftmaxState state_at(int worker, int level);
  int part_slot(int kv_head, int part) const;

  const Kernels& kernels_;
  ThreadPool& pool_;
  std::array<std::vector<AttentionPlan>, kMostModels> plans_;  // (models, storages)
  size_t model_ = 0;                                           // of the planned pass
  const AttentionPlan* plan_ = nullptr;
  size_t layer_group_ = 0;  // of the current layer and of plan_
  int value_stride_ = 0;
  int max_parts_ = 0;          // in all kv heads
  int n_parts_ = 0;            // per kv head
  std::vector<Task> tasks_;    // per kv head
  std::vector<Split> splits_;  // per kv head
  AlignedBuffer scratch_;      // (threads, kAttentionScratch)
  AlignedBuffer states_;       // slots: one per thread and level, then max_parts_
};

}  // namespace pb::cpu
