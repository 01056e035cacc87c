// The interface between CpuBackend and the kernels of one instruction set.
//
// targets/target_*.cc include this file and are compiled for CPUs that may differ from the current
// one. So this file must not use functions that the compiler may emit in several object files, such
// as inline functions and templates of the standard library: the linker could choose the copy of
// another target for the whole program. The functions of formats/ are compiled for the host. Only
// raw pointers are used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/list.h"
#include "ops/xielu.h"

namespace pb::cpu {

// The types of stored keys and values (kernels/attention/kv_numbers-inl.h).
enum class KvNumbers : uint8_t { kF32, kBf16, kF16, kInt8 };

// The distance between the two numbers of a pair in a row of bf16 values: numbers d and d +
// kValuePair form a pair.
inline constexpr int kValuePair = 16;

// The layout of keys and values. Attention reads one layer and kv head: first the keys of all KV
// blocks, then the values of all KV blocks. Consecutive blocks, as of most prompts, are one stream.
// A block of
//   keys    is (head_dim, key_stride), or bf16 (ceil(head_dim / 2), key_stride, 2): a packed column
//           tile, so that scores need no horizontal sums; int8: then scales, f32 (key_stride)
//   values  is (block_size, value_stride); bf16 (block_size, value_stride / 32, 16, 2), so that one
//           load gives two vectors; int8: then scales, f32 (block_size)
// Strides are whole vectors of every target; their padding does not affect results.
struct KvLayout {
  KvNumbers numbers = KvNumbers::kF32;
  int block_size = 0;
  int head_dim = 0;
  int key_stride = 0;
  int value_stride = 0;
  size_t key_scales = 0;       // bytes from a KV block's keys to their scales
  size_t value_scales = 0;     // bytes from a KV block's values to their scales
  size_t key_block_bytes = 0;  // bytes from a KV block's keys to the next KV block's keys
  size_t value_block_bytes = 0;
  size_t values = 0;  // bytes from a head's keys to its values
  size_t head_bytes = 0;
  size_t layer_bytes = 0;
};

inline constexpr int kGroupSize = kGroup;
inline constexpr int kFp8BlockSize = kFp8Block;
// The number of k in bf16 tiles is padded to a multiple of this.
inline constexpr int kBf16Padding = 32;
inline constexpr int kSegment = 256;         // = kAttentionSegment (ops/kv_segments.h)
inline constexpr int kQueriesPerBlock = 32;  // queries that share one pass over the keys
// The floats of scratch of attend_segment, in whole cache lines: the scores of the queries and
// scales of the values, or the scratch of products of pairs (asserted for TileScratch and
// DotScratch).
inline constexpr int kAttentionScratch = 16384;
static_assert(kQueriesPerBlock * kSegment + kSegment <= kAttentionScratch);

// The header of a tile of compressed bf16 (pack_compressed_bf16.h).
inline constexpr int kCodes = 16;
struct alignas(64) CompressedHead {
  uint8_t high_bytes[kCodes] = {};  // by code
  uint32_t runs_at = 0;             // bytes from the start of the tile
  uint32_t tile_bytes = 0;
  uint8_t padding[40] = {};
};

// A number of a compressed tile whose high byte has no code.
struct CompressedPatch {
  uint16_t run;
  uint8_t place;  // index of the number in its run
  uint8_t high;
};
inline constexpr int kNoRun = 0xffff;  // marks the end of the patches

// Returns the bytes of a run of compressed numbers.
constexpr int compressed_run_bytes(int run) { return run / 2 * 3; }

inline constexpr int kRowZeroPoint = 128;  // zero point of weights that rows are prepared for

// The factors of a group of 32 quantised activations: a number is a whole number times `scale`.
struct RowGroup {
  float scale;
  float total;        // sum of the numbers: scale times the sum of the whole numbers
  int16_t halves[2];  // sums of the whole numbers of each half
  // -kRowZeroPoint times the sum of both halves, which cancels the zero point
  int32_t zero_products;
};

// The format of a row of Activations.
enum class RowFormat : uint8_t {
  kF32,
  kBf16,          // as bf16
  kExpandedBf16,  // rounded to bf16 and stored as f32
  kInt8,          // whole numbers in groups of 32
};

// A row of Activations that a kernel writes.
struct RowOut {
  RowFormat format = RowFormat::kF32;
  void* numbers = nullptr;
  RowGroup* groups = nullptr;  // for kInt8
};

// y[row, tile] (=|+=) x[row] W[tile]^T + bias[tile]
struct GemmArgs {
  const void* weights = nullptr;     // tiles of (k, tile columns), see pack.h
  const float* bias = nullptr;       // (n_tiles * tile columns), or null
  const void* x = nullptr;           // (rows, x_stride)
  int64_t x_stride = 0;              // in elements
  const RowGroup* groups = nullptr;  // (rows, group_stride), for quantised weights only
  int64_t group_stride = 0;
  float* y = nullptr;  // (rows, n_out), with y_stride between rows
  int64_t y_stride = 0;
  int n_out = 0;
  int n_in = 0;
  bool add = false;
  // True if prefetching is faster for products that are limited by the speed of memory. False if
  // the CPU's own prefetchers are faster.
  bool prefetch_quick = true;
};

struct NormArgs {
  const float* weight = nullptr;  // (hidden)
  const float* bias = nullptr;    // (hidden), for LayerNorm only
  float eps = 0.0f;
  int hidden = 0;
  float sum_scale = 1.0f;  // for rms_norm_add
};

struct RotateArgs {
  int head_dim = 0;
  const float* cosines = nullptr;  // (head_dim / 2) of the row's position; null = no rotation
  const float* sines = nullptr;
  const float* norm_weight = nullptr;  // (head_dim), or null
  float norm_eps = 0.0f;
};

// At most kQueriesPerBlock queries that read the same kv head.
struct QueryBlock {
  int n = 0;
  const float* q[kQueriesPerBlock] = {};  // (head_dim) each
  int begin[kQueriesPerBlock] = {};       // keys [begin, end), by position
  int end[kQueriesPerBlock] = {};
};

// Queries [first_query, end_query) of a block, which read the same KV blocks.
struct AttentionArgs {
  KvLayout layout;
  const std::byte* head = nullptr;  // the KV of the layer and kv head
  const int32_t* block_table = nullptr;
  int first_query = 0;
  int end_query = 0;
  float scale = 1.0f;
  float softcap = 0.0f;  // bounds scores by softcap * tanh(s / softcap); 0 = none
  // The KV that attention probably reads after the last of these KV blocks, for prefetches.
  const std::byte* next_head = nullptr;
  const int32_t* next_block_table = nullptr;
  int n_next_blocks = 0;
};

// A softmax over some of the keys: sum_i exp(s_i - max) v_i and sum_i exp(s_i - max).
struct SoftmaxState {
  float* max = nullptr;          // (queries)
  float* sum = nullptr;          // (queries)
  float* accumulator = nullptr;  // (queries, value_stride)
};

// The layout of packed weights of a dtype (pack.h).
struct TileLayout {
  int columns;         // outputs per tile
  bool lines = false;  // int4: consecutive numbers belong to few columns instead of few k
  int run = 0;         // compressed bf16: numbers per run; 0: not compressed
};

// The greatest number of weight tiles per call of a product. Weights are read from memory fastest
// in long stretches, because a core's prefetchers read beyond the end of a call, where another core
// may continue.
struct TilesPerCall {
  int of_few_rows;   // for products that are limited by reading weights
  int of_many_rows;  // for products that write more than they read
};

// Consecutive rows of a sequence in one KV block, for a key head of the gated delta rule and its
// value heads (ops/recurrent.h). Consecutive value heads of the key head are head_step apart in
// columns and states. A state is (key_dim, value_dim). `history` contains the inputs of the
// convolution of the conv_size - 1 rows before the first row.
struct GatedDeltaNetArgs {
  int n_rows = 0;
  int n_heads = 0;    // number of value heads
  int head_step = 1;  // distance between two of these value heads
  int key_dim = 0;
  int value_dim = 0;
  int conv_size = 0;
  const float* x = nullptr;  // the first row, with x_stride between rows
  int64_t x_stride = 0;
  // The first columns in x of q and k (key_dim), v and z. For q, k and v also the first channels.
  int q = 0;
  int k = 0;
  int v = 0;                           // (value_dim), of the first value head
  int z = 0;                           // (value_dim), of the first value head; not a channel
  const float* convolution = nullptr;  // (conv_size, n_channels)
  int n_channels = 0;                  // number of channels of all heads
  // (n_rows, n_heads, 2): the factors of S and of v - S^T k.
  const float* gates = nullptr;
  const float* norm_weight = nullptr;  // (value_dim)
  float norm_eps = 0.0f;
  // The state of the first value head; null = zeros; may equal state_to.
  const float* state_from = nullptr;
  // (conv_size - 1, n_channels); null = zeros; may equal history_to.
  const float* history_from = nullptr;
  float* state_to = nullptr;
  float* history_to = nullptr;
  float* y = nullptr;  // the first row's values of the first head, with y_stride between rows
  int64_t y_stride = 0;
};

// The greatest number of rows per call of gated_delta_net, and the number of floats in its scratch.
inline constexpr int kGatedDeltaNetRows = 16;
constexpr int gated_delta_net_scratch(int key_dim, int n_values) {
  return kGatedDeltaNetRows * (2 * key_dim + n_values);
}

// Consecutive rows of a sequence in one KV block, for channels [begin, end) of a gated short
// convolution (ops/recurrent.h). begin is a multiple of 16.
struct ShortConvArgs {
  int n_rows = 0;
  int width = 0;
  int conv_size = 0;
  int begin = 0;
  int end = 0;
  const float* convolution = nullptr;  // (conv_size, width)
  const float* x = nullptr;            // (n_rows, 3 width): b, c, x
  const float* from = nullptr;         // (conv_size - 1, width); null = zeros; may equal `to`
  float* to = nullptr;
  float* y = nullptr;  // (n_rows, width)
};

// The matrix product for one dtype of weights.
struct ProductKernel {
  TileLayout tile;
  RowFormat row;      // format of the activations
  int scratch_bytes;  // per thread
  TilesPerCall tiles_per_call;
  // Multiplies rows [row_begin, row_end) by weight tiles [tile_begin, tile_end).
  void (*tiles)(const GemmArgs&, int tile_begin, int tile_end, int row_begin, int row_end,
                void* scratch);
};

// out[begin:end) = act(gate[begin:end)) * up[begin:end), or act(gate) if up is null. begin is the
// first element of a group.
using ActivationKernel = void (*)(const float* gate, const float* up, const RowOut& out, int begin,
                                  int end);

// The kernels of one instruction set. Each targets/target_NAME.cc defines NAME::kKernels;
// dispatch.cc lists them.
struct Kernels {
  const char* name;

