// The operations of a forward pass.
#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/error.h"
#include "cuda/backend/cuda_backend.h"
#include "cuda/rows/rows_launch.h"
#include "cuda/weights/pack.h"

namespace pb::cuda {
namespace {

static_assert(kRopePositions == kRopeAxes);

// Returns the number of later positions that a query sees, as far as its sequence has rows in the
// pass.
int positions_after(const AttentionLayer& layer) {
  if (layer.causal) return 0;
  return layer.sliding_window > 0 ? layer.sliding_window - 1 : std::numeric_limits<int>::max();
}

HeadNorm head_norm(const Norm* norm, int head_dim) {
  if (norm == nullptr || norm->weight.size != head_dim) return {};
  return {.weight = norm->weight.values.as<float>(),
          .bias = norm->bias.values.as<float>(),
          .eps = norm->eps,
          .layer_norm = norm->kind == NormKind::kLayer ? 1 : 0};
}

}  // namespace

void CudaBackend::plan(const RowBatch& batch, const KvStorage&) {
  batch_ = batch;
  model_ = &models_[static_cast<size_t>(batch.model)];
  pass_ = model_->memory.get();
  n_rows_ = batch.n_rows;
  n_sampled_ = n_taken_ = 0;
  n_changes_ = 0;
  samples_planned_ = false;
  attempt([&] {
    const auto copy = [](const auto& from, const auto& to) { std::ranges::copy(from, to.host); };
    const auto n_rows = static_cast<size_t>(batch.n_rows);
    copy(std::span(batch.tokens, n_rows), pass_->tokens);
    copy(std::span(batch.positions, n_rows), pass_->positions);
    if (batch.rope_positions != nullptr) {
      copy(std::span(batch.rope_positions, n_rows * kRopeAxes), pass_->rope_positions);
    }
    copy_given(batch.given);
    copy(batch.logits_rows, pass_->logits_rows);
    copy(batch.pooled_rows, pass_->pooled_rows);
    const int padded = is_decode_pass() ? graphs_->padded_rows(batch.n_rows) : batch.n_rows;
    const auto pad = [&](const Mirrored<int32_t>& array) {  // token 0 and position 0 always exist
      std::fill(array.host + batch.n_rows, array.host + padded, 0);
    };
    pad(pass_->tokens), pad(pass_->positions), pad(pass_->logits_rows);
    recurrent_.plan(batch, is_decode_pass() ? padded : 0);
    pass_->upload_plan(plan_attention(batch));
    pass_->upload_given(n_given_ * static_cast<size_t>(model_->shape.given_columns));
  });
}

void CudaBackend::copy_given(std::span<const GivenRows> all) {
  n_given_ = 0;
  const auto columns = static_cast<size_t>(model_->shape.given_columns);
  for (const GivenRows& given : all) {
    for (int r = 0; r < given.n_rows; ++r, ++n_given_) {
      pass_->given_rows.host[n_given_] = given.first_row + r;
      std::copy_n(given.values + r * given.stride,
                  std::min(columns, static_cast<size_t>(given.stride)),
                  pass_->given.host + n_given_ * columns);
    }
  }
}

// Plans attention for every storage. Returns the total number of block table entries.
size_t CudaBackend::plan_attention(const RowBatch& batch) {
  const auto copy = [](const auto& from, const auto& to) { std::ranges::copy(from, to.host); };
  size_t n_tables = 0;
  for (size_t i = 0; i < model_->attention_plans.size(); ++i) {
    AttentionPlan& plan = model_->attention_plans[i];
    plan.make(batch, static_cast<int>(n_tables));
    model_->attention_lists[i] = plan.lists();
    const AttentionMemory& memory = pass_->attention[i];
    *memory.counts.host = plan.counts();
    copy(plan.rows(), memory.rows);
    copy(plan.queries(), memory.queries);
    copy(plan.small_items(), memory.small_items);
    copy(plan.large_items(), memory.large_items);
    copy(plan.split_queries(), memory.split_queries);
    std::ranges::copy(plan.block_tables(), pass_->block_tables.host + n_tables);
    n_tables += plan.block_tables().size();
  }
  return n_tables;
}

void CudaBackend::gather(const Matrix& table, const int32_t* ids, Buffer& x, Store store,
                         float scale) {
  attempt([&] {
    device_->launch(gather_launch(weight_layout(table.n_out, table.n_in, table.dtype),
                                  pointers_of(table), ids, n_rows_, x.as<float>(), store, scale));
  });
}

void CudaBackend::embed(const Matrix& table, float scale, Buffer& x) {
  gather(table, pass_->tokens.device, x, Store::kSet, scale);
}

void CudaBackend::embed_add(const Matrix& table, Buffer& x) {
  gather(table, pass_->positions.device, x, Store::kAdd, 1.0f);
}

void CudaBackend::give_rows(int first_column, int columns, Store store, Buffer& x) {
  if (n_given_ == 0) return;
  attempt([&] {
    device_->launch(
        give_rows_launch(static_cast<int>(n_given_), {.values = pass_->given.device + first_column,
                                                      .stride = model_->shape.given_columns,
                                                      .rows = pass_->given_rows.device,
                                                      .columns = columns,
                                                      .x = x.as<float>(),
                                                      .adds = store == Store::kAdd ? 1 : 0}));
  });
}

const int32_t* CudaBackend::row_numbers(Rows rows) const {
  switch (rows.of) {
    case Rows::Of::kLogitsRows:
      return pass_->logits_rows.device + rows.first;
    case Rows::Of::kPooledRows:
      return pass_->pooled_rows.device + rows.first;
    default:
      return every_row_.as<int32_t>() + rows.first;
  }
}

void CudaBackend::norm(const Buffer& x, Rows rows, const Norm& norm, Activations& out) {
  attempt([&] {
    device_->launch(norm_launch(norm.kind, activation_dtype(out.dtype), rows.n,
                                {.x = x.as<float>(),
                                 .rows = row_numbers(rows),
                                 .weight = norm.weight.values.as<float>(),
                                 .bias = norm.bias.values.as<float>(),
                                 .hidden = norm.weight.size,
                                 .eps = norm.eps,
                                 .out = out.data.as<void>(),
                                 .row_stride = out.row_stride}));
  });
}

// In-place operation is safe: a thread reads only the numbers that it writes, and writes them after
// the last sum is complete.
void CudaBackend::norm_in_place(Buffer& x, int n_rows, const Norm& norm) {
  attempt([&] {
    device_->launch(norm_launch(norm.kind, DType::kF32, n_rows,
                                {.x = x.as<float>(),
                                 .rows = every_row_.as<int32_t>(),
                                 .weight = norm.weight.values.as<float>(),
                                 .bias = norm.bias.values.as<float>(),
                                 .hidden = norm.weight.size,
                                 .eps = norm.eps,
                                 .out = x.as<void>(),
                                 .row_stride = norm.weight.size}));
  });
}

void CudaBackend::norm_add(const Buffer& y, int n_rows, const Norm& norm, Buffer& x) {
  attempt([&] {
    device_->launch(norm_rows_launch(n_rows, {.y = y.as<float>(),
                                              .y_stride = norm.weight.size,
                                              .weight = norm.weight.values.as<float>(),
                                              .hidden = norm.weight.size,
                                              .eps = norm.eps,
                                              .out = x.as<float>(),
                                              .out_stride = norm.weight.size,
                                              .adds = 1,
                                              .scale = norm.sum_scale}));
  });
}

void CudaBackend::round(const Buffer& x, int n_rows, Activations& out) {
  attempt([&] {
    device_->launch(round_launch(activation_dtype(out.dtype), n_rows,
                                 {.x = x.as<float>(),
                                  .cols = out.cols,
                                  .out = out.data.as<void>(),
                                  .row_stride = out.row_stride}));
  });
}

void CudaBackend::permute(const Activations& x, int n_rows, const Buffer& order, Activations& out) {
  attempt([&] {
    device_->launch(permute_launch(activation_dtype(out.dtype), n_rows,
                                   {.x = x.data.as<float>(),
                                    .x_stride = x.row_stride,
                                    .order = order.as<int32_t>(),
                                    .cols = out.cols,
                                    .out = out.data.as<void>(),
                                    .row_stride = out.row_stride}));
  });
}

void CudaBackend::matmul(const Activations& x, int n_rows, const Matrix& w, Buffer& y,
                         Store store) {
  attempt([&] {
    const GemmSizes sizes{n_rows, w.n_out, w.n_in, w.dtype};
    const GemmOperands operands{.x = x.data.as<void>(),
                                .x_stride = static_cast<int>(x.row_stride),
                                .w = pointers_of(w),
                                .y = y.as<float>() + w.first_out,
                                .scratch = gemm_scratch_.as<float>(),
                                .y_stride = w.y_columns()};
    launch_gemm(*device_, sizes, choose_gemm(sizes, gemm_device_), operands, store);
  });
}

KvLayer CudaBackend::kv_layer(const KvStorage& kv, int layer) const {
  const bool scaled = kv.dtype == DType::kInt8;
  const size_t row_bytes = static_cast<size_t>(kv.head_dim) * (scaled ? 1 : dtype_size(kv.dtype));
  const size_t rows = static_cast<size_t>(kv.n_blocks) * 2 *
                      static_cast<size_t>(kv.n_kv_heads * kv.block_size);  // rows of a layer
  const size_t first_row = static_cast<size_t>(layer) * rows;
  auto* const data = const_cast<std::byte*>(kv.data.as<std::byte>());
  auto* const scales =
      reinterpret_cast<float*>(data + static_cast<size_t>(kv.n_layers) * rows * row_bytes);
  return {.numbers = data + first_row * row_bytes,
          .scales = scaled ? scales + first_row : nullptr,
          .n_kv_heads = kv.n_kv_heads,
          .block_shift = std::countr_zero(static_cast<unsigned>(kv.block_size)),
          .head_dim = kv.head_dim};
}

// Applies a norm over all heads of q, or of k, as one row. Does nothing if the norm is per head.
void CudaBackend::norm_whole(const Norm* norm, float* rows, int64_t row_size, int head_dim) {
  if (norm == nullptr || norm->weight.size == head_dim) return;
  device_->launch(norm_rows_launch(n_rows_, {.y = rows,
                                             .y_stride = row_size,
                                             .weight = norm->weight.values.as<float>(),
                                             .hidden = norm->weight.size,
                                             .eps = norm->eps,
                                             .out = rows,
                                             .out_stride = row_size,
                                             .adds = 0,
                                             .scale = 1.0f}));
}

void CudaBackend::rope_and_store(Buffer& qkv, const AttentionLayer& layer, KvStorage& kv) {
  attempt([&] {
    const AttentionMemory& planned = pass_->attention[static_cast<size_t>(layer.storage)];
    const bool rotates = layer.rope != nullptr;
    const RopeTable* const q_rope = layer.q_rope != nullptr ? layer.q_rope : layer.rope;
    const int head_dim = layer.head_dim;
    const int64_t row_size = static_cast<int64_t>(layer.n_heads + 2 * layer.n_kv_heads) * head_dim;
    float* const keys = qkv.as<float>() + static_cast<int64_t>(layer.n_heads) * head_dim;
    norm_whole(layer.q_norm, qkv.as<float>(), row_size, head_dim);
    norm_whole(layer.k_norm, keys, row_size, head_dim);
    device_->launch(launch_rope_store(
        kv.dtype, n_rows_,
        {.qkv = qkv.as<float>(),
         .rows = planned.rows.device,
         .n_rows = &planned.counts.device->n_rows,
         .cosines = rotates ? layer.rope->cosines.as<float>() : nullptr,
         .sines = rotates ? layer.rope->sines.as<float>() : nullptr,
         .q_cosines = rotates ? q_rope->cosines.as<float>() : nullptr,
         .q_sines = rotates ? q_rope->sines.as<float>() : nullptr,
         .axes = rotates ? layer.rope->axes.as<int32_t>() : nullptr,
         .rope_positions = pass_->rope_positions.device,
         .q_norm = head_norm(layer.q_norm, head_dim),
         .k_norm = head_norm(layer.k_norm, head_dim),
         .v_norm = head_norm(layer.v_norm, head_dim),
         .norms_last = layer.norms_after_rope ? 1 : 0,
         .n_heads = layer.n_heads,
         .n_computed = layer.n_heads + (layer.writes_kv ? 2 * layer.n_kv_heads : 0),
         .kv = kv_layer(kv, layer.layer)}));
    device_->mark();
  });
}

void CudaBackend::attention(const Buffer& qkv, const AttentionLayer& layer, const KvStorage& kv,
                            Activations& out) {
  attempt([&] {
    const auto storage = static_cast<size_t>(layer.storage);
    const AttentionMemory& planned = pass_->attention[storage];
    const int64_t n_states = model_->attention_plans[storage].n_states();
    const uint8_t lists = model_->attention_lists[storage];
    const int out_bf16 = activation_dtype(out.dtype) == DType::kBF16 ? 1 : 0;
    const float* const sinks = layer.sinks == nullptr ? nullptr : layer.sinks->values.as<float>();
    AttentionParams params{.qkv = qkv.as<float>(),
                           .kv = kv_layer(kv, layer.layer),
                           .n_heads = layer.n_heads,
                           .sliding_window = layer.sliding_window,
                           .after = positions_after(layer),
                           .scale = layer.scale,
                           .softcap = layer.softcap,
                           .sinks = sinks,
                           .queries = planned.queries.device,
                           .items = planned.small_items.device,
                           .n_items = &planned.counts.device->n_small_items,
                           .block_tables = pass_->block_tables.device,
                           .states = states_.as<float>(),
                           .n_states = n_states,
                           .out = out.data.as<void>(),
                           .out_stride = out.row_stride,
                           .out_bf16 = out_bf16,
                           .left = nullptr};
    if ((lists & kSmallItems) != 0) {
      device_->launch(launch_attention(attention_device_, kv.dtype, false, params));
    }
    if ((lists & kLargeItems) != 0) {
      params.items = planned.large_items.device;
      params.n_items = &planned.counts.device->n_large_items;
      if (has_tma_kernel(attention_device_, {kv.dtype, kv.head_dim, kv.block_size})) {
        if (const auto map = device_->make_tensor_map(tiled_kv(params.kv, kv.n_blocks))) {
          params.left = left_items_.as<int32_t>();
          device_->launch(launch_tma_attention(attention_device_, kv.dtype, params, *map));
        }
      }
      device_->launch(launch_attention(attention_device_, kv.dtype, true, params));
    }
    if ((lists & kSplitQueries) == 0) return;
    device_->launch(
        launch_merge(attention_device_, {.states = states_.as<float>(),
                                         .n_states = n_states,
                                         .queries = planned.queries.device,
                                         .split_queries = planned.split_queries.device,
                                         .n_split_queries = &planned.counts.device->n_split_queries,
                                         .n_heads = layer.n_heads,
                                         .n_kv_heads = layer.n_kv_heads,
                                         .head_dim = layer.head_dim,
                                         .sliding_window = layer.sliding_window,
                                         .after = positions_after(layer),
                                         .sinks = sinks,
                                         .out = out.data.as<void>(),
                                         .out_stride = out.row_stride,
                                         .out_bf16 = out_bf16}));
  });
}

void CudaBackend::activate(const Buffer& gate_up, int n_rows, Activation kind, bool gated,
                           Activations& out) {
  const auto* gate = gate_up.as<float>();
  const int64_t stride = int64_t{gated ? 2 : 1} * out.cols;
  activate_rows({gate, stride}, {gated ? gate + out.cols : nullptr, stride}, n_rows, kind, out);
}

void CudaBackend::xielu(const Buffer& x, int n_rows, const Xielu& of_layer, Activations& out) {
  attempt([&] {
    device_->launch(xielu_launch(activation_dtype(out.dtype), n_rows,
                                 {.rows = {.gate = x.as<float>(),
                                           .gate_stride = out.cols,
                                           .up = nullptr,
                                           .up_stride = 0,
                                           .cols = out.cols,
                                           .out = out.data.as<void>(),
                                           .row_stride = out.row_stride},
                                  .of_layer = of_layer}));
  });
}

void CudaBackend::multiply_activated(const Buffer& gate, int n_rows, Activation kind,
                                     const Buffer& factors, int n_factors, int first,
                                     Activations& out) {
  activate_rows({gate.as<float>(), out.cols}, {factors.as<float>() + first, n_factors}, n_rows,
                kind, out);
}

void CudaBackend::activate_rows(RowsAt gate, RowsAt up, int n_rows, Activation kind,
                                Activations& out) {
  attempt([&] {
    device_->launch(activate_launch(kind, activation_dtype(out.dtype), n_rows,
                                    {.gate = gate.numbers,
                                     .gate_stride = gate.stride,
                                     .up = up.numbers,
                                     .up_stride = up.stride,
                                     .cols = out.cols,
                                     .out = out.data.as<void>(),
                                     .row_stride = out.row_stride}));
  });
}

void CudaBackend::scale_logits(Buffer& logits, int n_rows, float scale, float softcap) {
  attempt([&] {
    device_->launch(scale_logits_launch({.logits = logits.as<float>(),
                                         .n = int64_t{n_rows} * model_->shape.vocab_size,
                                         .scale = scale,
                                         .softcap = softcap}));
  });
}

void CudaBackend::download(const Buffer& from, std::span<std::byte> to) {
  attempt([&] { device_->copy_to_host(to.data(), from.as<void>(), to.size()); });
}

void CudaBackend::copy_block(KvStorage& kv, int from, int to) {
  attempt([&] {
    const bool scaled = kv.dtype == DType::kInt8;
    const KvLayer first = kv_layer(kv, 0);
    const int64_t places = int64_t{2} * kv.n_kv_heads * kv.block_size;
    const int64_t number = scaled ? 1 : static_cast<int64_t>(dtype_size(kv.dtype));
    const auto copy = [&](void* data, int64_t block_bytes) {
      device_->launch(launch_copy_block(kv.n_layers, {.data = static_cast<unsigned char*>(data),
                                                      .block_bytes = block_bytes,
                                                      .n_blocks = kv.n_blocks,
                                                      .from = from,
                                                      .to = to}));
    };
    copy(first.numbers, places * kv.head_dim * number);
    if (scaled) copy(first.scales, places * static_cast<int64_t>(sizeof(float)));
  });
}

void CudaBackend::finish(Heartbeat& heartbeat) {
  const auto wait = [&] { device_->finish([&heartbeat] { heartbeat.beat(); }); };
  attempt([&] {
    wait();
    take_samples();
  });
  if (failure_ == nullptr) return;
  // Work that was launched before the failure still accesses host memory: the plan, which the next
  // pass overwrites, and the caller's buffers, which may be freed by then. So this waits for the
  // GPU.
  const std::exception_ptr failure = std::exchange(failure_, nullptr);
  attempt(wait);
  failure_ = nullptr;
  std::rethrow_exception(failure);
}

void CudaBackend::restart() {
  if (device_->is_lost()) {
    throw Error(ErrorCode::kEngine,
                "the GPU can be used no more by this process: start a new one" +
                    (device_->why_lost().empty() ? "" : "; " + device_->why_lost()));
  }
  failure_ = nullptr;
  n_sampled_ = n_taken_ = 0;
  n_changes_ = 0;
  if (graphs_ != nullptr) graphs_->clear();
}

}  // namespace pb::cuda
