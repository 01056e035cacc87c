// The Backend of NVIDIA GPUs.
//
// Operations put launches into the device's only stream and return; finish() waits for all of them.
// The host data of a pass (tokens, block tables, work lists, sampling parameters) is collected in
// pinned memory and copied at once.
#pragma once

#include <array>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/attention/attention_launch.h"
#include "cuda/attention/attention_plan.h"
#include "cuda/backend/cuda_experts.h"
#include "cuda/backend/cuda_recurrent.h"
#include "cuda/backend/decode_graphs.h"
#include "cuda/backend/pass_memory.h"
#include "cuda/driver/device.h"
#include "cuda/gemm/gemm_launch.h"
#include "cuda/sampling/sampling_launch.h"
#include "cuda/weights/pack.h"
#include "ops/backend.h"
#include "os/thread_pool.h"

namespace pb::cuda {

struct CudaOptions {
  bool graphs = true;  // decode passes are launched as graphs
  bool tma = true;     // if the GPU has TMA, large products copy their tiles by tensor maps
};

class CudaBackend final : public Backend {
 public:
  // `name` is the device's name as users know it. n_threads is the number of host threads that pack
  // weights.
  CudaBackend(std::unique_ptr<Device> device, std::string name, int n_threads,
              CudaOptions options = {});

  std::string device() const override { return name_; }
  std::string target() const override;
  int output_rows() const override { return kMostSampledRows; }
  int max_head_dim() const override { return kLargestPaddedDim; }
  bool takes_odd_heads() const override { return false; }  // a lane processes pairs of numbers
  int n_threads() const override { return pool_.n_threads(); }
  DType native_dtype(DType tensor) const override { return cuda::native_dtype(tensor); }
  // All weights except f32 are multiplied by bf16 activations.
  bool shares_activations(DType a, DType b) const override {
    return (a == DType::kF32) == (b == DType::kF32);
  }

  PackedMatrix pack(std::span<const TensorView> parts, std::span<const TensorView> biases,
                    DType dtype) override;
  std::string layout() const override;
  MatrixBytes matrix_bytes(int n_out, int n_in, DType dtype, bool) const override;
  Matrix place(PackedMatrix packed) override;
  Vector make_vector(const TensorView& view) override;
  Buffer make_buffer(size_t bytes) override;
  Activations make_activations(int max_rows, int cols, DType weights) override;
  RopeTable make_rope(std::span<const float> inv_freq, std::span<const float> factors,
                      std::span<const int32_t> axes) override;
  KvStorage make_kv(int n_blocks, int block_size, int n_layers, int n_kv_heads, int head_dim,
                    DType dtype) override;
  void prepare(const PassShape& shape) override;
  size_t memory_for_kv(size_t mapped_weights) override;

  void plan(const RowBatch& batch, const KvStorage& kv) override;
  void run_pass(PassRows rows, std::span<Sample> samples,
                FunctionRef<void(PassRows)> operations) override;
  void embed(const Matrix& table, float scale, Buffer& x) override;
  void embed_add(const Matrix& table, Buffer& x) override;
  void give_rows(int first_column, int columns, Store store, Buffer& x) override;
  void norm(const Buffer& x, Rows rows, const Norm& norm, Activations& out) override;
  void norm_in_place(Buffer& x, int n_rows, const Norm& norm) override;
  void norm_add(const Buffer& y, int n_rows, const Norm& norm, Buffer& x) override;
  void round(const Buffer& x, int n_rows, Activations& out) override;
  void permute(const Activations& x, int n_rows, const Buffer& order, Activations& out) override;
  void matmul(const Activations& x, int n_rows, const Matrix& w, Buffer& y, Store store) override;
  void rope_and_store(Buffer& qkv, const AttentionLayer& layer, KvStorage& kv) override;
  void attention(const Buffer& qkv, const AttentionLayer& layer, const KvStorage& kv,
                 Activations& out) override;
  void activate(const Buffer& gate_up, int n_rows, Activation kind, bool gated,
                Activations& out) override;
  void xielu(const Buffer& x, int n_rows, const Xielu& of_layer, Activations& out) override;
  void multiply_activated(const Buffer& gate, int n_rows, Activation kind, const Buffer& factors,
                          int n_factors, int first, Activations& out) override;
  void scale_logits(Buffer& logits, int n_rows, float scale, float softcap) override;
  void sample(const Buffer& logits, Rows rows, std::span<Sample> samples) override;
  void download(const Buffer& from, std::span<std::byte> to) override;
  ExpertOperations& experts() override { return experts_; }
  RecurrentOperations& recurrent() override { return recurrent_; }
  void copy_block(KvStorage& kv, int from, int to) override;

