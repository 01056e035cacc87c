#include "cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "cpu/dispatch.h"
#include "cpu/kv_layout.h"
#include "cpu/pack.h"
#include "ops/read_tensor.h"

namespace pb {

std::unique_ptr<Backend> make_cpu_backend(int n_threads) {
  const char* forced = std::getenv("PYBATCHER_CPU_TARGET");
  return make_cpu_backend(n_threads, forced == nullptr ? "" : forced);
}

std::unique_ptr<Backend> make_cpu_backend(int n_threads, const std::string& target) {
  if (n_threads < 0) {
    throw Error(ErrorCode::kConfig, "n_threads is " + std::to_string(n_threads) +
                                        "; use 0 for all cores of this process, or more");
  }
  const cpu::Kernels& kernels = cpu::choose_target(target, "PYBATCHER_CPU_TARGET");
  return std::make_unique<cpu::CpuBackend>(n_threads == 0 ? available_cores() : n_threads, kernels);
}

namespace cpu {
namespace {

constexpr int64_t kWorthThreads = 32768;  // work below which threads are not woken
constexpr int kItemsPerThread = 4;        // what a loop is cut into at least, for balance
constexpr int kManyRows = 128;            // from which on the calls of a matrix product are
constexpr int kCallsPerThread = 2;        // as large as so many a thread allow
constexpr int kActivateColumns = 1024;    // of an item of activate
constexpr int kMinRowsPerItem = 24;       // of a matrix product that is cut by rows too

size_t largest_scratch(const Kernels& kernels) {
  constexpr size_t kLine = 64;
  const int most = std::max({kernels.f32.scratch_bytes, kernels.bf16.scratch_bytes,
                             kernels.int8.scratch_bytes, kernels.int4.scratch_bytes});
  return (static_cast<size_t>(most) + kLine - 1) / kLine * kLine;
}

// Bytes of a number in a row of Activations.
size_t number_bytes(RowFormat format) {
  switch (format) {
    case RowFormat::kBf16:
      return sizeof(uint16_t);
    case RowFormat::kInt8:
      return sizeof(int8_t);
    default:
      return sizeof(float);
  }
}

}  // namespace

CpuBackend::CpuBackend(int n_threads, const Kernels& kernels)
    : kernels_(kernels),
      pool_(n_threads),
      attention_(kernels, pool_),
      scratch_bytes_(largest_scratch(kernels)),
      scratch_(scratch_bytes_ * n_threads) {}

template <typename Body>
void CpuBackend::for_range(int64_t n, int64_t grain, int64_t work, Body&& body) {
  pool_.parallel_for(n, work < kWorthThreads ? std::max<int64_t>(1, n) : grain, body);
}

const ProductKernel& CpuBackend::product(DType weights) const {
  switch (weights) {
    case DType::kBF16:
      return kernels_.bf16;
    case DType::kInt8:
      return kernels_.int8;
    case DType::kInt4:
      return kernels_.int4;
    default:
      return kernels_.f32;
  }
}

RowsOut CpuBackend::rows_of(Activations& a) const {
  RowsOut rows;
  rows.first.format = product(a.dtype).row;
  rows.first.numbers = a.data.as<std::byte>();
  rows.row_bytes = a.row_stride * static_cast<int64_t>(number_bytes(rows.first.format));
  if (rows.first.format == RowFormat::kInt8) {
    rows.first.groups = a.groups.as<RowGroup>();
    rows.first.zero_point = zero_point(a.dtype);
    rows.group_stride = a.group_stride;
  }
  return rows;
}

// -- at load ----------------------------------------------------------------------------------

Matrix CpuBackend::make_matrix(std::span<const TensorView> parts,
                               std::span<const TensorView> biases, DType dtype) {
  return pack_matrix(parts, biases, dtype, product(dtype).tile, pool_);
}

std::string CpuBackend::layout() const {
  return target() + " " + std::to_string(kPackedLayoutVersion);
}

MatrixBytes CpuBackend::matrix_bytes(int n_out, int n_in, DType dtype) const {
  return packed_bytes(n_out, n_in, dtype, product(dtype).tile.columns);
}

Vector CpuBackend::make_vector(const TensorView& view) {
  return {.size = static_cast<int>(view.rows), .values = read_vector(view)};
}

Activations CpuBackend::make_activations(int max_rows, int cols, DType weights) {
  constexpr int64_t kLine = 64;
  constexpr int64_t kPage = 4096;
  Activations a;
  a.max_rows = max_rows;
  a.cols = cols;
  a.dtype = weights;
  const RowFormat format = product(weights).row;
  const auto number = static_cast<int64_t>(number_bytes(format));
  int64_t row_bytes = (cols * number + kLine - 1) / kLine * kLine;
  // Rows 4 KiB apart would share the few places that a cache has for one address in 4 KiB.
  if (row_bytes % kPage == 0) row_bytes += kLine;
  a.row_stride = row_bytes / number;
  a.data = AlignedBuffer(static_cast<size_t>(max_rows) * row_bytes);
  if (format == RowFormat::kInt8) {
    constexpr int64_t kGroupsOfLine = kLine / static_cast<int64_t>(sizeof(RowGroup));
    const int64_t n_groups = (cols + kGroupSize - 1) / kGroupSize;
    a.group_stride = (n_groups + kGroupsOfLine - 1) / kGroupsOfLine * kGroupsOfLine;
    a.groups = AlignedBuffer(sizeof(RowGroup) * max_rows * a.group_stride);
  }
  return a;
}

RopeTable CpuBackend::make_rope(std::span<const float> inv_freq, float attention_factor,
                                int n_positions) {
  RopeTable table;
  table.n_positions = n_positions;
  table.half_dim = static_cast<int>(inv_freq.size());
  const size_t n = static_cast<size_t>(n_positions) * inv_freq.size();
  table.cosines = AlignedBuffer(n * sizeof(float));
  table.sines = AlignedBuffer(n * sizeof(float));
  float* cosines = table.cosines.as<float>();
  float* sines = table.sines.as<float>();
  // As transformers has it: the angle is an f32 product, its cosine is rounded to f32, then scaled.
  pool_.parallel_for(n_positions, 256, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; ++p) {
      for (size_t i = 0; i < inv_freq.size(); ++i) {
        const double angle = static_cast<float>(p) * inv_freq[i];
        const size_t at = p * inv_freq.size() + i;
        cosines[at] = static_cast<float>(std::cos(angle)) * attention_factor;
        sines[at] = static_cast<float>(std::sin(angle)) * attention_factor;
      }
    }
  });
  return table;
}

