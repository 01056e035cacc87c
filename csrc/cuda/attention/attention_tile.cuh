// Attention over a paged KV cache on tensor cores, with the same arithmetic for one row and for
// many.
//
// Positions are processed in chunks that are cut by absolute position: mma over head_dim computes
// the scores of the queries, the weights are relative to the greatest score so far, and mma over
// positions adds the values. After 256 positions the state is complete and is written, or merged
// with the states before it. The other queries of a tile change no bit of a query: the rows of an
// mma are independent, a position that a query does not see has the weight 0, and 0 times a finite
// value adds nothing. If a value that only some queries see is not finite, each query's values are
// added separately, with zeros at the positions that the query does not see.
#pragma once

#include "cuda/attention/kv_tiles.cuh"
#include "cuda/attention/softmax_state.cuh"
#include "cuda/device_code/lane_totals.cuh"
#include "cuda/rows/softcap.cuh"

namespace pb::cuda {
namespace {

// A warp's share of a tile: 16 queries and some columns of their values. Lane l has the queries l /
// 4 and l / 4 + 8, and of every eight positions or columns number 2 (l % 4) and the next.
template <typename Tile>
struct WarpTile {
  using Kv = typename Tile::Kv;
  static constexpr int kChunk = Tile::kChunk;

  int lane;
  int first_query;   // index in the tile
  int first_column;  // index in head_dim
  int begin[2];      // positions that the lane's queries see
  int end[2];
  int any_begin, any_end;        // seen by at least one of the warp's queries (the tile's,
  int common_begin, common_end;  // if kDecideTogether); seen by all of them

  float scores[kChunk / 8][4];
  unsigned weights[kChunk / 16][4];  // as fragments of an mma
  float values[Tile::kColumnTiles][4];
  float greatest[2];
  float sum[2];  // over this lane's positions only
  LaneTotals<Tile> totals;
  float total_greatest[2];
  float total_sum[2];

  __device__ __forceinline__ int column(int tile, int i) const {
    return first_column + tile * 8 + lane % 4 * 2 + i;
  }

  __device__ __forceinline__ bool sees(int query, int position) const {
    return position >= begin[query] && position < end[query];
  }

  __device__ __forceinline__ void find_queries(const AttentionParams& p,
                                               const AttentionItem& item) {
    any_begin = common_end = 0x7fffffff;
    any_end = common_begin = 0;
    for (int r = 0; r < 2; ++r) {
      const int i = first_query + lane / 4 + 8 * r;
      begin[r] = end[r] = 0;
      if (i >= item.n_queries) continue;
      const AttentionQuery query = p.queries[item.first_query + i];
      begin[r] = begin_of(query.end, p.sliding_window);
      end[r] = end_of(query.end, query.limit, p.after);
      add_range(begin[r], end[r]);
    }
    join_ranges(4);
    if constexpr (Tile::kDecideTogether) {  // all warps take the same decisions
      const int first = first_query / Tile::kQueries * Tile::kQueries;
      for (int i = first + lane; i < first + Tile::kQueries && i < item.n_queries; i += 32) {
        const AttentionQuery query = p.queries[item.first_query + i];
        add_range(begin_of(query.end, p.sliding_window), end_of(query.end, query.limit, p.after));
      }
      join_ranges(1);
    }
  }

  __device__ __forceinline__ void add_range(int from, int until) {
    any_begin = from < any_begin ? from : any_begin;
    any_end = until > any_end ? until : any_end;
    common_begin = from > common_begin ? from : common_begin;
    common_end = until < common_end ? until : common_end;
  }
  // Joins the ranges of lanes whose distance is a multiple of `step`.
  __device__ __forceinline__ void join_ranges(int step) {
    for (; step < 32; step *= 2) {
      const int a = __shfl_xor_sync(0xffffffffu, any_begin, step);
      const int b = __shfl_xor_sync(0xffffffffu, any_end, step);
      const int c = __shfl_xor_sync(0xffffffffu, common_begin, step);
      const int d = __shfl_xor_sync(0xffffffffu, common_end, step);
      any_begin = a < any_begin ? a : any_begin;
      any_end = b > any_end ? b : any_end;
      common_begin = c > common_begin ? c : common_begin;
      common_end = d < common_end ? d : common_end;
    }
  }

