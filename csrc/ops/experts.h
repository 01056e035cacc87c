// The operations of mixtures of experts: which rows go to which expert, and the products of each
// expert with its rows alone.
//
// The contract of Backend holds: a row's result depends on that row alone, bit for bit, and no
// operation allocates or throws in a pass. An expert without rows costs nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/buffer.h"
#include "ops/tensors.h"

namespace pb {

// Which experts the rows of a pass go to. A pair is a row and one of its experts. Pairs are
// numbered expert by expert, and within an expert by row, so that an expert's rows are neighbours.
struct Routing {
  int n_experts = 0;
  int n_per_row = 0;
  Buffer experts;  // (max_rows, n_per_row) i32: the row's experts, ascending
  Buffer weights;  // (max_rows, n_per_row) f32: how much the expert's result counts
  Buffer pairs;    // (max_rows, n_per_row) i32: the number of the pair
  Buffer begins;   // (n_experts + 1) i32: the first pair of each expert; then that of nobody
  Buffer work;     // of the device: how it shares the pairs among its threads
};

// How a layer's router chooses experts and weighs them.
struct RoutingRule {
  // A score is the logit's sigmoid; else the logit's part of the softmax over all experts, in whose
  // stead the logit itself is compared if there is no bias.
  bool sigmoid = false;
  const Vector* bias = nullptr;    // (n_experts), added to scores where experts are chosen; or null
  bool normalised = false;         // the weights of a row's experts sum to 1, nearly if `sigmoid`
  float scale = 1.0f;              // multiplies weights
  const Vector* scales = nullptr;  // (n_experts), likewise, or null: all 1
};

// The matrix of each expert of a layer, all of one shape and dtype.
struct ExpertMatrices {
  std::vector<Matrix> of;  // (n_experts)
  Buffer table;            // of the device: where they lie

  DType dtype() const { return of.front().dtype; }
};

inline constexpr float kSigmoidSumEps = 1e-6f;

class ExpertOperations {
 public:
  virtual ~ExpertOperations() = default;

  // At load: room for passes of max_rows rows.
  virtual Routing make_routing(int max_rows, int n_experts, int n_per_row) = 0;

  // At load: `matrices`, one an expert, as products take them.
  virtual ExpertMatrices collect(std::vector<Matrix> matrices) = 0;

  // In a pass: chooses for every row the n_per_row experts of the greatest scores; of equal ones
  // that of the lower number. Weights are the softmax over all experts, or over the chosen ones
  // where `normalised`; or, of sigmoids, the scores without biases, divided where `normalised` by
  // their sum and kSigmoidSumEps.
  // logits (n_rows, n_experts) f32
  virtual void route(const Buffer& logits, int n_rows, const RoutingRule& rule,
                     Routing& routing) = 0;

  // out[pair] = x[row of the pair].  x (n_rows, n_in) -> out (n_rows * n_per_row, n_in)
  virtual void gather(const Activations& x, int n_rows, const Routing& routing,
                      Activations& out) = 0;

  // y[pair] = x[pair] W^T + bias, W being the expert's.
  // x (n_rows * n_per_row, n_in) -> y (n_rows * n_per_row, n_out) f32
  virtual void matmul(const Activations& x, int n_rows, const Routing& routing,
                      const ExpertMatrices& w, Buffer& y) = 0;

  // out = g sigmoid(alpha g) (u + 1), g = min(gate, limit), u = up between -limit and limit.
  // gate_up (n_pairs, 2n): gate, then up -> out (n_pairs, n).  n = out.cols
  virtual void clamped_swiglu(const Buffer& gate_up, int n_pairs, float alpha, float limit,
                              Activations& out) = 0;

  // x[row] (=|+=) the sum over its experts, in ascending order, of weight * y[pair]. The sum starts
  // at zero and goes to x at last.  y (n_rows * n_per_row, hidden), x (n_rows, hidden) f32
  virtual void combine(const Buffer& y, int n_rows, const Routing& routing, int hidden, Buffer& x,
                       Store store) = 0;

  // x[row] += sigmoid(logits[row]) * y[row].  logits (n_rows), y, x (n_rows, hidden) f32
  virtual void add_shared(const Buffer& y, const Buffer& logits, int n_rows, int hidden,
                          Buffer& x) = 0;
};

}  // namespace pb
