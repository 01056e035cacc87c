#include "model/weights_loader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "formats/tensors/read_tensor.h"
#include "model/checkpoint.h"
#include "model/input_order.h"
#include "model/matrix_dtype.h"
#include "os/mapped_file.h"

namespace pb {
namespace {

class WeightsLoader {
 public:
  WeightsLoader(const ModelConfig& config, const TensorMap& tensors, DType dtype, Backend& backend,
                const LoadOptions& options, PackedReader* reader, PackedWriter* writer)
      : config_(&config),
        checkpoint_(tensors),
        dtype_(dtype),
        backend_(backend),
        progress_(options.progress),
        reader_(reader),
        writer_(writer) {
    for (const auto& [name, view] : tensors) total_ += view.bytes;
  }

  Weights load(const VisionConfig* vision) {
    Weights w = load_text();
    if (vision != nullptr) w.tower = load_tower(*vision);
    checkpoint_.expect_all_used();
    return w;
  }

 private:
  struct Part {
    const char* name;
    int n_out;
  };

  Weights load_text() {
    const int hidden = config().hidden_size;
    Weights w;
    w.token_embedding = table("token_embedding", config().vocab_size, hidden);
    // The head is packed early: a matrix is in memory twice while it is packed, and the head may be
    // the largest one.
    if (checkpoint_.has("head.weight")) {
      w.head = linear("", "head", config().vocab_size, hidden);
    }
    if (config().learned_positions()) {  // too small to be worth quantising
      w.position_embedding = table("position_embedding", config().max_position_embeddings, hidden,
                                   is_quantised(dtype_) ? DType::kF32 : dtype_);
    }
    if (config().per_layer_embedding_size > 0)
      w.per_layer_embeddings = per_layer_embedding_tables();
    w.layers = layers("layers.");
    w.final_norm = norm("final_norm", hidden);
    return w;
  }

  std::shared_ptr<const TowerWeights> load_tower(const VisionConfig& vision) {
    config_ = &vision.layers;
    if (dtype_ == DType::kInt4) dtype_ = DType::kInt8;
    const int hidden = config().hidden_size;
    auto w = std::make_shared<TowerWeights>();
    // Too small to be worth quantising.
    w->patch = matrix(std::array{checkpoint_.get("tower.patch.weight", hidden, vision.patch_size)},
                      std::array{checkpoint_.bias("tower.patch.bias", hidden)},
                      is_quantised(dtype_) ? DType::kF32 : dtype_);
    if (vision.n_positions > 0) w->positions = position_table(vision.n_positions, hidden);
    if (vision.pre_norm) w->pre_norm = norm("tower.pre_norm", hidden);
    w->blocks.layers = layers("tower.layers.");
    if (vision.final_norm) w->final_norm = norm("tower.final_norm", hidden);
    w->projector = projector(vision.projector, "tower.projector.");
    for (size_t i = 0; i < vision.deepstack.size(); ++i) {
      w->deepstack.push_back(
          projector(vision.deepstack[i].projector, "tower.deepstack." + std::to_string(i) + "."));
    }
    return w;
  }

  std::vector<float> position_table(int n_positions, int hidden) {
    const TensorView& view = checkpoint_.get("tower.positions.weight", n_positions, hidden);
    refuse_blocks(view, "a position table");
    TensorView transposed = view;
    std::swap(transposed.rows, transposed.cols);
    std::swap(transposed.row_stride, transposed.col_stride);
    std::vector<float> table = read_columns(transposed);
    have(view);
    return table;
  }

  ProjectorWeights projector(const ProjectorConfig& p, const std::string& at) {
    const auto norm_of = [&](ProjectorNorm kind, const char* name, int size) {
      std::optional<Norm> made;
      if (kind == ProjectorNorm::kNone) return made;
      const bool is_layer = kind == ProjectorNorm::kLayer;
      made = norm(at + name, size, is_layer ? NormKind::kLayer : NormKind::kRms, p.norm_eps, true);
      return made;
    };
    int n_in = config().hidden_size;
    ProjectorWeights w;
    w.norm_before = norm_of(p.norm_before, "norm_before", n_in);
    n_in = p.pooled_size(n_in);
    w.norm_after = norm_of(p.norm_after, "norm_after", n_in);
    for (size_t i = 0; i < p.linears.size(); ++i) {
      const int n_out = p.linears[i].n_out;
      w.linears.push_back(linear(at + "linears.", std::to_string(i).c_str(), n_out, n_in));
      n_in = n_out;
    }
    return w;
  }

  std::vector<LayerWeights> layers(const std::string& at) {
    std::vector<LayerWeights> all;
    all.reserve(static_cast<size_t>(config().n_layers));
    for (int i = 0; i < config().n_layers; ++i) {
      all.push_back(layer(i, at + std::to_string(i) + "."));
    }
    return all;
  }