  __device__ __forceinline__ void begin_segment() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      greatest[r] = minus_infinity();
      sum[r] = 0.0f;
    }
#pragma unroll
    for (int t = 0; t < Tile::kColumnTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[t][i] = 0.0f;
    }
  }

  __device__ __forceinline__ void begin_total(float* shared_totals) {
    totals.take(shared_totals);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total_greatest[r] = minus_infinity();
      total_sum[r] = 0.0f;
    }
#pragma unroll
    for (int t = 0; t < Tile::kColumnTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) totals.at(t, i) = 0.0f;
    }
  }

  // scores = q k, with q (kQueries, kStride) and keys (kChunk, kStride) in shared memory.
  __device__ __forceinline__ void make_scores(const uint16_t* q, const uint16_t* keys) {
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
    }
    const uint16_t* const own_q = q + (first_query + lane % 16) * Tile::kStride + lane / 16 * 8;
    const uint16_t* const own_key =
        keys + (lane % 8 + lane / 16 * 8) * Tile::kStride + lane / 8 % 2 * 8;
#pragma unroll Tile::kUnrolledScores
    for (int d = 0; d < Tile::kDim; d += 16) {
      unsigned a[4];
      ldmatrix_x4(a, own_q + d);
#pragma unroll
      for (int n = 0; n < kChunk / 8; n += 2) {
        unsigned both[4];
        ldmatrix_x4(both, own_key + n * 8 * Tile::kStride + d);
        const unsigned first[2] = {both[0], both[1]};
        const unsigned second[2] = {both[2], both[3]};
        Kv::mma(scores[n], a, first);
        Kv::mma(scores[n + 1], a, second);
      }
    }
  }

  // Applies the keys' scales and the soft cap. Called before hide_unseen(), which sets scores to
  // minus infinity.
  __device__ __forceinline__ void scale_scores(float softcap, const SharedTile& shared) {
    if constexpr (Kv::kScaled) {
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scores[n][i] *= shared.key_scales[n * 8 + lane % 4 * 2 + i % 2];
        }
      }
    }
    if (softcap > 0.0f) {
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[n][i] = soft_cap(scores[n][i], softcap);
      }
    }
  }

  // weights = exp(scores - greatest). The sums and values so far are scaled to the new greatest
  // score.
  __device__ __forceinline__ void make_weights(int chunk, const SharedTile& shared) {
    float factors[2];
    hide_unseen(chunk);
    weigh_scores(factors);
    scale_values(factors);
    take_weights(chunk, shared);
  }

  __device__ __forceinline__ bool all_see(int chunk) const {
    return common_begin <= chunk * kChunk && (chunk + 1) * kChunk <= common_end;
  }

  // Sets the scores of positions that a query does not see to minus infinity.
  __device__ __forceinline__ void hide_unseen(int chunk) {
    if (all_see(chunk)) return;
    const int first = chunk * kChunk + lane % 4 * 2;  // number i of tile n is first + 8 n + i
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!sees(i / 2, first + n * 8 + i % 2)) scores[n][i] = minus_infinity();
      }
    }
  }

  // Replaces scores by exp(scores - greatest). factors: the values so far have to be multiplied by
  // them.
  __device__ __forceinline__ void weigh_scores(float (&factors)[2]) {
    constexpr int kAtOnce = Tile::kDecideTogether ? 2 : 1;  // both queries, if there are registers
#pragma unroll
    for (int first = 0; first < 2; first += kAtOnce) {
      float top[2] = {greatest[0], greatest[1]};
      float base[2];
      float part[2] = {0.0f, 0.0f};
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n) {
#pragma unroll
        for (int i = 2 * first; i < 2 * (first + kAtOnce); ++i) {
          top[i / 2] = fmaxf(top[i / 2], scores[n][i]);
        }
      }
#pragma unroll
      for (int r = first; r < first + kAtOnce; ++r) {
        for (int step = 1; step < 4; step *= 2) {
          top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], step));
        }
        base[r] = softmax_base(top[r]);
        factors[r] = exp_of(greatest[r] - base[r]);
        greatest[r] = top[r];
      }
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n) {
#pragma unroll
        for (int i = 2 * first; i < 2 * (first + kAtOnce); ++i) {
          scores[n][i] = exp_of(scores[n][i] - base[i / 2]);
          part[i / 2] += scores[n][i];
        }
      }
