#include "cpu/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/cpu_backend.h"
#include "cpu/weights/pack.h"

namespace pb::cpu {
namespace {

constexpr int kSegmentRows = 192;      // per expert, while a weight tile is in the cache
constexpr int kCombineColumns = 1024;  // per item of combine

// Rows of one expert that a task multiplies together.
struct Segment {
  int32_t expert;
  int32_t first;  // number of the first pair
  int32_t last;
};

// The contents of Routing::work.
struct Work {
  int64_t n_segments;
  Segment segments[];
};

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Writes to experts (k) the k experts with the greatest score(expert), in descending order; among
// equal scores the lower expert comes first. If scores are NaN, the choice is arbitrary but without
// duplicates.
template <typename Score>
void choose_greatest(Score score, int n, int k, int32_t* experts) {
  int chosen = 0;
  for (int e = 0; e < n; ++e) {
    const float own = score(e);
    if (chosen == k && !(own > score(experts[k - 1]))) continue;
    int at = chosen < k ? chosen++ : k - 1;
    for (; at > 0 && own > score(experts[at - 1]); --at) experts[at] = experts[at - 1];
    experts[at] = e;
  }
}

// Writes the parts of a softmax over logits (n) to parts (n).
void softmax(const float* logits, int n, float* parts) {
  const float greatest = *std::max_element(logits, logits + n);
  float sum = 0.0f;
  for (int e = 0; e < n; ++e) sum += parts[e] = std::exp(logits[e] - greatest);
  for (int e = 0; e < n; ++e) parts[e] /= sum;
}

// Sorts experts (k), which are in any order, and writes their weights (k).
void weigh_by_softmax(const float* logits, int n, int k, bool normalised, int32_t* experts,
                      float* weights) {
  // Biases may have chosen experts without the greatest logit, whose exponentials can all be 0
  // beside it.
  float greatest = logits[experts[0]];
  if (normalised) {
    for (int i = 1; i < k; ++i) greatest = std::max(greatest, logits[experts[i]]);
  } else {
    for (int e = 0; e < n; ++e) greatest = std::max(greatest, logits[e]);
  }
  std::sort(experts, experts + k);
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) sum += weights[i] = std::exp(logits[experts[i]] - greatest);
  if (!normalised) {
    sum = 0.0f;
    for (int e = 0; e < n; ++e) sum += std::exp(logits[e] - greatest);
  }
  for (int i = 0; i < k; ++i) weights[i] /= sum;
}

// Sorts experts (k), which are in any order, and writes their sigmoid weights (k).
void weigh_by_sigmoid(const float* logits, int k, bool normalised, int32_t* experts,
                      float* weights) {
  std::sort(experts, experts + k);
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) sum += weights[i] = sigmoid(logits[experts[i]]);
  for (int i = 0; normalised && i < k; ++i) weights[i] /= sum + kSigmoidSumEps;
}

// Computes the experts and weights (k) of a row from its logits (n).
void route_row(const float* logits, int n, int k, const RoutingRule& rule, int32_t* experts,
               float* weights) {
  const auto values = [](const Vector* v) {
    return v == nullptr ? nullptr : v->values.as<float>();
  };
  const float* const bias = values(rule.bias);
  const float* const scales = values(rule.scales);
  if (rule.sigmoid || bias != nullptr) {
    float scores[kMaxExperts];
    if (rule.sigmoid) {
      for (int e = 0; e < n; ++e) scores[e] = sigmoid(logits[e]);
    } else {
      softmax(logits, n, scores);
    }
    for (int e = 0; e < n; ++e) scores[e] += bias == nullptr ? 0.0f : bias[e];
    choose_greatest([&](int e) { return scores[e]; }, n, k, experts);
  } else {
    choose_greatest([&](int e) { return logits[e]; }, n, k, experts);
  }
  if (rule.sigmoid) {
    weigh_by_sigmoid(logits, k, rule.normalised, experts, weights);
  } else {
    weigh_by_softmax(logits, n, k, rule.normalised, experts, weights);
  }
  for (int i = 0; i < k; ++i) {
    weights[i] *= rule.scale;
    if (scales != nullptr) weights[i] *= scales[experts[i]];
  }
}

