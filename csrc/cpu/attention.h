// Attention of a pass: cuts the rows into blocks of queries, shares these among the threads, and
// merges the segments of each in order.
//
// A block is up to kQueriesPerBlock queries of one sequence and kv head: neighbouring rows times
// the q heads that share the kv head. Where there are fewer blocks than would keep the threads busy
// (a decode with a long context), the segments of a block are shared too, and merged afterwards;
// the borders and the order are those of the unshared way, and so are the bits.
#pragma once

#include <cstdint>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "cpu/kernels.h"
#include "ops/backend.h"

namespace pb::cpu {

// The rows of Activations, for kernels to write to.
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

  // Allocates for passes of at most max_rows rows.
  void prepare(int max_rows, int n_heads, int head_dim);

  // See Backend::attention. Quantised rows: heads are whole groups.
  void run(const float* qkv, const RowBatch& batch, const AttentionLayer& layer,
           const KvStorage& kv, const RowsOut& out);

 private:
  // Queries [first, first + n) of a sequence: query i is row i / group, head i % group.
  struct Block {
    const SequenceRows* sequence;
    int first;
    int n;
  };
  // One block and one kv head.
  struct Item {
    AttentionArgs args;
    QueryBlock queries;
    int first_segment;
    int end_segment;
  };
  struct Pass {
    const float* qkv;
    const AttentionLayer* layer;
    KvLayout layout;
    const std::byte* keys;
    const RowsOut* out;
    int group;
    int n_blocks;
    int n_items;
  };

  void plan_blocks(const RowBatch& batch, Pass& pass);
  Item make_item(const Pass& pass, int index) const;
  SoftmaxState state_at(int slot);
  void clear(const SoftmaxState& state) const;
  void finish(const Pass& pass, int index, const SoftmaxState& state) const;
  void run_whole(const Pass& pass, int64_t work);
  void run_split(const Pass& pass, int n_segments);

  const Kernels& kernels_;
  ThreadPool& pool_;
  int value_stride_ = 0;
  int n_split_slots_ = 0;
  std::vector<Block> blocks_;
  AlignedBuffer scores_;  // (threads, kQueriesPerBlock, kSegment)
  AlignedBuffer
      states_;  // slots: two a thread, then n_split_slots_ parts, then split items' totals
};

}  // namespace pb::cpu