KvStorage CpuBackend::make_kv(int n_blocks, int block_size, int n_layers, int n_kv_heads,
                              int head_dim, DType dtype) {
  if (block_size < 1 || kAttentionSegment % block_size != 0) {
    throw Error(ErrorCode::kConfig, "block_size is " + std::to_string(block_size) +
                                        "; use a divisor of " + std::to_string(kAttentionSegment));
  }
  KvStorage kv;
  kv.n_blocks = n_blocks;
  kv.block_size = block_size;
  kv.n_layers = n_layers;
  kv.n_kv_heads = n_kv_heads;
  kv.head_dim = head_dim;
  kv.dtype = dtype;
  const KvLayout layout = kv_layout(kv);
  kv.block_bytes = (layout.key_block_bytes + layout.value_block_bytes) * n_kv_heads * n_layers;
  kv.data = AlignedBuffer(kv.block_bytes * n_blocks);
  return kv;
}

void CpuBackend::prepare(int max_rows, int n_heads, int n_kv_heads, int head_dim) {
  attention_.prepare(max_rows, n_heads, n_kv_heads, head_dim);
  sequence_of_row_.assign(max_rows, nullptr);
  if (head_dim % kGroupSize != 0) {
    attended_ = AlignedBuffer(sizeof(float) * max_rows * n_heads * head_dim);
  }
}

// -- in the forward pass ----------------------------------------------------------------------

void CpuBackend::plan(const RowBatch& batch, const KvStorage& kv) {
  for (const SequenceRows& sequence : batch.sequences) {
    std::fill_n(sequence_of_row_.begin() + sequence.first_row, sequence.n_rows, &sequence);
  }
  attention_.plan(batch, kv.block_size);
}

