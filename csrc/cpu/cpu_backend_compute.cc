// The operations of a pass on the CPU.

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "cpu/attention/kv_layout.h"
#include "cpu/cpu_backend.h"
#include "cpu/weights/pack.h"
#include "sampling/rows_to_sample.h"

namespace pb::cpu {
namespace {

// With so many rows, a matrix product writes more than it reads.
constexpr int kManyRows = 128;
constexpr int kCallsPerThread = 2;      // of a product of many rows, if there are enough tiles
constexpr int kActivateColumns = 1024;  // per item of activate
constexpr int kScaledLogits = 8192;     // per item of scale_logits
constexpr int kMinRowsPerItem = 24;     // of a matrix product that is divided by rows, too

// The angles of a row for a rope with axes: those of several positions.
class AnglesOfRow {
 public:
  // Points `rotate` to the cosines and sines of a row of the batch at `position`.
  void of(const RopeTable& rope, const RowBatch& batch, int64_t row, int position,
          RotateArgs& rotate) {
    const auto half = static_cast<size_t>(rope.half_dim);
    const float* cosines = rope.cosines.as<float>();
    const float* sines = rope.sines.as<float>();
    if (!rope.axes) {
      rotate.cosines = cosines + static_cast<size_t>(position) * half;
      rotate.sines = sines + static_cast<size_t>(position) * half;
      return;
    }
    if (made_ != &rope) {
      const int32_t* axes = rope.axes.as<int32_t>();
      const int32_t* positions = batch.rope_positions + row * kRopeAxes;
      for (size_t i = 0; i < half; ++i) {
        const size_t at = static_cast<size_t>(positions[axes[i]]) * half + i;
        cosines_[i] = cosines[at];
        sines_[i] = sines[at];
      }
      made_ = &rope;
    }
    rotate.cosines = cosines_.data();
    rotate.sines = sines_.data();
  }

 private:
  std::array<float, kMaxHeadDim / 2> cosines_;
  std::array<float, kMaxHeadDim / 2> sines_;
  const RopeTable* made_ = nullptr;  // the table of the angles
};

}  // namespace

void CpuBackend::plan(const RowBatch& batch, const KvStorage& kv) {
  batch_ = batch;
  for (const SequenceRows& sequence : batch.sequences) {
    std::fill_n(sequence_of_row_.begin() + sequence.first_row, sequence.n_rows, &sequence);
  }
  attention_.plan(batch, kv.block_size);
}

void CpuBackend::gather(const int32_t* ids, const Matrix& table, bool add, float scale, float* x) {
  const int64_t n = batch_.n_rows;
  // Each number of a packed row is in a different cache line, so that a row counts as much more
  // work than its size.
  for_rows(n, n * table.n_in * 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      float* to = x + r * table.n_in;
      unpack_row(table, product(table).tile, ids[r], add, to);
      if (scale != 1.0f) std::for_each_n(to, table.n_in, [scale](float& v) { v *= scale; });
    }
  });
}

void CpuBackend::embed(const Matrix& table, float scale, Buffer& x) {
  gather(batch_.tokens, table, false, scale, x.as<float>());
}

void CpuBackend::embed_add(const Matrix& table, Buffer& x) {
  gather(batch_.positions, table, true, 1.0f, x.as<float>());
}

void CpuBackend::give_rows(int first_column, int columns, Store store, Buffer& x) {
  for (const GivenRows& given : batch_.given) {
    for_rows(given.n_rows, int64_t{given.n_rows} * columns, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        const float* from = given.values + r * given.stride + first_column;
        float* to = x.as<float>() + (given.first_row + r) * columns;
        if (store == Store::kSet) {
          std::copy_n(from, columns, to);
        } else {
          for (int c = 0; c < columns; ++c) to[c] += from[c];
        }
      }
    });
  }
}

