// What tests of CUDA's mixtures of experts share: routing on the device, products of experts by any
// kernel, and the scalar references of both.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "cuda/experts/expert_launch.h"
#include "gemm_fixture.h"

namespace pb::test {

using cuda::ExpertTile;
using cuda::PairSizes;

// ExpertTiles with room for `room` tiles; those behind the last one are of no expert.
inline std::vector<int32_t> flat_tiles(const std::vector<ExpertTile>& tiles, size_t room) {
  std::vector<int32_t> flat(1 + 3 * room, -1);
  flat[0] = static_cast<int32_t>(tiles.size());
  for (size_t i = 0; i < tiles.size(); ++i) {
    flat[1 + 3 * i] = tiles[i].expert;
    flat[2 + 3 * i] = tiles[i].first;
    flat[3 + 3 * i] = tiles[i].n_rows;
  }
  return flat;
}
static_assert(sizeof(cuda::ExpertTiles) == 4 && sizeof(ExpertTile) == 12);

// How the pairs of each expert, begins[e] to begins[e + 1], are cut.
inline std::vector<ExpertTile> tiles_of(const std::vector<int32_t>& begins, int tile_rows) {
  std::vector<ExpertTile> tiles;
  for (int e = 0; e + 1 < static_cast<int>(begins.size()); ++e) {
    for (int first = begins[e]; first < begins[e + 1]; first += tile_rows) {
      tiles.push_back({e, first, std::min(tile_rows, begins[e + 1] - first)});
    }
  }
  return tiles;
}

// What routing made of rows of logits.
struct Routed {
  std::vector<int32_t> experts;  // (n_rows, k)
  std::vector<float> weights;    // (n_rows, k)
  std::vector<int32_t> pairs;    // (n_rows, k)
  std::vector<int32_t> begins;   // (n_experts + 1)
  std::vector<int32_t> tiles;    // flat, with room for most_expert_tiles
};

// How experts are chosen and weighed where it is not by their logits alone.
struct ByScore {
  std::vector<float> bias = {};  // (n_experts), or empty
  float scale = 1.0f;
  bool sigmoid = true;
};

// Runs both kernels. logits (n_rows, n_experts); scales (n_experts), or empty.
inline Routed route_rows(const std::vector<float>& logits, int n_experts, int k,
                         bool normalised = true, const std::vector<float>& scales = {},
                         int tile_rows = 8, const ByScore* by_score = nullptr) {
  const auto n_rows = static_cast<int>(logits.size()) / n_experts;
  const PairSizes sizes{n_rows, n_experts, k};
  const auto n_pairs = static_cast<size_t>(sizes.n_pairs());
  const bool has_bias = by_score != nullptr && !by_score->bias.empty();
  const DeviceArray<float> of_rows(logits), of_experts(scales);
  const DeviceArray<float> biases(has_bias ? by_score->bias : std::vector<float>());
  DeviceArray<int32_t> experts(n_pairs), pairs(n_pairs), begins(size_t(n_experts) + 1);
  DeviceArray<float> weights(n_pairs);
  DeviceArray<int32_t> tiles(1 + 3 * size_t(cuda::most_expert_tiles(sizes, tile_rows)));
  Product::launch_one(
      cuda::route_launch(n_rows, {.logits = of_rows.get(),
                                  .bias = has_bias ? biases.get() : nullptr,
                                  .scales = scales.empty() ? nullptr : of_experts.get(),
                                  .scale = by_score == nullptr ? 1.0f : by_score->scale,
                                  .sum_eps = kSigmoidSumEps,
                                  .n_experts = n_experts,
                                  .n_per_row = k,
                                  .sigmoid = by_score != nullptr && by_score->sigmoid ? 1 : 0,
                                  .normalised = normalised ? 1 : 0,
                                  .experts = experts.get(),
                                  .weights = weights.get()}));
  Product::launch_one(
      cuda::number_pairs_launch({.experts = experts.get(),
                                 .n_pairs = sizes.n_pairs(),
                                 .n_experts = n_experts,
                                 .tile_rows = tile_rows,
                                 .pairs = pairs.get(),
                                 .begins = begins.get(),
                                 .tiles = reinterpret_cast<cuda::ExpertTiles*>(tiles.get())}));
  return {experts.host(), weights.host(), pairs.host(), begins.host(), tiles.host()};
}

// The products of the experts of a layer, each with rows of its own, maybe none.
class ExpertProducts {
 public:
  // n_rows (n_experts): of each expert.
  ExpertProducts(const std::vector<int>& n_rows, int n_out, int n_in, DType dtype, bool has_bias,
                 uint32_t seed)
      : n_out_(n_out), dtype_(dtype), begins_{0} {
    for (size_t e = 0; e < n_rows.size(); ++e) {
      const auto number = static_cast<uint32_t>(e);
      problems_.push_back(
          Problem::random({n_rows[e], n_out, n_in, dtype}, has_bias, 100 * seed + number));
      begins_.push_back(begins_.back() + n_rows[e]);
    }
    layout_ = cuda::weight_layout(n_out, problems_[0].sizes.n_in, dtype);
    x_stride_ = round_up(layout_.n_in, 16);
    std::vector<cuda::ExpertWeight> table;
    for (const Problem& p : problems_) {
      // Weights that nobody wants are nowhere.
      weights_.push_back(
          p.sizes.n_rows == 0 ? nullptr : std::make_unique<DeviceWeight>(p.packed_w(), p.bias));
      const cuda::WeightPointers w =
          weights_.back() == nullptr ? cuda::WeightPointers{} : weights_.back()->pointers();
      table.push_back({.w = w.values, .scales = w.scales, .bias = w.bias});
    }
    table_ = std::make_unique<DeviceArray<cuda::ExpertWeight>>(table);
    put_rows();
  }