void CpuBackend::gather(std::span<const int32_t> ids, const Matrix& table, bool add, float* x) {
  const int64_t n = static_cast<int64_t>(ids.size());
  // A number of a packed row lies in a cache line of its own, so a row is many times its size in
  // work.
  for_range(n, 1, n * table.n_in * 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      unpack_row(table, product(table.dtype).tile, ids[r], add, x + r * table.n_in);
    }
  });
}

void CpuBackend::embed(std::span<const int32_t> ids, const Matrix& table, float* x) {
  gather(ids, table, false, x);
}

void CpuBackend::embed_add(std::span<const int32_t> ids, const Matrix& table, float* x) {
  gather(ids, table, true, x);
}

void CpuBackend::norm(const float* x, std::span<const int32_t> rows, const Norm& norm,
                      Activations& out) {
  const int hidden = norm.weight.size;
  const NormArgs args{norm.weight.values.as<float>(), norm.bias.values.as<float>(), norm.eps,
                      hidden};
  const auto kernel = norm.kind == NormKind::kRms ? kernels_.rms_norm : kernels_.layer_norm;
  const RowsOut to = rows_of(out);
  const int64_t n = static_cast<int64_t>(rows.size());
  for_range(n, 1, n * hidden, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      kernel(args, x + static_cast<int64_t>(rows[i]) * hidden, to.row(i));
    }
  });
}

void CpuBackend::matmul(const Activations& x, int n_rows, const Matrix& w, float* y, Store store) {
  const GemmArgs args{w.packed.as<std::byte>(),
                      w.bias.as<float>(),
                      x.data.as<std::byte>(),
                      x.row_stride,
                      x.groups.as<RowGroup>(),
                      x.group_stride,
                      y,
                      w.n_out,
                      w.n_in,
                      store == Store::kAdd};
  const ProductKernel& kernel = product(w.dtype);
  const int64_t all_tiles = tiles_of(w, kernel.tile.columns);
  const int64_t calls =
      (n_rows < kManyRows ? kItemsPerThread : kCallsPerThread) * pool_.n_threads();
  const int64_t tiles = std::clamp(all_tiles / calls, int64_t{1}, int64_t{kernel.tiles_per_call});
  const int64_t n_tiles = (all_tiles + tiles - 1) / tiles;  // calls, but for parts of the rows
  // Rows are shared among threads where there are too few tiles to go round.
  const int64_t wanted = kItemsPerThread * pool_.n_threads();
  const int64_t most = (n_rows + kMinRowsPerItem - 1) / kMinRowsPerItem;
  const int64_t parts =
      std::clamp((wanted + n_tiles - 1) / n_tiles, int64_t{1}, std::max(most, int64_t{1}));
  const int64_t rows_per_part = (n_rows + parts - 1) / parts;
  const int64_t work = static_cast<int64_t>(n_rows) * w.n_in * kernel.tile.columns;
  const int64_t grain = std::max<int64_t>(1, kWorthThreads / std::max<int64_t>(1, work / parts));
  for_range(n_tiles * parts, grain, work * n_tiles, [&](int64_t begin, int64_t end, int worker) {
    std::byte* scratch = scratch_.as<std::byte>() + scratch_bytes_ * worker;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t first = item % parts * rows_per_part;
      const int64_t last = std::min<int64_t>(n_rows, first + rows_per_part);
      if (first >= last) continue;
      const int64_t tile = item / parts * tiles;
      kernel.tiles(args, static_cast<int>(tile),
                   static_cast<int>(std::min(all_tiles, tile + tiles)), static_cast<int>(first),
                   static_cast<int>(last), scratch);
    }
  });
}

