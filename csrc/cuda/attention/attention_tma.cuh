// Attention of many rows on Hopper: tiles of 128 queries, whose products use wgmma and whose keys
// and values are copied by a tensor map (tma.h). The arithmetic, and so the bits, are those of
// attention_tile.cuh.
//
// One warp copies chunks of keys and of values in turn into the stages of two rings as they become
// empty. Two warpgroups have 64 queries each. While a warpgroup turns scores into weights, its own
// products and those of the other warpgroup are under way. A box of the map is a KV block, or the
// part of it that fits a chunk.
//
// The mma.sync kernel, which is launched after this one, handles the rare items in which only some
// of the queries see a value that is not finite.
#pragma once

#include "cuda/attention/kv_tma.cuh"

namespace pb::cuda {
namespace {

#ifdef PB_HAS_WGMMA

// Registers per thread. A block starts with 168 for each thread, the maximum for 384 threads.
constexpr int kCopyingKvRegisters = 24;
constexpr int kAttendingRegisters = 240;
static_assert(kAttendingRegisters * kTmaGroups * 128 + kCopyingKvRegisters * 128 <=
              168 * kTmaAttentionThreads);

// A warpgroup's loop over items. Registers are scarce, so that it recomputes cheap values instead
// of storing them.
template <typename Tile>
class Attending {
 public:
  __device__ __forceinline__ Attending(const AttentionParams& p, const SharedTmaTiles& shared)
      : p_(p), shared_(shared) {
    const int thread = static_cast<int>(threadIdx.x);
    warp_.lane = thread % 32;
    warp_.first_query = thread / 32 * 16;
    warp_.first_column = 0;
  }

  __device__ __forceinline__ void attend(const Turn& turn) {
    constexpr int kChunk = Tile::kChunk;
    warp_.find_queries(p_, turn.item(p_));
    warp_.begin_total(shared_.totals);
    warp_.begin_segment();
    wait_for_group(0);  // no warp reads the queries of the previous item any more
    load_queries(turn);
    fence_for_async_proxy();
    wait_for_group(1);
    // The chunks of the item that at least one of the warpgroup's queries sees.
    const ItemRange range(p_, turn.item(p_));
    const int item_chunk = range.begin / kChunk;
    const int item_end = (range.end + kChunk - 1) / kChunk;
    int chunk = warp_.any_begin / kChunk;
    int end = (warp_.any_end + kChunk - 1) / kChunk;
    chunk = chunk < item_chunk ? item_chunk : chunk > item_end ? item_end : chunk;
    end = end > item_end ? item_end : end < chunk ? chunk : end;
    for (int i = item_chunk; i < chunk; ++i) pass_over();
    if (chunk < end) attend_chunks(turn, chunk, end);
    for (int i = end; i < item_end; ++i) pass_over();
    if (turn.item(p_).split == 0) warp_.store(p_, turn.item(p_), turn.kv_head(p_));
  }

 private:
  static constexpr bool kIsF16 = Tile::Kv::kIsF16;

  // The stages of keys come before those of values. `ahead` counts from the chunk whose values come
  // next.
  static constexpr int kOfKeys = 0;
  static constexpr int kOfValues = kTmaAttentionStages;
  __device__ __forceinline__ int stage(int first, unsigned ahead) const {
    return first + static_cast<int>((n_done_ + ahead) % kTmaAttentionStages);
  }
  __device__ __forceinline__ unsigned char* tile(int first, unsigned ahead) const {
    return shared_.stages + stage(first, ahead) * Tile::kBytes;
  }
  __device__ __forceinline__ void wait_for(int first, unsigned ahead) const {
    mbarrier_wait(shared_.full + stage(first, ahead), (n_done_ + ahead) / kTmaAttentionStages % 2);
  }
  // Marks a stage as empty for this warp.
  __device__ __forceinline__ void give_back(int first, unsigned ahead) const {
    __syncwarp();
    if (warp_.lane == 0) mbarrier_arrive(shared_.empty + stage(first, ahead));
  }

  __device__ __forceinline__ static int group() { return static_cast<int>(threadIdx.x) / 128; }
  __device__ __forceinline__ unsigned char* queries() const {
    return shared_.q + group() * Tile::kBytes;
  }

  // Synchronises the warpgroup. Called twice per item, with parity 0 and then 1.
  __device__ __forceinline__ void wait_for_group(unsigned parity) {
    mbarrier_arrive(shared_.queries + group());
    mbarrier_wait(shared_.queries + group(), parity);
  }