  ProductKernel f32;
  ProductKernel bf16;
  // The product of compressed bf16, with the rows and columns of bf16; `tiles` is null if there is
  // none.
  ProductKernel compressed_bf16{};
  // The products of each weight format, by its name.
#define PB_PRODUCT(constant, name, Format) ProductKernel name;
  PB_FORMATS(PB_PRODUCT)
#undef PB_PRODUCT

  void (*rms_norm)(const NormArgs&, const float* x, const RowOut& out);
  void (*layer_norm)(const NormArgs&, const float* x, const RowOut& out);
  // x = (x + RMSNorm(y)) * sum_scale
  void (*rms_norm_add)(const NormArgs&, const float* y, float* x);

  ActivationKernel silu;
  ActivationKernel gelu_tanh;
  ActivationKernel gelu;
  ActivationKernel relu_squared;
  ActivationKernel sigmoid;
  // out[begin:end) = f(x[begin:end)). begin is the first element of a group.
  void (*xielu)(const float* x, const Xielu& of_layer, const RowOut& out, int begin, int end);
  // out[begin:end) = g sigmoid(alpha g) (u + 1), where g = min(gate, limit), and u is up clamped to
  // [-limit, limit]. begin is the first element of a group.
  void (*clamped_swiglu)(const float* gate, const float* up, float alpha, float limit,
                         const RowOut& out, int begin, int end);

