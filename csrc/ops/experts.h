// The operations of mixtures of experts: the routing of rows to experts, and the products of each
// expert with the rows that are routed to it.
//
// The contract of Backend holds: the result of a row depends on that row alone, bit for bit, and no
// operation allocates or throws in a pass. An expert without rows costs no time.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/buffer.h"
#include "ops/tensors.h"

namespace pb {

// The assignment of the rows of a pass to experts. A pair is a row and one of its experts. Pairs
// are numbered by expert and then by row, so that the pairs of an expert are contiguous.
struct Routing {
  int n_experts = 0;
  int n_per_row = 0;
  Buffer experts;  // (max_rows, n_per_row) i32: the row's experts, in ascending order
  Buffer weights;  // (max_rows, n_per_row) f32: the weight of the expert's result
  Buffer pairs;    // (max_rows, n_per_row) i32: the numbers of the row's pairs
  Buffer begins;   // (n_experts + 1) i32: the first pair of each expert; last their end
  Buffer work;     // used by the device to share the pairs among its threads
};

// The way in which a layer's router chooses experts and computes their weights.
struct RoutingRule {
  // True: the score of an expert is the sigmoid of its logit. False: it is the softmax over the
  // logits of all experts. Without a bias, comparing logits gives the same order, so that logits
  // are compared instead of the softmax.
  bool sigmoid = false;
  // (n_experts): added to scores for the choice of experts only; or null
  const Vector* bias = nullptr;
  // The weights of a row's experts sum to 1 (approximately if `sigmoid`).
  bool normalised = false;
  float scale = 1.0f;              // factor of all weights
  const Vector* scales = nullptr;  // (n_experts): factors of weights by expert; null = all 1
};

// The matrices of all experts of a layer, which have the same shape and dtype.
struct ExpertMatrices {
  std::vector<Matrix> of;  // (n_experts)
  Buffer table;            // used by the device to locate the matrices

  DType dtype() const { return of.front().dtype; }
};

inline constexpr float kSigmoidSumEps = 1e-6f;

class ExpertOperations {
 public:
  virtual ~ExpertOperations() = default;

  // Called when loading: allocates the routing of passes of up to max_rows rows.
  virtual Routing make_routing(int max_rows, int n_experts, int n_per_row) = 0;

  // Called when loading: prepares `matrices`, one per expert, for matmul().
  virtual ExpertMatrices collect(std::vector<Matrix> matrices) = 0;

  // Called in a pass: chooses for every row the n_per_row experts with the greatest scores; of
  // equal scores, the expert with the lower number. The weights are the softmax over all experts,
  // or over the chosen ones if `normalised`. If `sigmoid`, the weights are the scores without
  // biases, divided by their sum plus kSigmoidSumEps if `normalised`.
  // logits (n_rows, n_experts) f32
  virtual void route(const Buffer& logits, int n_rows, const RoutingRule& rule,
                     Routing& routing) = 0;

  // out[pair] = x[row of the pair].  x (n_rows, n_in) -> out (n_rows * n_per_row, n_in)
  virtual void gather(const Activations& x, int n_rows, const Routing& routing,
                      Activations& out) = 0;

  // y[pair] = x[pair] W^T + bias, with the W and the bias of the pair's expert.
  // x (n_rows * n_per_row, n_in) -> y (n_rows * n_per_row, n_out) f32
  virtual void matmul(const Activations& x, int n_rows, const Routing& routing,
                      const ExpertMatrices& w, Buffer& y) = 0;

  // out = g sigmoid(alpha g) (u + 1), where g = min(gate, limit), and u is up clamped to [-limit,
  // limit].
  // gate_up (n_pairs, 2n): gate, then up -> out (n_pairs, n).  n = out.cols
  virtual void clamped_swiglu(const Buffer& gate_up, int n_pairs, float alpha, float limit,
                              Activations& out) = 0;

  // x[row] (=|+=) the sum of weight * y[pair] over the row's experts in ascending order. The sum
  // starts at zero and is stored in or added to x at the end.  y (n_rows * n_per_row, hidden), x
  // (n_rows, hidden) f32
  virtual void combine(const Buffer& y, int n_rows, const Routing& routing, int hidden, Buffer& x,
                       Store store) = 0;

  // x[row] += sigmoid(logits[row]) * y[row].  logits (n_rows), y, x (n_rows, hidden) f32
  virtual void add_shared(const Buffer& y, const Buffer& logits, int n_rows, int hidden,
                          Buffer& x) = 0;
};

}  // namespace pb