#pragma unroll
      for (int r = first; r < first + kAtOnce; ++r) {
        sum[r] = __fmaf_rn(sum[r], factors[r], part[r]);
      }
    }
  }

  __device__ __forceinline__ void scale_values(const float (&factors)[2]) {
    const bool is_new = factors[0] != 1.0f || factors[1] != 1.0f;
    if (__ballot_sync(0xffffffffu, is_new) == 0) return;  // a factor of 1 changes nothing
#pragma unroll
    for (int t = 0; t < Tile::kColumnTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[t][i] *= factors[i / 2];
    }
  }

  // weights = scores, times the values' scales if the type has scales.
  __device__ __forceinline__ void take_weights(int chunk, const SharedTile& shared) {
#pragma unroll
    // An mma's sums have the layout of the next mma's inputs.
    for (int n = 0; n < kChunk / 8; ++n) {
      if constexpr (Kv::kScaled) {
        const int first = chunk * kChunk + lane % 4 * 2;
        const auto* scales = reinterpret_cast<const float2*>(shared.value_scales + lane % 4 * 2);
        const float2 scale = scales[n * 4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // the scale of an unseen position may be NaN
          if (!all_see(chunk) && !sees(i / 2, first + n * 8 + i % 2)) continue;
          scores[n][i] *= i % 2 == 0 ? scale.x : scale.y;
        }
      }
      weights[n / 2][n % 2 * 2] = Kv::pack(scores[n][0], scores[n][1]);
      weights[n / 2][n % 2 * 2 + 1] = Kv::pack(scores[n][2], scores[n][3]);
    }
  }

  // Returns true if the chunk has a non-finite value in this warp's columns at a position that the
  // tile sees but not every query of the warp (of the tile, if kDecideTogether). The tile sees the
  // positions [seen_begin, seen_end).
  __device__ __forceinline__ bool must_add_alone(int chunk, int seen_begin, int seen_end,
                                                 const uint16_t* shared_values) const {
    if constexpr (Kv::kScaled) return false;
    const int first = chunk * kChunk;
    const int from = seen_begin > first ? seen_begin : first;
    const int until = seen_end < first + kChunk ? seen_end : first + kChunk;
    if (from >= common_begin && until <= common_end) return false;
    constexpr int kPairs = Tile::kColumns / 2;
    bool finite = true;
    for (int i = lane; i < kChunk * kPairs; i += 32) {
      const int at = i / kPairs;
      if (first + at >= common_begin && first + at < common_end) continue;
      const uint16_t* pair = Tile::number(shared_values, at, first_column + i % kPairs * 2);
      finite = finite && Kv::finite(*reinterpret_cast<const unsigned*>(pair));
    }
    return __ballot_sync(0xffffffffu, !finite) != 0;
  }

  // values += weights v, with shared_values (kChunk, kStride).
  __device__ __forceinline__ void add_values(const uint16_t* shared_values) {
    const uint16_t* const own = shared_values + lane * Tile::kStride + first_column;
#pragma unroll
    for (int t = 0; t < Tile::kColumnTiles; ++t) {
#pragma unroll
      for (int k = 0; k < kChunk / 16; k += 2) {
        unsigned both[4];
        ldmatrix_x4<true>(both, own + k * 16 * Tile::kStride + t * 8);
        const unsigned first[2] = {both[0], both[1]};
        const unsigned second[2] = {both[2], both[3]};
        Kv::mma(values[t], weights[k], first);
        Kv::mma(values[t], weights[k + 1], second);
      }
    }
  }

  // Computes the products of add_values() once for each of the 16 queries, with zeros for the
  // values that the query does not see, and keeps that query's results only.
  __device__ __forceinline__ void add_values_alone(int chunk, const uint16_t* shared_values) {
    const uint16_t* const own = shared_values + lane * Tile::kStride + first_column;
#pragma unroll
    for (int t = 0; t < Tile::kColumnTiles; ++t) {
#pragma unroll
      for (int k = 0; k < kChunk / 16; k += 2) {
        unsigned both[4];
        ldmatrix_x4<true>(both, own + k * 16 * Tile::kStride + t * 8);
        const int first = chunk * kChunk + k * 16 + lane % 4 * 2;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll 1
          for (int g = 0; g < 8; ++g) {
            const int b = __shfl_sync(0xffffffffu, begin[r], 4 * g);
            const int e = __shfl_sync(0xffffffffu, end[r], 4 * g);
            const unsigned one[2] = {seen_pair(both[0], first, b, e),
                                     seen_pair(both[1], first + 8, b, e)};
            const unsigned two[2] = {seen_pair(both[2], first + 16, b, e),
                                     seen_pair(both[3], first + 24, b, e)};
            float alone[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) alone[i] = values[t][i];
            Kv::mma(alone, weights[k], one);
            Kv::mma(alone, weights[k + 1], two);
            if (lane / 4 != g) continue;
            values[t][2 * r] = alone[2 * r];
            values[t][2 * r + 1] = alone[2 * r + 1];
          }
        }
      }
    }
  }

  // Ends a segment: writes its state, or merges it into the total. Zero is added to the values
  // because positions of weight 0 would turn a sum of -0 into +0.
  __device__ __forceinline__ void end_segment(const AttentionParams& p, const AttentionItem& item,
                                              int kv_head, int segment) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      for (int step = 1; step < 4; step *= 2) {
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], step);
      }
      if (!sees_segment(begin[r], end[r], segment)) continue;
      if (item.split == 0) {
        const MergeFactors factors =
            merge_sums(total_greatest[r], total_sum[r], greatest[r], sum[r]);
#pragma unroll
        for (int t = 0; t < Tile::kColumnTiles; ++t) {
#pragma unroll
          for (int i = 2 * r; i < 2 * r + 2; ++i) {
            float& total = totals.at(t, i);
            total = merge_value(factors, total, values[t][i] + 0.0f);
          }
        }
        continue;
      }
      const int query = item.first_query + first_query + lane / 4 + 8 * r;
      const int64_t number = kv_head * p.n_states + p.queries[query].first_state + segment;
      float* const state = p.states + number * (p.kv.head_dim + 2);