  LayerWeights layer(int number, const std::string& at) {
    const ModelConfig& c = config();
    const LayerShape shape = c.shape(number);
    const int hidden = c.hidden_size, inner = shape.intermediate_size;
    const int q_size = c.n_heads * shape.head_dim, kv_size = shape.kv_size();
    const bool attends = !c.is_recurrent(number);
    const bool is_short_conv = !attends && c.has_short_conv();
    const bool is_gated_delta_net = !attends && !is_short_conv;
    const bool has_kv = attends && shape.kv_layer < 0;
    const bool has_qk_norm = attends && (has(at + "q_norm.weight") || has(at + "k_norm.weight"));
    const bool has_experts = c.has_experts(number);
    const bool has_mlp = !has_experts || c.moe.shared_expert || c.moe.beside_mlp;
    const std::string block = at + (is_gated_delta_net ? "gated_delta_net."
                                    : is_short_conv    ? "short_conv."
                                                       : "");
    LayerWeights w;
#define PB_LAYER_WEIGHT(type, member, condition, ...) \
  if (condition) w.member = __VA_ARGS__;
#include "model/layer_weights.def"
#undef PB_LAYER_WEIGHT
    if (c.layer_scales) {  // the factor is applied to the last sum of the layer
      Norm& last = w.input_post_norm ? *w.input_post_norm : *w.mlp_post_norm;
      last.sum_scale = scalar(at + "output_scale.weight");
    }
    return w;
  }

  bool has(const std::string& name) const { return checkpoint_.has(name); }

  // If a layer has only q, its rows are as wide as those of q, k and v together, so that attention
  // reads a single layout.
  Matrices attention_inputs(const std::string& at, const LayerShape& shape) {
    const int hidden = config().hidden_size;
    const int q_size = config().n_heads * shape.head_dim, kv_size = shape.kv_size();
    if (shape.kv_layer < 0) {
      return stacked(at, {{"q", q_size}, {"k", kv_size}, {"v", kv_size}}, hidden);
    }
    Matrices q = stacked(at, {{"q", q_size}}, hidden);
    for (Matrix& m : q) m.n_beside = q_size + 2 * kv_size;
    return q;
  }

  // The gates, b and a, are f32, because every row multiplies the state by numbers computed from
  // them.
  Matrices gated_delta_net_inputs(const std::string& block) {
    const GatedDeltaNetShape& gated_delta_net = config().gated_delta_net;
    const int hidden = config().hidden_size, n_heads = gated_delta_net.n_value_heads;
    Matrices all =
        stacked(block, {{"qkv", gated_delta_net.n_channels()}, {"z", gated_delta_net.value_size()}},
                hidden);
    for (Matrix& m : all) m.n_beside = gated_delta_net.row_size();
    const std::array gates = {checkpoint_.get(block + "b.weight", n_heads, hidden),
                              checkpoint_.get(block + "a.weight", n_heads, hidden)};
    for (const TensorView& view : gates) refuse_order(view, "a gate");
    Matrix& of_gates = all.emplace_back(matrix(gates, std::array<TensorView, 2>{}, DType::kF32));
    of_gates.first_out = gated_delta_net.row_size() - 2 * n_heads;
    of_gates.n_beside = gated_delta_net.row_size();
    return all;
  }

  // Transposes the checkpoint's (channel, tap) weights to (tap, channel).
  Vector convolution(const std::string& prefix, int n_channels, int n_taps) {
    const TensorView& view = checkpoint_.get(prefix + "convolution", n_channels, n_taps);
    refuse_blocks(view, "a convolution");
    Vector made = made_vector(read_columns(view));
    have(view);
    return made;
  }

  PerLayerEmbeddingTables per_layer_embedding_tables() {
    const int size = config().per_layer_embedding_size;
    PerLayerEmbeddingTables tables;
    tables.embedding =
        table("per_layer_embeddings.embedding", config().vocab_size, config().n_layers * size);
    tables.proj =
        linear("per_layer_embeddings.", "proj", config().n_layers * size, config().hidden_size);
    // The projection is divided by sqrt(hidden). The norm cancels this factor except in its
    // epsilon, so only the epsilon is scaled here.
    tables.norm = norm("per_layer_embeddings.norm", size);
    tables.norm.eps *= static_cast<float>(config().hidden_size);
    tables.norm.sum_scale = std::sqrt(0.5f);
    return tables;
  }

  Matrix router_of(const std::string& at) {
    const int n = config().moe.n_experts;
    const std::array router = {checkpoint_.get(at + "router.weight", n, config().hidden_size)};
    const std::array bias = {checkpoint_.bias(at + "router.bias", n)};
    refuse_order(router[0], "a router");
    return matrix(router, bias, DType::kF32);
  }