void CpuBackend::norm(const Buffer& x, Rows rows, const Norm& norm, Activations& out) {
  const int hidden = norm.weight.size;
  const NormArgs args{norm.weight.values.as<float>(), norm.bias.values.as<float>(), norm.eps,
                      hidden};
  const auto kernel = norm.kind == NormKind::kRms ? kernels_.rms_norm : kernels_.layer_norm;
  const RowsOut to = rows_of(out);
  const int32_t* list = rows.of == Rows::Of::kLogitsRows   ? batch_.logits_rows.data()
                        : rows.of == Rows::Of::kPooledRows ? batch_.pooled_rows.data()
                                                           : nullptr;
  for_rows(rows.n, int64_t{rows.n} * hidden, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = list == nullptr ? rows.first + i : list[rows.first + i];
      kernel(args, x.as<float>() + row * hidden, to.row(i));
    }
  });
}

void CpuBackend::norm_in_place(Buffer& x, int n_rows, const Norm& norm) {
  const int hidden = norm.weight.size;
  const NormArgs args{norm.weight.values.as<float>(), norm.bias.values.as<float>(), norm.eps,
                      hidden};
  const auto kernel = norm.kind == NormKind::kRms ? kernels_.rms_norm : kernels_.layer_norm;
  for_rows(n_rows, int64_t{2} * n_rows * hidden, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = x.as<float>() + i * hidden;
      kernel(args, row, {RowFormat::kF32, row, nullptr});
    }
  });
}

void CpuBackend::norm_add(const Buffer& y, int n_rows, const Norm& norm, Buffer& x) {
  const int hidden = norm.weight.size;
  const NormArgs args{norm.weight.values.as<float>(), nullptr, norm.eps, hidden, norm.sum_scale};
  for_rows(n_rows, int64_t{2} * n_rows * hidden, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      kernels_.rms_norm_add(args, y.as<float>() + row * hidden, x.as<float>() + row * hidden);
    }
  });
}

void CpuBackend::round(const Buffer& x, int n_rows, Activations& out) {
  const RowsOut to = rows_of(out);
  for_rows(n_rows, int64_t{n_rows} * out.cols, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      kernels_.copy(x.as<float>() + row * out.cols, to.row(row), out.cols);
    }
  });
}

void CpuBackend::permute(const Activations& x, int n_rows, const Buffer& order, Activations& out) {
  constexpr int64_t kGathered = 4;  // a look-up counts as so much work
  const RowsOut to = rows_of(out);
  const int64_t work = kGathered * n_rows * out.cols;
  for_rows(n_rows, work, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      kernels_.permute(x.data.as<float>() + row * x.row_stride, order.as<int32_t>(), to.row(row),
                       out.cols);
    }
  });
}