  // Does the work of load_queries() in attention_items.cuh, 16 bytes at a time.
  __device__ __forceinline__ void load_queries(const Turn& turn) {
    constexpr int kPieces = Tile::kDim / 8;
    const AttentionItem item = turn.item(p_);
    const int kv_head = turn.kv_head(p_);
    const int head_dim = p_.kv.head_dim;
    const int heads = p_.n_heads / p_.kv.n_kv_heads;
    const int64_t row_size = static_cast<int64_t>(p_.n_heads + 2 * p_.kv.n_kv_heads) * head_dim;
    for (int i = static_cast<int>(threadIdx.x) % 128; i < Tile::kQueries * kPieces; i += 128) {
      const int at = i / kPieces;
      const int d = i % kPieces * 8;
      const int number = group() * Tile::kQueries + at;
      uint4 piece{0, 0, 0, 0};
      if (number < item.n_queries && d < head_dim) {
        const AttentionQuery query = p_.queries[item.first_query + number];
        const float* from =
            p_.qkv + query.row * row_size + (kv_head * heads + query.head) * head_dim + d;
        const float4 a = *reinterpret_cast<const float4*>(from);
        const float4 b = *reinterpret_cast<const float4*>(from + 4);
        const float scale = p_.scale;
        piece.x = Tile::Kv::pack(a.x * scale, a.y * scale);
        piece.y = Tile::Kv::pack(a.z * scale, a.w * scale);
        piece.z = Tile::Kv::pack(b.x * scale, b.y * scale);
        piece.w = Tile::Kv::pack(b.z * scale, b.w * scale);
      }
      *reinterpret_cast<uint4*>(queries() + Tile::byte_of(at, d)) = piece;
    }
  }

  // Skips a chunk that none of the queries sees.
  __device__ __forceinline__ void pass_over() {
    wait_for(kOfKeys, 0);
    give_back(kOfKeys, 0);
    wait_for(kOfValues, 0);
    give_back(kOfValues, 0);
    ++n_done_;
  }

  // Attends to chunks [chunk, end). While the scores of a chunk become weights, the products of the
  // values of the previous chunk are under way, except at the end of a segment.
  __device__ __forceinline__ void attend_chunks(const Turn& turn, int chunk, int end) {
    constexpr int kInSegment = kSegment / Tile::kChunk;
    begin_scores(0);
    wgmma_wait<0>(scores());
    give_back(kOfKeys, 0);
    float factors[2];
    weigh(chunk, factors);
    for (;;) {
      const int segment = chunk / kInSegment;
      const int next_segment = (segment + 1) * kInSegment;
      const int last = (next_segment < end ? next_segment : end) - 1;
#pragma unroll 1
      for (; chunk < last; ++chunk) {
        begin_scores(1);
        begin_values(turn, chunk);
        wgmma_wait<1>(scores());
        give_back(kOfKeys, 1);
        warp_.scale_scores(p_.softcap, {});
        if (warp_.all_see(chunk + 1)) {  // two copies: with one, ptxas inserts a wait here
          warp_.weigh_scores(factors);
        } else {
          warp_.hide_unseen(chunk + 1);
          warp_.weigh_scores(factors);
        }
        end_values();
        warp_.scale_values(factors);
        warp_.take_weights(chunk + 1, {});
      }
      if (next_segment >= end) break;
      begin_scores(1);
      begin_values(turn, chunk);
      wgmma_wait<0>(scores());
      give_back(kOfKeys, 1);
      end_values();
      warp_.end_segment(p_, turn.item(p_), turn.kv_head(p_), segment);
      warp_.begin_segment();
      ++chunk;
      weigh(chunk, factors);
    }
    begin_values(turn, chunk);
    end_values();
    warp_.end_segment(p_, turn.item(p_), turn.kv_head(p_), chunk / kInSegment);
  }

  // Computes the weights of a segment's first chunk.
  __device__ __forceinline__ void weigh(int chunk, float (&factors)[2]) {
    warp_.scale_scores(p_.softcap, {});
    warp_.hide_unseen(chunk);
    warp_.weigh_scores(factors);
    warp_.take_weights(chunk, {});
  }

  __device__ __forceinline__ float (&scores()) [Tile::kChunk / 2] {
    return reinterpret_cast<float (&)[Tile::kChunk / 2]>(warp_.scores);
  } __device__ __forceinline__
      float (&values())
          [Tile::kDim / 2] { return reinterpret_cast<float (&)[Tile::kDim / 2]>(warp_.values); }