  // out[0:n) = x
  void (*copy)(const float* x, const RowOut& out, int n);
  // out[i] = x[order[i]] for i below n
  void (*permute)(const float* x, const int32_t* order, const RowOut& out, int n);

  // Applies the norm and the rotation to one head in place, if the layer has them.
  void (*rotate)(const RotateArgs&, float* head);
  // Writes one position's key and value to `slot` of a KV block of a layer and kv head.
  void (*store_key_value)(const KvLayout&, const float* key, const float* value, std::byte* head,
                          int kv_block, int slot);

  // Computes attention of the queries over the keys in segment `segment` that they attend to.
  // Queries without such keys are not changed. scratch: (kAttentionScratch).
  void (*attend_segment)(const AttentionArgs&, const QueryBlock&, int segment, float* scratch,
                         const SoftmaxState& out);
  // total = total + part, for the queries that attend to keys in [begin, end).
  void (*merge_states)(const KvLayout&, const QueryBlock&, int begin, int end,
                       const SoftmaxState& part, const SoftmaxState& total);
  // out[begin, begin + head_dim) = accumulator / sum for query i of the state. If rows are
  // quantised, heads are whole groups.
  void (*finish_attention)(const KvLayout&, const SoftmaxState&, int i, const RowOut& out,
                           int begin);

  // Computes the rows of GatedDeltaNetArgs. scratch: (gated_delta_net_scratch(key_dim, n_heads *
  // value_dim)).
  void (*gated_delta_net)(const GatedDeltaNetArgs&, float* scratch);
  void (*short_conv)(const ShortConvArgs&);

  // logits[begin:end) *= scale, then softcap * tanh(logits / softcap) unless softcap is 0; begin is
  // a multiple of 16.
  void (*scale_logits)(float* logits, int begin, int end, float scale, float softcap);

  // Elementwise exp(x) and tanh(x), used by tests.
  void (*exp)(const float* x, float* out, int n);
  void (*tanh)(const float* x, float* out, int n);
};

}  // namespace pb::cpu