// Numbers the pairs by a counting sort by expert, in the order of the rows.
void number_pairs(int n_rows, Routing& routing) {
  const int n_experts = routing.n_experts;
  const int64_t n_pairs = static_cast<int64_t>(n_rows) * routing.n_per_row;
  const auto* experts = routing.experts.as<int32_t>();
  auto* pairs = routing.pairs.as<int32_t>();
  auto* begins = routing.begins.as<int32_t>();
  std::fill_n(begins, n_experts + 1, 0);
  for (int64_t i = 0; i < n_pairs; ++i) ++begins[experts[i] + 1];
  for (int e = 0; e < n_experts; ++e) begins[e + 1] += begins[e];
  for (int64_t i = 0; i < n_pairs; ++i) pairs[i] = begins[experts[i]]++;
  // Each has advanced to the next expert's begin.
  for (int e = n_experts; e > 0; --e) begins[e] = begins[e - 1];
  begins[0] = 0;
}

void cut_into_segments(Routing& routing) {
  const auto* begins = routing.begins.as<int32_t>();
  Work& work = *routing.work.as<Work>();
  work.n_segments = 0;
  for (int e = 0; e < routing.n_experts; ++e) {
    for (int first = begins[e]; first < begins[e + 1]; first += kSegmentRows) {
      work.segments[work.n_segments++] = {e, first, std::min(begins[e + 1], first + kSegmentRows)};
    }
  }
}

}  // namespace

Routing CpuExperts::make_routing(int max_rows, int n_experts, int n_per_row) {
  const auto n_pairs = static_cast<size_t>(max_rows) * static_cast<size_t>(n_per_row);
  const size_t max_segments = std::min(n_pairs, n_experts + n_pairs / kSegmentRows);
  Routing routing;
  routing.n_experts = n_experts;
  routing.n_per_row = n_per_row;
  routing.experts = backend_.make_buffer(n_pairs * sizeof(int32_t));
  routing.weights = backend_.make_buffer(n_pairs * sizeof(float));
  routing.pairs = backend_.make_buffer(n_pairs * sizeof(int32_t));
  routing.begins = backend_.make_buffer((static_cast<size_t>(n_experts) + 1) * sizeof(int32_t));
  routing.work = backend_.make_buffer(sizeof(Work) + max_segments * sizeof(Segment));
  return routing;
}

void CpuExperts::route(const Buffer& logits, int n_rows, const RoutingRule& rule,
                       Routing& routing) {
  const int n = routing.n_experts;
  const int k = routing.n_per_row;
  constexpr int64_t kWorkOfExp = 16;
  const int64_t work = int64_t{n_rows} * n * kWorkOfExp;
  backend_.for_rows(n_rows, work, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      route_row(logits.as<float>() + row * n, n, k, rule, routing.experts.as<int32_t>() + row * k,
                routing.weights.as<float>() + row * k);
    }
  });
  number_pairs(n_rows, routing);
  cut_into_segments(routing);
}

void CpuExperts::gather(const Activations& x, int n_rows, const Routing& routing,
                        Activations& out) {
  const int k = routing.n_per_row;
  const auto* pairs = routing.pairs.as<int32_t>();
  const size_t row_bytes = x.data.bytes() / static_cast<size_t>(x.max_rows);
  const size_t group_bytes = x.groups.bytes() / static_cast<size_t>(x.max_rows);
  const auto copy = [](const Buffer& from, Buffer& to, int64_t row, int64_t pair, size_t bytes) {
    std::memcpy(to.as<std::byte>() + pair * bytes, from.as<std::byte>() + row * bytes, bytes);
  };
  const auto work = static_cast<int64_t>(row_bytes + group_bytes) * n_rows * k / 8;
  backend_.for_rows(n_rows, work, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      for (int i = 0; i < k; ++i) {
        const int64_t pair = pairs[row * k + i];
        copy(x.data, out.data, row, pair, row_bytes);
        if (group_bytes > 0) copy(x.groups, out.groups, row, pair, group_bytes);
      }
    }
  });
}