  void finish(Heartbeat& heartbeat) override;
  void restart() override;

  // Returns the driver's error if passes are launched without graphs because of one, else an empty
  // string.
  const std::string& graphs_problem() const { return graphs_->problem(); }

 private:
  friend class CudaExperts;
  friend class CudaRecurrent;

  // The sizes of a matrix product that passes compute, for any number of rows.
  struct Product {
    int n_out;
    int n_in;
    DType dtype;
    bool operator==(const Product&) const = default;
  };

  // The passes of one model: the plans of attention for its KV storages, and the host data.
  struct ModelPasses {
    PassShape shape;
    std::vector<AttentionPlan> attention_plans;  // (storages)
    std::vector<uint8_t> attention_lists;        // (storages), for the planned pass
    std::unique_ptr<PassMemory> memory;
  };

  struct RowsAt {
    const float* numbers;
    int64_t stride;
  };

  // Runs `operation` and stores its error for finish(). Does nothing after the first error.
  template <typename Operation>
  void attempt(Operation&& operation) noexcept {
    if (failure_ != nullptr) return;
    try {
      operation();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  Buffer upload(std::span<const std::byte> bytes);
  size_t gemm_scratch_for(int max_rows) const;
  AttentionLimits attention_limits(const PassShape& shape, const LayerStorage& storage) const;
  size_t plan_attention(const RowBatch& batch);
  void copy_given(std::span<const GivenRows> all);
  KvLayer kv_layer(const KvStorage& kv, int layer) const;
  const int32_t* row_numbers(Rows rows) const;
  void gather(const Matrix& table, const int32_t* ids, Buffer& x, Store store, float scale);
  void activate_rows(RowsAt gate, RowsAt up, int n_rows, Activation kind, Activations& out);
  void norm_whole(const Norm* norm, float* rows, int64_t row_size, int head_dim);

  // Returns true if every row of the planned pass is sampled and the rows are few enough for a
  // graph.
  bool is_decode_pass() const;
  void run_decode_pass(FunctionRef<void(PassRows)> operations);
  // Plans and uploads the samples of all rows. If there is no room for all score changes, returns
  // false and uploads nothing.
  bool plan_samples();
  void sample_planned(const Buffer& logits, Rows rows);
  void plan_and_sample(const Buffer& logits, Rows rows);
  void take_samples();

  CudaExperts experts_{*this};
  std::unique_ptr<Device> device_;
  std::string name_;
  CudaOptions options_;
  ThreadPool pool_;
  GemmDevice gemm_device_;
  AttentionDevice attention_device_;
  CudaRecurrent recurrent_{*this};
  std::vector<Product> products_;  // the distinct products of all matrices

  std::array<ModelPasses, kMostModels> models_;  // indexed by PassShape::model
  ModelPasses* model_ = &models_[0];             // of the planned pass
  PassMemory* pass_ = nullptr;                   // that of model_
  std::unique_ptr<SamplingPlanner> sampling_planner_;
  Buffer every_row_;     // (max_rows) i32: 0, 1, 2 ...
  Buffer gemm_scratch_;  // sums of segments
  Buffer left_items_;    // AttentionParams::left, sized for the largest plan
  // (n_kv_heads, n_states, head_dim + 2) of attention, sized for the largest plan
  Buffer states_;
  Buffer scores_;                                   // (kMostSampledRows, vocab) f32
  std::vector<SamplingRequest> sampling_requests_;  // (kMostSampledRows or kMostDecodeRows)
  // Declared last: graphs refer to the members above.
  std::unique_ptr<DecodeGraphs> graphs_;

  RowBatch batch_;      // the batch of the last plan()
  int n_rows_ = 0;      // number of rows that the operations compute, including padding
  size_t n_given_ = 0;  // given rows of the batch
  // True if all samples of the pass were planned before its operations.
  bool samples_planned_ = false;
  int n_sampled_ = 0;           // rows of the pass whose samples have been launched
  int n_taken_ = 0;             // rows whose samples have been written to samples_
  size_t n_changes_ = 0;        // score changes of the pass
  std::span<Sample> samples_;   // where take_samples() writes the samples
  std::exception_ptr failure_;  // the first error of an operation since the last finish()
};

}  // namespace pb::cuda