  // Packs the experts of a layer. All gates and ups have one dtype, and all downs have one dtype:
  // int8 if tensors with keeps_dtype differ.
  Experts experts(const std::string& prefix) {
    const int hidden = config().hidden_size;
    const int inner = config().moe.intermediate_size;
    std::vector<TensorView> gates_ups, downs;                // weights
    std::vector<TensorView> gates_ups_biases, downs_biases;  // views without data if there are none
    for (int i = 0; i < config().moe.n_experts; ++i) {
      const std::string expert = prefix + "experts." + std::to_string(i) + ".";
      gates_ups.push_back(checkpoint_.get(expert + "gate.weight", inner, hidden));
      gates_ups.push_back(checkpoint_.get(expert + "up.weight", inner, hidden));
      downs.push_back(checkpoint_.get(expert + "down.weight", hidden, inner));
      gates_ups_biases.push_back(checkpoint_.bias(expert + "gate.bias", inner));
      gates_ups_biases.push_back(checkpoint_.bias(expert + "up.bias", inner));
      downs_biases.push_back(checkpoint_.bias(expert + "down.bias", hidden));
    }
    for (const auto* views : {&gates_ups, &downs}) {
      for (const TensorView& view : *views) refuse_order(view, "an expert");
    }
    const DType of_gates_ups = common_dtype(gates_ups, dtype_, backend_);
    const DType of_downs = common_dtype(downs, dtype_, backend_);
    const auto matrix_of = [&](const std::vector<TensorView>& all,
                               const std::vector<TensorView>& biases, size_t first, size_t n,
                               DType dtype) {
      return matrix(std::span(all).subspan(first, n), std::span(biases).subspan(first, n), dtype);
    };
    Experts e;
    std::vector<Matrix> gate_up, down;
    for (size_t i = 0; i < downs.size(); ++i) {
      gate_up.push_back(matrix_of(gates_ups, gates_ups_biases, 2 * i, 2, of_gates_ups));
      down.push_back(matrix_of(downs, downs_biases, i, 1, of_downs));
    }
    e.gate_up = backend_.experts().collect(std::move(gate_up));
    e.down = backend_.experts().collect(std::move(down));
    return e;
  }

  // Packs several weights over the same input. Neighbours with the same dtype and input order are
  // combined into one matrix, so that one product computes them.
  Matrices stacked(const std::string& prefix, std::initializer_list<Part> parts, int n_in) {
    std::vector<TensorView> weights;
    std::vector<TensorView> biases;
    int n_outs = 0;
    for (const Part& part : parts) {
      weights.push_back(checkpoint_.get(prefix + part.name + ".weight", part.n_out, n_in));
      biases.push_back(checkpoint_.bias(prefix + part.name + ".bias", part.n_out));
      n_outs += part.n_out;
    }
    Matrices all;
    int first_out = 0;
    for (size_t begin = 0, end = 0; begin < weights.size(); begin = end) {
      const DType dtype = dtype_of(weights[begin]);
      while (end < weights.size() && dtype_of(weights[end]) == dtype &&
             same_order(weights[end], weights[begin])) {
        ++end;
      }
      Matrix m = matrix(std::span(weights).subspan(begin, end - begin),
                        std::span(biases).subspan(begin, end - begin), dtype);
      m.first_out = first_out;
      m.n_beside = n_outs;
      first_out += m.n_out;
      all.push_back(std::move(m));
    }
    return all;
  }

  Matrix linear(const std::string& prefix, const char* name, int n_out, int n_in) {
    return std::move(stacked(prefix, {{name, n_out}}, n_in)[0]);
  }

  // Packs a vector as an f32 matrix of one row.
  Matrix row_of(const std::string& name, int size) {
    TensorView view = checkpoint_.get(name, size, 1);
    std::swap(view.rows, view.cols);
    view.col_stride = std::exchange(view.row_stride, size * view.row_stride);
    return matrix(std::array{view}, std::array{TensorView{}}, DType::kF32);
  }

  Matrix table(const std::string& name, int rows, int cols) {
    return table(name, rows, cols, dtype_of(checkpoint_.get(name, rows, cols)));
  }

  Matrix table(const std::string& name, int rows, int cols, DType dtype) {
    const std::array parts = {checkpoint_.get(name, rows, cols)};
    refuse_order(parts[0], "an embedding");
    return matrix(parts, std::array{TensorView{}}, dtype);
  }

  DType dtype_of(const TensorView& view) const { return matrix_dtype(view, dtype_, backend_); }