#pragma unroll
      for (int t = 0; t < Tile::kColumnTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (column(t, i) < p.kv.head_dim) state[column(t, i)] = values[t][2 * r + i] + 0.0f;
        }
      }
      if (first_column == 0 && lane % 4 == 0) {
        state[p.kv.head_dim] = greatest[r];
        state[p.kv.head_dim + 1] = sum[r];
      }
    }
  }

  __device__ __forceinline__ void store(const AttentionParams& p, const AttentionItem& item,
                                        int kv_head) {
    const int group = p.n_heads / p.kv.n_kv_heads;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = first_query + lane / 4 + 8 * r;
      if (i >= item.n_queries) continue;
      const AttentionQuery query = p.queries[item.first_query + i];
      const int64_t head = kv_head * group + query.head;
      const int64_t at = query.row * p.out_stride + head * p.kv.head_dim;
      float sum_of_all = total_sum[r];
      const float factor = add_sink(p.sinks, head, total_greatest[r], sum_of_all);
#pragma unroll
      for (int t = 0; t < Tile::kColumnTiles; ++t) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (column(t, j) >= p.kv.head_dim) continue;
          store_output(p.out, p.out_bf16, at + column(t, j),
                       totals.at(t, 2 * r + j) * factor / sum_of_all);
        }
      }
    }
  }
};

}  // namespace
}  // namespace pb::cuda
