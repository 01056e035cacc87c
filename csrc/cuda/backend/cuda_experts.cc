#include "cuda/backend/cuda_experts.h"

#include <span>
#include <utility>

#include "cuda/backend/cuda_backend.h"
#include "cuda/rows/rows_launch.h"
#include "cuda/weights/pack.h"

namespace pb::cuda {
namespace {

PairSizes sizes_of(int n_rows, const Routing& routing) {
  return {.n_rows = n_rows, .n_experts = routing.n_experts, .n_per_row = routing.n_per_row};
}

}  // namespace

Routing CudaExperts::make_routing(int max_rows, int n_experts, int n_per_row) {
  Routing routing;
  routing.n_experts = n_experts;
  routing.n_per_row = n_per_row;
  const PairSizes most = sizes_of(max_rows, routing);
  const auto n_pairs = static_cast<size_t>(most.n_pairs());
  routing.experts = backend_.make_buffer(n_pairs * sizeof(int32_t));
  routing.weights = backend_.make_buffer(n_pairs * sizeof(float));
  routing.pairs = backend_.make_buffer(n_pairs * sizeof(int32_t));
  routing.begins = backend_.make_buffer((static_cast<size_t>(n_experts) + 1) * sizeof(int32_t));
  routing.work = backend_.make_buffer(expert_tiles_bytes(most));
  return routing;
}

ExpertMatrices CudaExperts::collect(std::vector<Matrix> matrices) {
  std::vector<ExpertWeight> table;
  for (const Matrix& matrix : matrices) {
    const WeightPointers w = pointers_of(matrix);
    table.push_back({.w = w.values, .scales = w.scales, .bias = w.bias});
  }
  return {std::move(matrices), backend_.upload(std::as_bytes(std::span(table)))};
}

void CudaExperts::route(const Buffer& logits, int n_rows, const RoutingRule& rule,
                        Routing& routing) {
  const auto values = [](const Vector* v) {
    return v == nullptr ? nullptr : v->values.as<float>();
  };
  backend_.attempt([&] {
    const PairSizes pairs = sizes_of(n_rows, routing);
    Device& device = *backend_.device_;
    device.launch(route_launch(n_rows, {.logits = logits.as<float>(),
                                        .bias = values(rule.bias),
                                        .scales = values(rule.scales),
                                        .scale = rule.scale,
                                        .sum_eps = kSigmoidSumEps,
                                        .n_experts = routing.n_experts,
                                        .n_per_row = routing.n_per_row,
                                        .sigmoid = rule.sigmoid ? 1 : 0,
                                        .normalised = rule.normalised ? 1 : 0,
                                        .experts = routing.experts.as<int32_t>(),
                                        .weights = routing.weights.as<float>()}));
    device.launch(number_pairs_launch({.experts = routing.experts.as<int32_t>(),
                                       .n_pairs = pairs.n_pairs(),
                                       .n_experts = routing.n_experts,
                                       .tile_rows = expert_tile_rows(pairs, backend_.gemm_device_),
                                       .pairs = routing.pairs.as<int32_t>(),
                                       .begins = routing.begins.as<int32_t>(),
                                       .tiles = routing.work.as<ExpertTiles>()}));
  });
}

void CudaExperts::gather(const Activations& x, int n_rows, const Routing& routing,
                         Activations& out) {
  backend_.attempt([&] {
    const size_t row_bytes = x.data.bytes() / static_cast<size_t>(x.max_rows);
    backend_.device_->launch(gather_pairs_launch(n_rows, {.x = x.data.as<void>(),
                                                          .pairs = routing.pairs.as<int32_t>(),
                                                          .n_per_row = routing.n_per_row,
                                                          .row_bytes = static_cast<int>(row_bytes),
                                                          .out = out.data.as<void>()}));
  });
}

void CudaExperts::matmul(const Activations& x, int n_rows, const Routing& routing,
                         const ExpertMatrices& w, Buffer& y) {
  backend_.attempt([&] {
    const PairSizes pairs = sizes_of(n_rows, routing);
    const Matrix& any = w.of.front();
    const WeightLayout layout = weight_layout(any.n_out, any.n_in, any.dtype);
    const GemmKernel kernel =
        choose_expert_kernel(pairs, any.n_out, any.dtype, backend_.gemm_device_);
    backend_.device_->launch(
        expert_gemm_launch(pairs, layout, kernel,
                           {.x = x.data.as<void>(),
                            .x_stride = static_cast<int>(x.row_stride),
                            .weights = w.table.as<ExpertWeight>(),
                            .tiles = routing.work.as<ExpertTiles>(),
                            .tile_rows = expert_tile_rows(pairs, backend_.gemm_device_),
                            .y = y.as<float>()}));
  });
}

void CudaExperts::clamped_swiglu(const Buffer& gate_up, int n_pairs, float alpha, float limit,
                                 Activations& out) {
  backend_.attempt([&] {
    backend_.device_->launch(clamped_swiglu_launch(activation_dtype(out.dtype), n_pairs,
                                                   {.gate_up = gate_up.as<float>(),
                                                    .alpha = alpha,
                                                    .limit = limit,
                                                    .cols = out.cols,
                                                    .out = out.data.as<void>(),
                                                    .row_stride = out.row_stride}));
  });
}

void CudaExperts::combine(const Buffer& y, int n_rows, const Routing& routing, int hidden,
                          Buffer& x, Store store) {
  backend_.attempt([&] {
    backend_.device_->launch(combine_pairs_launch(n_rows, {.y = y.as<float>(),
                                                           .pairs = routing.pairs.as<int32_t>(),
                                                           .weights = routing.weights.as<float>(),
                                                           .n_per_row = routing.n_per_row,
                                                           .hidden = hidden,
                                                           .x = x.as<float>(),
                                                           .adds = store == Store::kAdd ? 1 : 0}));
  });
}

void CudaExperts::add_shared(const Buffer& y, const Buffer& logits, int n_rows, int hidden,
                             Buffer& x) {
  backend_.attempt([&] {
    backend_.device_->launch(add_shared_launch(
        n_rows,
        {.y = y.as<float>(), .logits = logits.as<float>(), .hidden = hidden, .x = x.as<float>()}));
  });
}

}  // namespace pb::cuda