// Tiles and rows, not experts, are divided among threads: an expert that has all the rows does not
// delay the others, and for a single row each thread reads a part of every expert.
void CpuExperts::matmul(const Activations& x, int, const Routing& routing, const ExpertMatrices& w,
                        Buffer& y) {
  const Matrix& any = w.of.front();
  const ProductKernel& kernel = backend_.product(any);
  const Work& segments = *routing.work.as<Work>();
  const int64_t all_tiles = tiles_of(any.n_out, kernel.tile.columns);
  const int64_t wanted = int64_t{CpuBackend::kItemsPerThread} * backend_.n_threads();
  const int64_t tiles = std::clamp(segments.n_segments * all_tiles / wanted, int64_t{1},
                                   std::min(all_tiles, int64_t{kernel.tiles_per_call.of_few_rows}));
  const int64_t calls = (all_tiles + tiles - 1) / tiles;  // per segment
  const int64_t n_items = segments.n_segments * calls;
  const int64_t n_pairs = routing.begins.as<int32_t>()[routing.n_experts];
  const int64_t work = n_pairs * any.n_in * any.n_out;
  const int64_t grain = std::clamp(CpuBackend::kWorthThreads * n_items / std::max<int64_t>(1, work),
                                   int64_t{1}, std::max<int64_t>(1, n_items / wanted));
  backend_.for_range(n_items, grain, work, [&](int64_t begin, int64_t end, int worker) {
    std::byte* scratch = backend_.scratch_.as<std::byte>() + backend_.scratch_bytes_ * worker;
    for (int64_t item = begin; item < end; ++item) {
      const Segment& segment = segments.segments[item / calls];
      const Matrix& matrix = w.of[static_cast<size_t>(segment.expert)];
      const int64_t tile = item % calls * tiles;
      const GemmArgs args{.weights = matrix.packed.as<std::byte>(),
                          .bias = matrix.bias.as<float>(),
                          .x = x.data.as<std::byte>(),
                          .x_stride = x.row_stride,
                          .groups = x.groups.as<RowGroup>(),
                          .group_stride = x.group_stride,
                          .y = y.as<float>(),
                          .y_stride = matrix.n_out,
                          .n_out = matrix.n_out,
                          .n_in = matrix.n_in,
                          .add = false,
                          .prefetch_quick = backend_.prefetch_quick_};
      // Some experts may be compressed and others not, but their tiles have the same columns.
      backend_.product(matrix).tiles(args, static_cast<int>(tile),
                                     static_cast<int>(std::min(all_tiles, tile + tiles)),
                                     segment.first, segment.last, scratch);
    }
  });
}

void CpuExperts::clamped_swiglu(const Buffer& gate_up, int n_pairs, float alpha, float limit,
                                Activations& out) {
  const auto kernel = backend_.kernels_.clamped_swiglu;
  backend_.activate_rows(gate_up, n_pairs, true, out,
                         [=](const float* gate, const float* up, const RowOut& to, int begin,
                             int end) { kernel(gate, up, alpha, limit, to, begin, end); });
}

void CpuExperts::combine(const Buffer& y, int n_rows, const Routing& routing, int hidden, Buffer& x,
                         Store store) {
  const int k = routing.n_per_row;
  const int64_t parts = (hidden + kCombineColumns - 1) / kCombineColumns;
  const int64_t work = int64_t{n_rows} * hidden * k;
  backend_.for_rows(n_rows * parts, work, [&](int64_t begin, int64_t end, int) {
    float sum[kCombineColumns];
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / parts;
      const int64_t first = item % parts * kCombineColumns;
      const auto n = static_cast<int>(std::min<int64_t>(kCombineColumns, hidden - first));
      std::fill_n(sum, n, 0.0f);
      for (int i = 0; i < k; ++i) {
        const int64_t pair = routing.pairs.as<int32_t>()[row * k + i];
        const float weight = routing.weights.as<float>()[row * k + i];
        const float* from = y.as<float>() + pair * hidden + first;
        for (int c = 0; c < n; ++c) sum[c] += weight * from[c];
      }
      float* to = x.as<float>() + row * hidden + first;
      if (store == Store::kSet) {
        std::copy_n(sum, n, to);
      } else {
        for (int c = 0; c < n; ++c) to[c] += sum[c];
      }
    }
  });
}

void CpuExperts::add_shared(const Buffer& y, const Buffer& logits, int n_rows, int hidden,
                            Buffer& x) {
  backend_.for_rows(n_rows, int64_t{2} * n_rows * hidden, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float share = sigmoid(logits.as<float>()[row]);
      const float* const from = y.as<float>() + row * hidden;
      float* const to = x.as<float>() + row * hidden;
      for (int c = 0; c < hidden; ++c) to[c] += share * from[c];
    }
  });
}

}  // namespace pb::cpu
