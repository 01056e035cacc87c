#include "cuda/backend/cuda_backend.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "cuda/weights/pack.h"
#include "formats/tensors/read_tensor.h"
#include "ops/rope_values.h"

namespace pb::cuda {
namespace {

constexpr size_t kAlignment = 256;      // alignment of the parts of a weight
constexpr int kActivationPadding = 16;  // numbers

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

CudaBackend::CudaBackend(std::unique_ptr<Device> device, std::string name, int n_threads,
                         CudaOptions options)
    : device_(std::move(device)),
      name_(std::move(name)),
      options_(options),
      pool_(n_threads),
      gemm_device_{
          .n_sms = device_->properties().n_multiprocessors,
          .has_wgmma = device_->properties().major == 9 && device_->properties().minor == 0,
          .has_tma =
              options.tma && device_->properties().major == 9 && device_->properties().minor == 0},
      attention_device_{.n_multiprocessors = device_->properties().n_multiprocessors,
                        .max_shared_bytes = device_->properties().most_shared_bytes,
                        .has_tma = gemm_device_.has_tma} {}

std::string CudaBackend::target() const {
  const DeviceProperties& gpu = device_->properties();
  return "sm_" + std::to_string(10 * gpu.major + gpu.minor);
}

// -- at load ----------------------------------------------------------------------------------

// Packs a weight as values followed by scales; each part starts at a multiple of kAlignment.
PackedMatrix CudaBackend::pack(std::span<const TensorView> parts,
                               std::span<const TensorView> biases, DType dtype) {
  int64_t n_out = 0;
  for (const TensorView& part : parts) n_out += part.rows;
  const WeightLayout layout =
      weight_layout(static_cast<int>(n_out), static_cast<int>(parts[0].cols), dtype);
  PackedMatrix packed;
  packed.n_out = layout.n_out;
  packed.n_in = layout.n_in;
  packed.dtype = dtype;
  packed.packed = AlignedBuffer(aligned(layout.value_bytes) + layout.scale_bytes);
  auto* const bytes = packed.packed.as<std::byte>();
  pack_weight(parts, layout,
              {.values = {bytes, layout.value_bytes},
               .scales = {bytes + aligned(layout.value_bytes), layout.scale_bytes}},
              pool_);
  packed.bias = read_biases(parts, biases, n_out);
  return packed;
}

std::string CudaBackend::layout() const { return "cuda " + std::to_string(kWeightLayoutVersion); }

MatrixBytes CudaBackend::matrix_bytes(int n_out, int n_in, DType dtype, bool) const {
  const WeightLayout layout = weight_layout(n_out, n_in, dtype);
  return {.packed = aligned(layout.value_bytes) + layout.scale_bytes, .bias = layout.bias_bytes};
}

Buffer CudaBackend::upload(std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  auto memory = std::make_shared<DeviceMemory>(device_->allocate(bytes.size()));
  void* const address = memory->as();
  device_->copy_to_device(address, bytes.data(), bytes.size());
  device_->finish();
  return {address, bytes.size(), std::move(memory)};
}

Matrix CudaBackend::place(PackedMatrix packed) {
  const Product product{packed.n_out, packed.n_in, packed.dtype};
  if (std::ranges::find(products_, product) == products_.end()) products_.push_back(product);
  const auto bytes_of = [](const AlignedBuffer& buffer) {
    return std::span(buffer.as<std::byte>(), buffer.bytes());
  };
  return {packed.n_out,
          packed.n_in,
          packed.dtype,
          upload(bytes_of(packed.packed)),
          upload(bytes_of(packed.bias)),
          upload(bytes_of(packed.order))};
}

Vector CudaBackend::make_vector(const TensorView& view) {
  const AlignedBuffer values = read_vector(view);
  return {.size = static_cast<int>(view.rows),
          .values = upload({values.as<std::byte>(), values.bytes()})};
}

Buffer CudaBackend::make_buffer(size_t bytes) {
  if (bytes == 0) return {};
  auto memory = std::make_shared<DeviceMemory>(device_->allocate(bytes));
  void* const address = memory->as();
  device_->fill(address, 0, bytes);
  device_->finish();
  return {address, bytes, std::move(memory)};
}

Activations CudaBackend::make_activations(int max_rows, int cols, DType weights) {
  Activations a;
  a.max_rows = max_rows;
  a.cols = cols;
  a.dtype = weights;
  a.row_stride = (cols + kActivationPadding - 1) / kActivationPadding * kActivationPadding;
  const size_t number = weights == DType::kF32 ? sizeof(float) : sizeof(uint16_t);
  a.data = make_buffer(static_cast<size_t>(max_rows) * static_cast<size_t>(a.row_stride) * number);
  return a;
}

// Computes the same numbers as the CPU backend's table: cosines and sines are computed on the host.
RopeTable CudaBackend::make_rope(std::span<const float> inv_freq, std::span<const float> factors,
                                 std::span<const int32_t> axes) {
  const size_t half = inv_freq.size();
  std::vector<float> cosines(factors.size() * half);
  std::vector<float> sines(cosines.size());
  compute_rope(inv_freq, factors, pool_, cosines.data(), sines.data());
  return {.n_positions = static_cast<int>(factors.size()),
          .half_dim = static_cast<int>(half),
          .cosines = upload(std::as_bytes(std::span(cosines))),
          .sines = upload(std::as_bytes(std::span(sines))),
          .axes = axes.empty() ? Buffer() : upload(std::as_bytes(axes))};
}

// The layout is (n_layers, n_blocks, 2, n_kv_heads, block_size, head_dim), with keys before values;
// for int8 the scales (n_layers, n_blocks, 2, n_kv_heads, block_size) follow.
KvStorage CudaBackend::make_kv(int n_blocks, int block_size, int n_layers, int n_kv_heads,
                               int head_dim, DType dtype) {
  check_block_size(block_size);
  KvStorage kv;
  kv.n_blocks = n_blocks;
  kv.block_size = block_size;
  kv.n_layers = n_layers;
  kv.n_kv_heads = n_kv_heads;
  kv.head_dim = head_dim;
  kv.dtype = dtype;
  const size_t places = size_t{2} * static_cast<size_t>(n_kv_heads * block_size);
  const size_t layers = static_cast<size_t>(n_layers);
  const size_t number = dtype == DType::kInt8 ? 1 : dtype_size(dtype);
  const size_t scale = dtype == DType::kInt8 ? sizeof(float) : 0;
  kv.block_bytes = layers * places * (static_cast<size_t>(head_dim) * number + scale);
  kv.data = make_buffer(kv.block_bytes * static_cast<size_t>(n_blocks));
  return kv;
}

size_t CudaBackend::gemm_scratch_for(int max_rows) const {
  size_t most = 0;
  for (const Product& product : products_) {
    for (int n_rows = 1; n_rows <= max_rows; ++n_rows) {
      const GemmSizes sizes{n_rows, product.n_out, product.n_in, product.dtype};
      most = std::max(most, gemm_scratch_bytes(sizes, choose_gemm(sizes, gemm_device_)));
    }
  }
  return most;
}

// Offers half of the free memory. The rest is for kernels, which the driver loads at their first
// launch, for graphs, and for other engines on this GPU: another model's, or the one that a reload
// starts.
size_t CudaBackend::memory_for_kv(size_t) { return device_->free_memory().free / 2; }

AttentionLimits CudaBackend::attention_limits(const PassShape& shape,
                                              const LayerStorage& storage) const {
  const KvShape kv = storage.shape;
  const AttentionKv stored{shape.kv_dtype, kv.head_dim, shape.block_size};
  const int blocks_of_sequence = (shape.n_positions + shape.block_size - 1) / shape.block_size;
  return {
      .max_rows = shape.max_rows,
      .max_positions = shape.n_positions,
      .max_table_entries = std::min(shape.max_rows, shape.max_sequences) * blocks_of_sequence,
      .block_size = shape.block_size,
      .layer_group = storage.group,
      .group = shape.n_heads / kv.n_heads,
      .n_kv_heads = kv.n_heads,
      .head_dim = kv.head_dim,
      .widest_window = storage.window,
      .causal = shape.causal,
      .large_tile = large_tile(attention_device_, stored),
      .n_resident_blocks = resident_blocks(attention_device_),
      .n_resident_large_blocks = resident_large_blocks(attention_device_, stored),
  };
}

void CudaBackend::prepare(const PassShape& shape) {
  ModelPasses& model = models_[static_cast<size_t>(shape.model)];
  model.shape = shape;
  const bool is_text = shape.model == 0;
  const auto max_rows = static_cast<size_t>(shape.max_rows);
  const auto vocab = static_cast<size_t>(shape.vocab_size);
  PassLimits limits{.max_rows = max_rows,
                    .given_columns = static_cast<size_t>(shape.given_columns),
                    .max_state_rows = shape.has_states() ? max_rows : 0,
                    .max_changes = is_text ? kMostChanges + vocab : 0};
  size_t most_states = 0;  // counted in numbers
  size_t most_left = 0;
  model.attention_plans.clear();
  for (const LayerStorage& storage : shape.storages) {
    const AttentionPlan& plan =
        model.attention_plans.emplace_back(attention_limits(shape, storage));
    limits.attention.push_back({.max_queries = plan.max_queries(),
                                .max_small_items = plan.max_small_items(),
                                .max_large_items = plan.max_large_items()});
    limits.max_block_tables += plan.max_block_tables();
    most_left =
        std::max(most_left, plan.max_large_items() * static_cast<size_t>(storage.shape.n_heads));
    most_states = std::max(most_states, static_cast<size_t>(plan.n_states()) *
                                            static_cast<size_t>(storage.shape.n_heads) *
                                            static_cast<size_t>(storage.shape.head_dim + 2));
  }
  model.attention_lists.assign(model.attention_plans.size(), 0);
  model.memory = std::make_unique<PassMemory>(*device_, limits);
  // The passes of all models use this scratch memory, one after the other.
  const auto grow = [this](Buffer& buffer, size_t bytes) {
    if (bytes > buffer.bytes()) buffer = make_buffer(bytes);
  };
  std::vector<int32_t> every_row(std::max(max_rows, every_row_.bytes() / sizeof(int32_t)));
  std::iota(every_row.begin(), every_row.end(), 0);
  every_row_ = upload(std::as_bytes(std::span(every_row)));
  grow(gemm_scratch_, gemm_scratch_for(shape.max_rows));
  grow(states_, most_states * sizeof(float));
  grow(left_items_, most_left * sizeof(int32_t));
  if (!is_text) return;
  model_ = &model;
  pass_ = model.memory.get();
  sampling_planner_ = std::make_unique<SamplingPlanner>(shape.vocab_size);
  sampling_requests_.reserve(std::max(kMostSampledRows, kMostDecodeRows));
  scores_ = make_buffer(size_t{kMostSampledRows} * vocab * sizeof(float));
  recurrent_.prepare(shape);
  graphs_ = std::make_unique<DecodeGraphs>(*device_, shape.max_rows, options_.graphs);
}

}  // namespace pb::cuda
