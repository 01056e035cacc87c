// Recurrent layers on the CPU.
#pragma once

#include <cstdint>

#include "base/aligned_buffer.h"
#include "ops/recurrent.h"
#include "ops/row_batch.h"

namespace pb::cpu {

class CpuBackend;

class CpuRecurrent final : public RecurrentOperations {
 public:
  // Uses the threads and kernels of `backend`, which owns this object.
  explicit CpuRecurrent(CpuBackend& backend) : backend_(backend) {}

  KvStorage make_states(int n_blocks, int n_layers, const GatedDeltaNetShape& shape) override;
  KvStorage make_states(int n_blocks, int n_layers, const ShortConvShape& shape) override;
  void gated_delta_net(const Buffer& x, int n_rows, const GatedDeltaNetLayer& layer,
                       KvStorage& states, Buffer& y) override;
  void short_conv(const Buffer& x, int n_rows, const ShortConvLayer& layer, KvStorage& states,
                  Buffer& y) override;

 private:
  KvStorage make_storage(int n_blocks, int n_layers, int state_size);
  // Computes the rows of a sequence for a key head and its value heads, with a thread's scratch.
  void compute(const SequenceRows& rows, int key_head, const Buffer& x,
               const GatedDeltaNetLayer& layer, KvStorage& states, Buffer& y, float* scratch);

  CpuBackend& backend_;
  int64_t scratch_size_ = 0;  // floats per thread
  AlignedBuffer scratch_;     // (threads, scratch_size_)
};

}  // namespace pb::cpu
