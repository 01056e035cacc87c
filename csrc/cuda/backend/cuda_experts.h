// Mixtures of experts on CUDA: routing, row copies and products all run on the device. The host
// knows how many (row, expert) pairs there are, but not which.
#pragma once

#include <vector>

#include "cuda/experts/expert_launch.h"
#include "ops/experts.h"

namespace pb::cuda {

class CudaBackend;

class CudaExperts final : public ExpertOperations {
 public:
  // Launches go to the stream of `backend`, which owns this object.
  explicit CudaExperts(CudaBackend& backend) : backend_(backend) {}

  Routing make_routing(int max_rows, int n_experts, int n_per_row) override;
  ExpertMatrices collect(std::vector<Matrix> matrices) override;
  void route(const Buffer& logits, int n_rows, const RoutingRule& rule, Routing& routing) override;
  void gather(const Activations& x, int n_rows, const Routing& routing, Activations& out) override;
  void matmul(const Activations& x, int n_rows, const Routing& routing, const ExpertMatrices& w,
              Buffer& y) override;
  void clamped_swiglu(const Buffer& gate_up, int n_pairs, float alpha, float limit,
                      Activations& out) override;
  void combine(const Buffer& y, int n_rows, const Routing& routing, int hidden, Buffer& x,
               Store store) override;
  void add_shared(const Buffer& y, const Buffer& logits, int n_rows, int hidden,
                  Buffer& x) override;

 private:
  CudaBackend& backend_;
};

}  // namespace pb::cuda
