// Recurrent layers on CUDA.
#pragma once

#include "cuda/recurrent/recurrent_launch.h"
#include "ops/recurrent.h"
#include "ops/row_batch.h"

namespace pb {
struct PassShape;
}

namespace pb::cuda {

class CudaBackend;

class CudaRecurrent final : public RecurrentOperations {
 public:
  // Launches go to the stream of `backend`, which owns this object.
  explicit CudaRecurrent(CudaBackend& backend) : backend_(backend) {}

  // Allocates scratch memory at load time, if the model has recurrent layers.
  void prepare(const PassShape& shape);

  // Collects the host data of a pass for its upload. graph_rows is the number of rows, and of
  // sequences, of the pass's graph, or 0 without a graph. Rows and sequences beyond the batch's are
  // padding: no state is read or written for them.
  void plan(const RowBatch& batch, int graph_rows);

  int max_key_dim() const override { return kMostKeyDim; }
  KvStorage make_states(int n_blocks, int n_layers, const GatedDeltaNetShape& shape) override;
  KvStorage make_states(int n_blocks, int n_layers, const ShortConvShape& shape) override;
  void gated_delta_net(const Buffer& x, int n_rows, const GatedDeltaNetLayer& layer,
                       KvStorage& states, Buffer& y) override;
  void short_conv(const Buffer& x, int n_rows, const ShortConvLayer& layer, KvStorage& states,
                  Buffer& y) override;

 private:
  // of_layer is the number of floats of a layer's part of a block.
  KvStorage make_storage(int n_blocks, int n_layers, int64_t of_layer);
  StateBlocks layer_states(KvStorage& states, int layer, int64_t of_layer) const;

  CudaBackend& backend_;
  Buffer scratch_;  // the delta rule's scratch memory, with the layout of GatedDeltaNetScratchSizes
  int n_sequences_ = 0;  // of the planned pass, including padding
};

}  // namespace pb::cuda