void CpuBackend::matmul(const Activations& x, int n_rows, const Matrix& w, Buffer& y, Store store) {
  const GemmArgs args{w.packed.as<std::byte>(),
                      w.bias.as<float>(),
                      x.data.as<std::byte>(),
                      x.row_stride,
                      x.groups.as<RowGroup>(),
                      x.group_stride,
                      y.as<float>() + w.first_out,
                      w.y_columns(),
                      w.n_out,
                      w.n_in,
                      store == Store::kAdd,
                      prefetch_quick_};
  const ProductKernel& kernel = product(w);
  const int64_t all_tiles = tiles_of(w.n_out, kernel.tile.columns);
  const bool many = n_rows >= kManyRows;
  const int64_t calls = (many ? kCallsPerThread : kItemsPerThread) * pool_.n_threads();
  const int64_t most_tiles =
      many ? kernel.tiles_per_call.of_many_rows : kernel.tiles_per_call.of_few_rows;
  const int64_t tiles = std::clamp(all_tiles / calls, int64_t{1}, most_tiles);
  const int64_t n_tiles = (all_tiles + tiles - 1) / tiles;  // calls per part of the rows
  // If there are too few tiles for all threads, the rows are divided, too.
  const int64_t wanted = kItemsPerThread * pool_.n_threads();
  const int64_t most_parts = (n_rows + kMinRowsPerItem - 1) / kMinRowsPerItem;
  const int64_t parts =
      std::clamp((wanted + n_tiles - 1) / n_tiles, int64_t{1}, std::max(most_parts, int64_t{1}));
  const int64_t rows_per_part = (n_rows + parts - 1) / parts;
  const int64_t work = int64_t{n_rows} * w.n_in * kernel.tile.columns * tiles;  // per call
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

void CpuBackend::rope_and_store(Buffer& qkv, const AttentionLayer& layer, KvStorage& kv) {
  const KvLayout layout = kv_layout(kv);
  const int head_dim = layer.head_dim;
  const auto group = static_cast<size_t>(layer.group);
  const int n_rotated = layer.n_heads + (layer.writes_kv ? layer.n_kv_heads : 0);
  const int64_t row_size = static_cast<int64_t>(layer.n_heads + 2 * layer.n_kv_heads) * head_dim;
  const auto is_whole = [head_dim](const Norm* norm) {
    return norm != nullptr && norm->weight.size != head_dim;
  };
  const auto norm_rows = [this](const Norm& norm, float* row) {
    const NormArgs args{norm.weight.values.as<float>(), nullptr, norm.eps, norm.weight.size};
    kernels_.rms_norm(args, row, {RowFormat::kF32, row, nullptr});
  };
  for_rows(batch_.n_rows, batch_.n_rows * row_size, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const SequenceRows& sequence = *sequence_of_row_[row];
      const int position = sequence.first_position + static_cast<int>(row) - sequence.first_row;
      RotateArgs rotate;
      rotate.head_dim = head_dim;
      AnglesOfRow angles;
      float* heads = qkv.as<float>() + row * row_size;
      if (is_whole(layer.q_norm)) norm_rows(*layer.q_norm, heads);
      if (is_whole(layer.k_norm)) {
        norm_rows(*layer.k_norm, heads + static_cast<int64_t>(layer.n_heads) * head_dim);
      }
      for (int h = 0; h < n_rotated; ++h) {
        const bool is_q = h < layer.n_heads;
        const RopeTable* rope = is_q && layer.q_rope != nullptr ? layer.q_rope : layer.rope;
        if (rope != nullptr) angles.of(*rope, batch_, row, position, rotate);
        const Norm* norm = is_q ? layer.q_norm : layer.k_norm;
        const bool alone = norm != nullptr && !is_whole(norm);
        const bool before = alone && !layer.norms_after_rope;
        rotate.norm_weight = before ? norm->weight.values.as<float>() : nullptr;
        rotate.norm_eps = before ? norm->eps : 0.0f;
        float* head = heads + static_cast<int64_t>(h) * head_dim;
        kernels_.rotate(rotate, head);
        if (alone && !before) norm_rows(*norm, head);
      }
      if (!layer.writes_kv) continue;
      const float* keys = heads + static_cast<int64_t>(layer.n_heads) * head_dim;
      float* values = heads + static_cast<int64_t>(n_rotated) * head_dim;
      for (int h = 0; layer.v_norm != nullptr && h < layer.n_kv_heads; ++h) {
        norm_rows(*layer.v_norm, values + static_cast<int64_t>(h) * head_dim);
      }
      std::byte* kv_heads = kv.data.as<std::byte>() + layer.layer * layout.layer_bytes;
      for (int h = 0; h < layer.n_kv_heads; ++h) {
        kernels_.store_key_value(
            layout, keys + static_cast<int64_t>(h) * head_dim,
            values + static_cast<int64_t>(h) * head_dim, kv_heads + h * layout.head_bytes,
            sequence.block_tables[group][position / kv.block_size], position % kv.block_size);
      }
    }
  });
}

void CpuBackend::attention(const Buffer& qkv, const AttentionLayer& layer, const KvStorage& kv,
                           Activations& out) {
  const RowsOut to = rows_of(out);
  // A head that ends inside a quantisation group cannot be quantised separately.
  if (to.first.format != RowFormat::kInt8 || layer.head_dim % kGroupSize == 0) {
    attention_.run(qkv.as<float>(), layer, kv, to);
    return;
  }
  const RowsOut plain{{RowFormat::kF32, attended_.as<float>(), nullptr},
                      out.cols * static_cast<int64_t>(sizeof(float)),
                      0};
  attention_.run(qkv.as<float>(), layer, kv, plain);
  for_rows(batch_.n_rows, int64_t{4} * batch_.n_rows * out.cols,
           [&](int64_t begin, int64_t end, int) {
             for (int64_t row = begin; row < end; ++row) {
               kernels_.copy(static_cast<float*>(plain.row(row).numbers), to.row(row), out.cols);
             }
           });
}

