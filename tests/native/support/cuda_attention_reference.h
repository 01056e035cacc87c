// Attention by its definition, in double precision, to compare with what the CUDA kernels make.
#pragma once

#include <cmath>
#include <sstream>

#include "cuda_attention_fixture.h"

namespace pb::test {

inline constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kInt8};

// One head of one row in double precision: the result (head_dim), and the same of the magnitudes of
// the values, of which an error is a part.
struct Reference {
  std::vector<double> out;
  std::vector<double> magnitude;
};
// limit: behind the sequence's last row of the pass.
inline Reference reference(const AttentionCase& c, const KvCache& cache, const Sequence& s,
                           int position, int limit, int head) {
  const float* const q = s.qkv.data() + position * c.row_size() + head * c.head_dim;
  const int kv_head = head / c.group;
  const int begin = c.sliding_window > 0 ? std::max(0, position + 1 - c.sliding_window) : 0;
  const int end = std::min<int64_t>(limit, int64_t{position} + 1 + c.after());
  std::vector<double> scores;
  double top = -INFINITY;
  for (int at = begin; at < end; ++at) {
    double score = 0.0;
    for (int d = 0; d < c.head_dim; ++d) {
      float x = q[d] * c.scale();
      if (c.kv == DType::kF16) x = f16_to_f32(f32_to_f16(x));
      if (c.kv == DType::kBF16 || c.kv == DType::kInt8) x = bf16_to_f32(f32_to_bf16(x));
      score += double{x} * cache.read(s, at, kv_head, false, d);
    }
    if (c.softcap > 0.0f) score = c.softcap * std::tanh(score / c.softcap);
    scores.push_back(score);
    top = std::max(top, score);
  }
  Reference r{std::vector<double>(static_cast<size_t>(c.head_dim)),
              std::vector<double>(static_cast<size_t>(c.head_dim))};
  double sum = c.sinks.empty() ? 0.0 : std::exp(c.sinks[static_cast<size_t>(head)] - top);
  for (int at = begin; at < end; ++at) {
    const double weight = std::exp(scores[static_cast<size_t>(at - begin)] - top);
    sum += weight;
    for (int d = 0; d < c.head_dim; ++d) {
      const double v = weight * cache.read(s, at, kv_head, true, d);
      r.out[static_cast<size_t>(d)] += v;
      r.magnitude[static_cast<size_t>(d)] += std::abs(v);
    }
  }
  for (double& x : r.out) x /= sum;
  for (double& x : r.magnitude) x /= sum;
  return r;
}

// What rounding a weight once may change of a result, as a part of the values' magnitude, and a
// little for scores and sums in f32.
inline double tolerance(DType kv) {
  const double weight = kv == DType::kF32 ? 0.0 : kv == DType::kF16 ? 0x1p-11 : 0x1p-8;
  return weight + 0x1p-13;
}

inline void expect_near_definition(const AttentionCase& c, const KvCache& cache, const Part& part,
                                   const std::vector<float>& row, int position) {
  for (int head = 0; head < c.n_heads(); ++head) {
    const Reference r = reference(c, cache, *part.sequence, position, part.first + part.n, head);
    for (size_t d = 0; d < static_cast<size_t>(c.head_dim); ++d) {
      const float x = row[static_cast<size_t>(head * c.head_dim) + d];
      const double error = std::abs(x - r.out[d]);
      if (error <= tolerance(c.kv) * r.magnitude[d]) continue;
      std::ostringstream what;
      what << dtype_name(c.kv) << " head_dim " << c.head_dim << " group " << c.group << " window "
           << c.sliding_window << (c.causal ? "" : " not causal") << " position " << position
           << ": " << x << " is not " << r.out[d];
      fail(__FILE__, __LINE__, what.str());
      return;
    }
  }
}

// One sequence of `length`; its rows [first, length) in one pass.
inline void check_definition(const AttentionCase& c, int length, int first) {
  const Sequence s = make_sequence(c, length, 1, 1);
  KvCache cache(c, length / c.block_size + 2);
  cache.write(s, 0, length);
  const Part part{&s, first, length - first};
  const auto rows = attend(c, cache, {&part, 1});
  for (int i = 0; i < part.n; i += part.n > 20 ? 9 : 1) {
    expect_near_definition(c, cache, part, rows[static_cast<size_t>(i)], first + i);
  }
}

}  // namespace pb::test