  __device__ __forceinline__ void begin_scores(unsigned ahead) {
    wait_for(kOfKeys, ahead);
    const uint64_t q = wgmma_operand(queries());
    const uint64_t k = wgmma_operand(tile(kOfKeys, ahead));
    wgmma_fence();
    wgmma_m64n64k16<kIsF16, false>(scores(), q, k);
#pragma unroll
    for (int d = 16; d < Tile::kDim; d += 16) {
      const auto further = static_cast<uint64_t>(Tile::byte_of(0, d) >> 4);
      wgmma_m64n64k16<kIsF16, true>(scores(), q + further, k + further);
    }
    wgmma_commit();
  }

  // Issues the products of a chunk's values. Leaves the item to the mma.sync kernel if a value that
  // only some queries see is not finite.
  __device__ __forceinline__ void begin_values(const Turn& turn, int chunk) {
    wait_for(kOfValues, 0);
    const unsigned char* const numbers = tile(kOfValues, 0);
    if (warp_.must_add_alone(chunk, chunk * Tile::kChunk, (chunk + 1) * Tile::kChunk,
                             reinterpret_cast<const uint16_t*>(numbers)) &&
        warp_.lane == 0) {
      atomicMax(p_.left + turn.number, 1);
    }
    const uint64_t v = wgmma_rows(numbers, Tile::kPartBytes);
    wgmma_fence(values());
#pragma unroll
    for (int k = 0; k < Tile::kChunk / 16; ++k) {
      wgmma_by_rows<kIsF16>(values(), warp_.weights[k], v + k * 16 * 128 / 16);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void end_values() {
    wgmma_wait<0>(values());
    give_back(kOfValues, 0);
    ++n_done_;
  }

  const AttentionParams& p_;
  const SharedTmaTiles& shared_;
  WarpTile<Tile> warp_;
  unsigned n_done_ = 0;  // chunks so far
};

// Runs one block per multiprocessor. Blocks take items and kv heads in turn, as in attend_items().
template <typename Tile>
__device__ __forceinline__ void attend_by_tma(const TmaAttentionParams& params) {
  constexpr int kFirstCopying = kTmaGroups * 128;
  const AttentionParams& p = params.attention;
  SharedArrays arrays;
  const SharedTmaTiles shared = take_tma_tiles(arrays, Tile::kDim);
  if (threadIdx.x == kFirstCopying) {
    prefetch(params.kv);
    for (int i = 0; i < 2 * kTmaAttentionStages; ++i) {
      mbarrier_init(shared.full + i, 1);
      mbarrier_init(shared.empty + i, kTmaGroups * 4);
    }
    mbarrier_init(shared.landed, 1);
    for (int i = 0; i < kTmaGroups; ++i) mbarrier_init(shared.queries + i, 128);
    fence_for_async_proxy();
  }
  __syncthreads();

  if (threadIdx.x >= kFirstCopying) {
    set_registers<kCopyingKvRegisters, true>();
    if (threadIdx.x >= kFirstCopying + 32) return;
    KvCopies<Tile> copies(params, shared);
    for_each_turn(p, [&](const Turn& turn) { copies.copy(turn); });
    return;
  }
  set_registers<kAttendingRegisters, false>();
  Attending<Tile> attending(p, shared);
  for_each_turn(p, [&](const Turn& turn) { attending.attend(turn); });
}

#define PB_ATTEND_BY_TMA(Kv, dim) attend_by_tma<TmaTile<Kv, dim>>(p)
#elif defined(__CUDA_ARCH__)
// Not compiled for this architecture. The kernels trap, so that a wrong launch fails instead of
// leaving the output unwritten.
#define PB_ATTEND_BY_TMA(Kv, dim) __trap()
#else  // nvcc's host pass
#define PB_ATTEND_BY_TMA(Kv, dim)
#endif

#define PB_ATTENTION(kv, Kv, dim)                                                           \
  PB_LARGE_KERNEL(attention_##kv##_##dim##_tma, TmaAttentionParams, kTmaAttentionThreads) { \
    PB_ATTEND_BY_TMA(Kv, dim);                                                              \
  }
PB_ATTENTION(bf16, Bf16Kv, 64)
PB_ATTENTION(bf16, Bf16Kv, 128)
PB_ATTENTION(f16, F16Kv, 64)
PB_ATTENTION(f16, F16Kv, 128)
#undef PB_ATTENTION
#undef PB_ATTEND_BY_TMA

}  // namespace
}  // namespace pb::cuda
