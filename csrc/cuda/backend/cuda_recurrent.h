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
  // Gives its launches to the stream of `backend`, whose part this is.
  explicit CudaRecurrent(CudaBackend& backend) : backend_(backend) {}

  // At load: room for what becomes of a pass's rows, where the model has such layers.
  void prepare(const PassShape& shape);

  // What a pass needs of the host, to be uploaded before it. graph_rows: those of its graph, which
  // serves as many sequences; 0 where it has none. Rows and sequences beyond the batch's are
  // nobody's: no state is read or written for them.
  void plan(const RowBatch& batch, int graph_rows);

  int max_key_dim() const override { return kMostKeyDim; }
  KvStorage make_states(int n_blocks, int n_layers, const DeltaShape& shape) override;
  KvStorage make_states(int n_blocks, int n_layers, const ShortConvShape& shape) override;
  void delta_rule(const Buffer& x, int n_rows, const DeltaLayer& layer, KvStorage& states,
                  Buffer& y) override;
  void short_conv(const Buffer& x, int n_rows, const ShortConvLayer& layer, KvStorage& states,
                  Buffer& y) override;

 private:
  // of_layer: numbers of a layer's part of a block.
  KvStorage make_storage(int n_blocks, int n_layers, int64_t of_layer);
  StateBlocks layer_states(KvStorage& states, int layer, int64_t of_layer) const;

  CudaBackend& backend_;
  Buffer scratch_;       // as DeltaScratchSizes has it, of the delta rule
  int n_sequences_ = 0;  // of the planned pass, with nobody's
};

}  // namespace pb::cuda