  // Packs one matrix from parts that have the same input order.
  Matrix matrix(std::span<const TensorView> parts, std::span<const TensorView> biases,
                DType dtype) {
    PackedMatrix packed =
        reader_ != nullptr ? packed_before(parts, biases, dtype) : packed_now(parts, biases, dtype);
    if (writer_ != nullptr) {
      // The flag determines the packed size.
      if (backend_.compresses(dtype)) writer_->put_flag(packed.compressed);
      writer_->put(packed.packed);
      writer_->put(packed.bias);
    }
    packed.order = input_order(parts[0]);
    Matrix m = backend_.place(std::move(packed));
    for (const auto& views : {parts, biases}) {
      for (const TensorView& view : views) have(view);
    }
    return m;
  }

  PackedMatrix packed_now(std::span<const TensorView> parts, std::span<const TensorView> biases,
                          DType dtype) {
    std::vector<std::shared_ptr<const TensorView>> made;
    std::vector<TensorView> views;
    for (const TensorView& part : parts)
      views.push_back(part.make ? *made.emplace_back(part.make()) : part);
    return backend_.pack(views, biases, dtype);
  }

  // Reads a matrix that the backend packed at an earlier start.
  PackedMatrix packed_before(std::span<const TensorView> parts, std::span<const TensorView> biases,
                             DType dtype) {
    PackedMatrix m;
    m.dtype = dtype;
    m.n_in = static_cast<int>(parts[0].cols);
    for (const TensorView& part : parts) m.n_out += static_cast<int>(part.rows);
    m.compressed = backend_.compresses(dtype) && reader_->take_flag();
    const auto [packed, bias] = backend_.matrix_bytes(m.n_out, m.n_in, dtype, m.compressed);
    m.packed = reader_->take(packed);
    if (std::ranges::any_of(biases, [](const auto& b) { return b.data; })) {
      m.bias = reader_->take(bias);
    }
    return m;
  }

  // Records that a tensor is loaded: reports progress and drops its pages of the checkpoint.
  void have(const TensorView& view) {
    if (view.data == nullptr && !view.make) return;  // an absent bias
    drop_mapped_pages(view.pages);
    done_ += view.bytes;
    if (progress_) progress_(done_, total_);
  }

  Vector vector(const std::string& name, int size) {
    const TensorView& view = checkpoint_.get(name, size, 1);
    Vector v = backend_.make_vector(view);
    have(view);
    return v;
  }

  float scalar(const std::string& name) {
    const TensorView& view = checkpoint_.get(name, 1, 1);
    const float value = read_vector(view).as<float>()[0];
    have(view);
    return value;
  }

  // The checkpoint stores log(e^alpha_p - 1) and log(e^(alpha_n - beta) - 1); softplus() inverts
  // them.
  Xielu xielu(const std::string& prefix) {
    const double beta = scalar(prefix + "beta");
    return {.alpha_p = static_cast<float>(softplus(scalar(prefix + "alpha_p"))),
            .alpha_n = static_cast<float>(beta + softplus(scalar(prefix + "alpha_n"))),
            .beta = static_cast<float>(beta),
            .eps = scalar(prefix + "eps")};
  }

  // Returns log(1 + e^x). The argument of exp() is -|x|, so that exp() does not overflow.
  static double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

  // Makes a norm that has no weight in the checkpoint: all its weights are 1.
  Norm norm_of_ones(int size) {
    Norm n;
    n.eps = config().norm_eps;
    n.weight = all_of(1.0f, size);
    return n;
  }

  Norm norm(const std::string& name, int size) {
    return norm(name, size, config().norm, config().norm_eps, config().norm_bias);
  }

  Norm norm(const std::string& name, int size, NormKind kind, float eps, bool has_bias) {
    Norm n;
    n.kind = kind;
    n.eps = eps;
    n.weight = vector(name + ".weight", size);
    if (kind == NormKind::kLayer) {
      n.bias = has_bias ? vector(name + ".bias", size) : all_of(0.0f, size);
    }
    return n;
  }

  Vector all_of(float value, int size) {
    return made_vector(std::vector<float>(static_cast<size_t>(size), value));
  }

  Vector made_vector(const std::vector<float>& values) {
    return backend_.make_vector({.name = "", .data = values.data(), .rows = std::ssize(values)});
  }

  const ModelConfig& config() const { return *config_; }

  const ModelConfig* config_;  // of the model whose weights are being loaded
  Checkpoint checkpoint_;
  DType dtype_;
  Backend& backend_;
  const std::function<void(int64_t, int64_t)>& progress_;
  PackedReader* reader_;
  PackedWriter* writer_;
  int64_t done_ = 0;
  int64_t total_ = 0;
};

}  // namespace

Weights walk_weights(const ModelConfig& config, const VisionConfig* vision,
                     const TensorMap& tensors, DType dtype, Backend& backend,
                     const LoadOptions& options, PackedReader* reader, PackedWriter* writer) {
  return WeightsLoader(config, tensors, dtype, backend, options, reader, writer).load(vision);
}

}  // namespace pb
