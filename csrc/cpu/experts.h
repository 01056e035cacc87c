// Mixtures of experts on the CPU: the products of cpu/dispatch/kernels.h over the rows of each
// expert.
#pragma once

#include <utility>
#include <vector>

#include "ops/experts.h"

namespace pb::cpu {

class CpuBackend;

class CpuExperts final : public ExpertOperations {
 public:
  // Uses the threads and kernels of `backend`, which owns this object.
  explicit CpuExperts(CpuBackend& backend) : backend_(backend) {}

  Routing make_routing(int max_rows, int n_experts, int n_per_row) override;
  ExpertMatrices collect(std::vector<Matrix> matrices) override {
    return {std::move(matrices), {}};
  }
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
  CpuBackend& backend_;
};

}  // namespace pb::cpu