ActivationKernel CpuBackend::activation(Activation kind) const {
  return kind == Activation::kSilu          ? kernels_.silu
         : kind == Activation::kGeluTanh    ? kernels_.gelu_tanh
         : kind == Activation::kReluSquared ? kernels_.relu_squared
         : kind == Activation::kSigmoid     ? kernels_.sigmoid
                                            : kernels_.gelu;
}

void CpuBackend::activate(const Buffer& gate_up, int n_rows, Activation kind, bool gated,
                          Activations& out) {
  activate_rows(gate_up, n_rows, gated, out, activation(kind));
}

void CpuBackend::xielu(const Buffer& x, int n_rows, const Xielu& of_layer, Activations& out) {
  activate_rows(x, n_rows, false, out,
                [&](const float* row, const float*, const RowOut& to, int begin, int end) {
                  kernels_.xielu(row, of_layer, to, begin, end);
                });
}

void CpuBackend::activate_rows(
    const Buffer& gate_up, int n_rows, bool gated, Activations& out,
    FunctionRef<void(const float*, const float*, const RowOut&, int, int)> kernel) {
  const int n = out.cols;
  const int64_t row_size = gated ? int64_t{2} * n : n;
  const RowsOut to = rows_of(out);
  const int64_t parts = (n + kActivateColumns - 1) / kActivateColumns;
  for_rows(n_rows * parts, int64_t{8} * n_rows * n, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / parts;
      const int first = static_cast<int>(item % parts) * kActivateColumns;
      const float* gate = gate_up.as<float>() + row * row_size;
      kernel(gate, gated ? gate + n : nullptr, to.row(row), first,
             std::min(n, first + kActivateColumns));
    }
  });
}

void CpuBackend::multiply_activated(const Buffer& gate, int n_rows, Activation kind,
                                    const Buffer& factors, int n_factors, int first,
                                    Activations& out) {
  const ActivationKernel kernel = activation(kind);
  const int n = out.cols;
  const RowsOut to = rows_of(out);
  for_rows(n_rows, int64_t{8} * n_rows * n, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      kernel(gate.as<float>() + row * n, factors.as<float>() + row * n_factors + first, to.row(row),
             0, n);
    }
  });
}

void CpuBackend::scale_logits(Buffer& logits, int n_rows, float scale, float softcap) {
  const int64_t parts = (vocab_size_ + kScaledLogits - 1) / kScaledLogits;
  const int64_t work = int64_t{8} * n_rows * vocab_size_;
  for_rows(n_rows * parts, work, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int first = static_cast<int>(item % parts) * kScaledLogits;
      kernels_.scale_logits(logits.as<float>() + item / parts * vocab_size_, first,
                            std::min(vocab_size_, first + kScaledLogits), scale, softcap);
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

void CpuBackend::sample(const Buffer& logits, Rows rows, std::span<Sample> samples) {
  constexpr int64_t kPassesOfASample = 2;  // the least number of passes over the logits
  const auto first = static_cast<size_t>(rows.first);
  const RowsToSample to_sample(batch_.requests, samples, first, static_cast<size_t>(rows.n),
                               logits.as<float>(), static_cast<size_t>(vocab_size_));
  const int64_t work = kPassesOfASample * rows.n * vocab_size_;
  for_range(rows.n, 1, work, [&](int64_t begin, int64_t end, int worker) {
    for (size_t row = first + begin; row < first + end; ++row) {
      if (to_sample.begins_chain(row)) to_sample.sample_chain(row, samplers_[worker]);
    }
  });
}

void CpuBackend::download(const Buffer& from, std::span<std::byte> to) {
  std::memcpy(to.data(), from.as<std::byte>(), to.size());
}

// -- around a pass ----------------------------------------------------------------------------

// Resets the samplers, whose counts have to be zero between samples.
void CpuBackend::restart() {
  std::vector<Sampler> samplers(pool_.n_threads(), Sampler(vocab_size_));
  samplers_ = std::move(samplers);
}

}  // namespace pb::cpu
