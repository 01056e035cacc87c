#include "cpu/cpu_backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "cpu/attention/kv_layout.h"
#include "cpu/dispatch/dispatch.h"
#include "cpu/weights/pack.h"
#include "formats/tensors/read_tensor.h"
#include "ops/rope_values.h"
#include "os/memory.h"

namespace pb {

std::unique_ptr<Backend> make_cpu_backend(int n_threads) {
  const char* forced = std::getenv("PYBATCHER_CPU_TARGET");
  return make_cpu_backend(n_threads, forced == nullptr ? "" : forced);
}

std::unique_ptr<Backend> make_cpu_backend(int n_threads, const std::string& target) {
  if (n_threads < 0) {
    throw Error(ErrorCode::kConfig, "n_threads is " + std::to_string(n_threads) +
                                        "; use 0 for one on each core of this process, or more");
  }
  const cpu::Kernels& kernels = cpu::choose_target(target, "PYBATCHER_CPU_TARGET");
  return std::make_unique<cpu::CpuBackend>(n_threads == 0 ? available_cores() : n_threads, kernels);
}

namespace cpu {
namespace {

size_t largest_scratch(const Kernels& kernels) {
  constexpr size_t kLine = 64;
  return (static_cast<size_t>(most_scratch_bytes(kernels)) + kLine - 1) / kLine * kLine;
}

// Returns the bytes of a number in a row of Activations.
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
      experts_(*this),
      recurrent_(*this),
      prefetch_quick_(prefetches_quick()),
      scratch_bytes_(largest_scratch(kernels)),
      scratch_(scratch_bytes_ * n_threads) {}

const ProductKernel& CpuBackend::product(DType weights, bool compressed) const {
  return product_kernel(kernels_, weights, compressed);
}

RowsOut CpuBackend::rows_of(Activations& a) const {
  RowsOut rows;
  rows.first.format = product(a.dtype).row;
  rows.first.numbers = a.data.as<std::byte>();
  rows.row_bytes = a.row_stride * static_cast<int64_t>(number_bytes(rows.first.format));
  if (rows.first.format == RowFormat::kInt8) {
    rows.first.groups = a.groups.as<RowGroup>();
    rows.group_stride = a.group_stride;
  }
  return rows;
}

// -- at load ----------------------------------------------------------------------------------

PackedMatrix CpuBackend::pack(std::span<const TensorView> parts, std::span<const TensorView> biases,
                              DType dtype) {
  const bool compressed = compresses(dtype);
  return pack_matrix(parts, biases, dtype, product(dtype, compressed).tile, pool_);
}

std::string CpuBackend::layout() const {
  return target() + " " + std::to_string(kPackedLayoutVersion);
}

MatrixBytes CpuBackend::matrix_bytes(int n_out, int n_in, DType dtype, bool compressed) const {
  return packed_bytes(n_out, n_in, dtype, product(dtype, compressed).tile);
}

// Device memory is host memory: a mapped file is used in place.
Matrix CpuBackend::place(PackedMatrix packed) {
  return {packed.n_out,
          packed.n_in,
          packed.dtype,
          Buffer::on_host(std::move(packed.packed)),
          Buffer::on_host(std::move(packed.bias)),
          Buffer::on_host(std::move(packed.order)),
          packed.compressed};
}

Vector CpuBackend::make_vector(const TensorView& view) {
  return {.size = static_cast<int>(view.rows), .values = Buffer::on_host(read_vector(view))};
}

Buffer CpuBackend::make_buffer(size_t bytes) { return Buffer::on_host(AlignedBuffer(bytes)); }

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
  // Rows at a distance of a multiple of 4 KiB would compete for the same few cache lines.
  if (row_bytes % kPage == 0) row_bytes += kLine;
  a.row_stride = row_bytes / number;
  a.data = make_buffer(static_cast<size_t>(max_rows) * row_bytes);
  if (format == RowFormat::kInt8) {
    constexpr int64_t kEvenGroups = 16;  // whole cache lines
    static_assert(kEvenGroups * sizeof(RowGroup) % kLine == 0);
    const int64_t n_groups = (cols + kGroupSize - 1) / kGroupSize;
    a.group_stride = (n_groups + kEvenGroups - 1) / kEvenGroups * kEvenGroups;
    a.groups = make_buffer(sizeof(RowGroup) * max_rows * a.group_stride);
  }
  return a;
}

RopeTable CpuBackend::make_rope(std::span<const float> inv_freq, std::span<const float> factors,
                                std::span<const int32_t> axes) {
  RopeTable table;
  table.n_positions = static_cast<int>(factors.size());
  table.half_dim = static_cast<int>(inv_freq.size());
  const size_t n = factors.size() * inv_freq.size();
  table.cosines = make_buffer(n * sizeof(float));
  table.sines = make_buffer(n * sizeof(float));
  compute_rope(inv_freq, factors, pool_, table.cosines.as<float>(), table.sines.as<float>());
  if (!axes.empty()) {
    table.axes = make_buffer(axes.size_bytes());
    std::ranges::copy(axes, table.axes.as<int32_t>());
  }
  return table;
}

KvStorage CpuBackend::make_kv(int n_blocks, int block_size, int n_layers, int n_kv_heads,
                              int head_dim, DType dtype) {
  check_block_size(block_size);
  KvStorage kv;
  kv.n_blocks = n_blocks;
  kv.block_size = block_size;
  kv.n_layers = n_layers;
  kv.n_kv_heads = n_kv_heads;
  kv.head_dim = head_dim;
  kv.dtype = dtype;
  const KvLayout layout = kv_layout(kv);
  kv.block_bytes = (layout.key_block_bytes + layout.value_block_bytes) * n_kv_heads * n_layers;
  kv.data = make_buffer(kv.block_bytes * n_blocks);
  return kv;
}

size_t CpuBackend::memory_for_kv(size_t mapped_weights) {
  const size_t available = available_memory();
  return available > mapped_weights ? (available - mapped_weights) / 2 : 0;
}

void CpuBackend::prepare(const PassShape& shape) {
  attention_.prepare(shape.model, shape.max_rows, shape.n_heads, shape.storages);
  sequence_of_row_.resize(std::max(sequence_of_row_.size(), static_cast<size_t>(shape.max_rows)));
  int head_dim = 0;  // the largest head size that is not a multiple of a group
  for (const LayerStorage& storage : shape.storages) {
    if (storage.shape.head_dim % kGroupSize == 0) continue;
    head_dim = std::max(head_dim, storage.shape.head_dim);
  }
  const size_t attended = sizeof(float) * shape.max_rows * shape.n_heads * head_dim;
  if (attended > attended_.bytes()) attended_ = AlignedBuffer(attended);
  if (shape.model == 0) vocab_size_ = shape.vocab_size;
  restart();
}

}  // namespace cpu
}  // namespace pb