void CpuBackend::rope_and_store(float* qkv, const RowBatch& batch, const AttentionLayer& layer,
                                KvStorage& kv) {
  const KvLayout layout = kv_layout(kv);
  const int head_dim = layer.head_dim;
  const int n_rotated = layer.n_heads + layer.n_kv_heads;
  const int64_t row_size = static_cast<int64_t>(n_rotated + layer.n_kv_heads) * head_dim;
  for_range(batch.n_rows, 1, batch.n_rows * row_size, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const SequenceRows& sequence = *sequence_of_row_[row];
      const int position = sequence.first_position + static_cast<int>(row) - sequence.first_row;
      RotateArgs rotate;
      rotate.head_dim = head_dim;
      if (layer.rope != nullptr) {
        const int64_t at = static_cast<int64_t>(position) * layer.rope->half_dim;
        rotate.cosines = layer.rope->cosines.as<float>() + at;
        rotate.sines = layer.rope->sines.as<float>() + at;
      }
      float* heads = qkv + row * row_size;
      for (int h = 0; h < n_rotated; ++h) {
        const Norm* norm = h < layer.n_heads ? layer.q_norm : layer.k_norm;
        rotate.norm_weight = norm == nullptr ? nullptr : norm->weight.values.as<float>();
        rotate.norm_eps = norm == nullptr ? 0.0f : norm->eps;
        kernels_.rotate(rotate, heads + static_cast<int64_t>(h) * head_dim);
      }
      const float* keys = heads + static_cast<int64_t>(layer.n_heads) * head_dim;
      const float* values = heads + static_cast<int64_t>(n_rotated) * head_dim;
      std::byte* kv_heads = kv.data.as<std::byte>() + layer.layer * layout.layer_bytes;
      for (int h = 0; h < layer.n_kv_heads; ++h) {
        kernels_.store_key_value(
            layout, keys + static_cast<int64_t>(h) * head_dim,
            values + static_cast<int64_t>(h) * head_dim, kv_heads + h * layout.head_bytes,
            sequence.block_table[position / kv.block_size], position % kv.block_size);
      }
    }
  });
}

void CpuBackend::attention(const float* qkv, const RowBatch& batch, const AttentionLayer& layer,
                           const KvStorage& kv, Activations& out) {
  const RowsOut to = rows_of(out);
  // Heads that end inside a group cannot be quantised one by one.
  if (to.first.format != RowFormat::kInt8 || layer.head_dim % kGroupSize == 0) {
    attention_.run(qkv, layer, kv, to);
    return;
  }
  const RowsOut plain{{RowFormat::kF32, attended_.as<float>(), nullptr, 0},
                      out.cols * static_cast<int64_t>(sizeof(float)),
                      0};
  attention_.run(qkv, layer, kv, plain);
  for_range(batch.n_rows, 1, int64_t{4} * batch.n_rows * out.cols,
            [&](int64_t begin, int64_t end, int) {
              for (int64_t row = begin; row < end; ++row) {
                kernels_.copy(static_cast<float*>(plain.row(row).numbers), to.row(row), out.cols);
              }
            });
}

void CpuBackend::activate(const float* gate_up, int n_rows, Activation kind, bool gated,
                          Activations& out) {
  const auto kernel = kind == Activation::kSilu       ? kernels_.silu
                      : kind == Activation::kGeluTanh ? kernels_.gelu_tanh
                                                      : kernels_.gelu;
  const int n = out.cols;
  const int64_t row_size = gated ? int64_t{2} * n : n;
  const RowsOut to = rows_of(out);
  const int64_t parts = (n + kActivateColumns - 1) / kActivateColumns;
  for_range(n_rows * parts, 1, int64_t{8} * n_rows * n, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / parts;
      const int first = static_cast<int>(item % parts) * kActivateColumns;
      const float* gate = gate_up + row * row_size;
      kernel(gate, gated ? gate + n : nullptr, to.row(row), first,
             std::min(n, first + kActivateColumns));
    }
  });
}

void CpuBackend::copy_block(KvStorage& kv, int from, int to) {
  const KvLayout layout = kv_layout(kv);
  std::byte* head = kv.data.as<std::byte>();
  for (int i = 0; i < kv.n_layers * kv.n_kv_heads; ++i, head += layout.head_bytes) {
    const auto copy = [&](std::byte* blocks, size_t bytes) {
      std::memcpy(blocks + to * bytes, blocks + from * bytes, bytes);
    };
    copy(head, layout.key_block_bytes);
    copy(head + layout.values, layout.value_block_bytes);
  }
}

void CpuBackend::for_each(int64_t n, int64_t work,
                          FunctionRef<void(int64_t item, int worker)> task) {
  for_range(n, 1, work, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t item = begin; item < end; ++item) task(item, worker);
  });
}

}  // namespace cpu
}  // namespace pb