  // y (n_pairs, n_out), of tiles of tile_rows rows.
  std::vector<float> run(const GemmKernel& kernel, int tile_rows) const {
    const int n_experts = static_cast<int>(problems_.size());
    const PairSizes sizes{begins_.back(), n_experts, 1};
    const std::vector<ExpertTile> tiles = tiles_of(begins_, tile_rows);
    const DeviceArray<int32_t> flat(
        flat_tiles(tiles, static_cast<size_t>(cuda::most_expert_tiles(sizes, tile_rows))));
    DeviceArray<float> y(static_cast<size_t>(begins_.back()) * n_out_);
    Product::launch_one(cuda::expert_gemm_launch(
        sizes, layout_, kernel,
        {.x = dtype_ == DType::kF32 ? static_cast<const void*>(wide_->get()) : narrow_->get(),
         .x_stride = x_stride_,
         .weights = table_->get(),
         .tiles = reinterpret_cast<const cuda::ExpertTiles*>(flat.get()),
         .tile_rows = tile_rows,
         .y = y.get()}));
    return y.host();
  }

  // What an expert computes alone, and its part of y.
  const Problem& of_expert(size_t e) const { return problems_[e]; }
  std::vector<float> part_of_expert(const std::vector<float>& y, size_t e) const {
    return {y.begin() + ptrdiff_t{begins_[e]} * n_out_,
            y.begin() + ptrdiff_t{begins_[e + 1]} * n_out_};
  }

  // The same by the arithmetic of params_gemm.h: the bits of MmaModel::kSequential.
  std::vector<float> expected() const {
    std::vector<float> y;
    for (const Problem& p : problems_) {
      const std::vector<float> of_expert = chained(p);
      y.insert(y.end(), of_expert.begin(), of_expert.end());
    }
    return y;
  }

 private:
  void put_rows() {
    const size_t n = static_cast<size_t>(begins_.back()) * x_stride_;
    std::vector<float> rows(n, 0.0f);
    std::vector<__nv_bfloat16> narrow(n);
    size_t at = 0;
    for (const Problem& p : problems_) {
      for (int r = 0; r < p.sizes.n_rows; ++r, at += x_stride_) {
        std::copy_n(&p.x[size_t(r) * p.sizes.n_in], p.sizes.n_in, &rows[at]);
      }
    }
    for (size_t i = 0; i < n; ++i) narrow[i] = __float2bfloat16_rn(rows[i]);
    wide_ = std::make_unique<DeviceArray<float>>(rows);
    narrow_ = std::make_unique<DeviceArray<__nv_bfloat16>>(narrow);
  }

  int n_out_;
  DType dtype_;
  std::vector<int32_t> begins_;
  std::vector<Problem> problems_;  // (n_experts)
  cuda::WeightLayout layout_;
  int x_stride_ = 0;
  std::vector<std::unique_ptr<DeviceWeight>> weights_;  // (n_experts)
  std::unique_ptr<DeviceArray<cuda::ExpertWeight>> table_;
  std::unique_ptr<DeviceArray<float>> wide_;
  std::unique_ptr<DeviceArray<__nv_bfloat16>> narrow_;
};

}  // namespace pb::test
