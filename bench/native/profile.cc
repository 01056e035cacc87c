// Where the time of one forward pass goes:
//   bench_profile KEY=VALUE...
// vocab_size hidden_size intermediate_size n_layers n_heads n_kv_heads head_dim dtype kv_dtype
// threads target sequences context rows passes
//
// Weights are random. Each of `sequences` has `context` positions of KV behind it, which nobody
// computed: their KV blocks are filled with some number, since time does not depend on it. Each
// pass appends `rows` tokens to every sequence and takes the logits of its last one. A Backend that
// passes everything on to the real one takes the times; the product knows nothing of it. Prints
// one JSON object; times are those of the pass of median length.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>

#include "cpu/cpu_backend.h"
#include "machine_limits.h"
#include "model/forward.h"
#include "timed_backend.h"

namespace {

using namespace pb;

using Options = std::map<std::string, std::string>;

int number(const Options& o, const char* name) { return std::stoi(o.at(name)); }

DType dtype_of(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kInt8, DType::kInt4}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  throw std::invalid_argument("no dtype is called " + name);
}

ModelConfig config_of(const Options& o, int n_positions) {
  ModelConfig c;
  c.architecture = "llama";
  c.vocab_size = number(o, "vocab_size");
  c.hidden_size = number(o, "hidden_size");
  c.n_layers = number(o, "n_layers");
  c.n_heads = number(o, "n_heads");
  c.n_kv_heads = number(o, "n_kv_heads");
  c.head_dim = number(o, "head_dim");
  c.intermediate_size = number(o, "intermediate_size");
  c.max_position_embeddings = n_positions;
  c.norm_eps = 1e-5f;
  c.gated_mlp = true;
  RopeConfig& rope = c.ropes.emplace_back();
  c.layer_ropes.assign(static_cast<size_t>(c.n_layers), 0);
  for (int i = 0; i < c.head_dim / 2; ++i) {
    rope.inv_freq.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / c.head_dim)));
  }
  c.attention_scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  c.sliding_windows.assign(static_cast<size_t>(c.n_layers), 0);
  c.validate();
  return c;
}

// Tensors of a Llama, all of them views of the same numbers.
class SharedTensors {
 public:
  explicit SharedTensors(const ModelConfig& c) {
    const int64_t hidden = c.hidden_size, inner = c.intermediate_size;
    add("token_embedding", c.vocab_size, hidden);
    add("final_norm.weight", hidden, 1);
    for (int i = 0; i < c.n_layers; ++i) {
      const std::string layer = "layers." + std::to_string(i) + ".";
      add(layer + "attn_norm.weight", hidden, 1);
      add(layer + "mlp_norm.weight", hidden, 1);
      add(layer + "q.weight", c.q_size(), hidden);
      add(layer + "k.weight", c.kv_size(), hidden);
      add(layer + "v.weight", c.kv_size(), hidden);
      add(layer + "o.weight", hidden, c.q_size());
      add(layer + "gate.weight", inner, hidden);
      add(layer + "up.weight", inner, hidden);
      add(layer + "down.weight", hidden, inner);
    }
    int64_t most = 0;
    for (const auto& [name, tensor] : map_) most = std::max(most, tensor.rows * tensor.cols);
    numbers_.resize(static_cast<size_t>(most));
    uint32_t state = 1;
    for (uint16_t& v : numbers_) {
      state = state * 1664525u + 1013904223u;
      v = static_cast<uint16_t>(0x3c00u | (state >> 31 << 15) | (state >> 16 & 0x7f));
    }
    for (auto& [name, tensor] : map_) tensor.data = numbers_.data();
  }

  const TensorMap& map() const { return map_; }

 private:
  void add(const std::string& name, int64_t rows, int64_t cols) {
    map_[name] = {name, nullptr, DType::kBF16, rows, cols, cols, 1};
  }

  std::vector<uint16_t> numbers_;
  TensorMap map_;
};

// All sequences of one pass, one after another.
class Pass {
 public:
  Pass(int n_sequences, int context, int n_rows, int block_size) {
    const int blocks_each = (context + n_rows + block_size - 1) / block_size;
    blocks_.resize(static_cast<size_t>(n_sequences * blocks_each));
    std::iota(blocks_.begin(), blocks_.end(), 0);
    for (int s = 0; s < n_sequences; ++s) {
      SequenceRows rows;
      rows.first_row = static_cast<int>(tokens_.size());
      rows.n_rows = n_rows;
      rows.first_position = context;
      rows.block_tables[0] = blocks_.data() + s * blocks_each;
      sequences_.push_back(rows);
      for (int r = 0; r < n_rows; ++r) {
        tokens_.push_back((s * 31 + r * 7) % 256);
        positions_.push_back(context + r);
      }
      last_rows_.push_back(static_cast<int32_t>(tokens_.size()) - 1);
    }
    batch_.n_rows = static_cast<int>(tokens_.size());
    batch_.tokens = tokens_.data();
    batch_.positions = positions_.data();
    batch_.sequences = sequences_;
    batch_.logits_rows = last_rows_;
  }

  const RowBatch& batch() const { return batch_; }
  int n_blocks() const { return static_cast<int>(blocks_.size()); }

 private:
  std::vector<int32_t> blocks_, tokens_, positions_, last_rows_;
  std::vector<SequenceRows> sequences_;
  RowBatch batch_;
};

}  // namespace

int main(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    o[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  constexpr int kBlockSize = 32;
  const int context = number(o, "context"), n_rows = number(o, "rows");
  const Pass pass(number(o, "sequences"), context, n_rows, kBlockSize);
  const ModelConfig config = config_of(o, context + n_rows);

  const auto cpu = make_cpu_backend(number(o, "threads"), o["target"]);
  bench::TimedBackend backend(*cpu, config.vocab_size);
  const Weights weights = [&] {
    const SharedTensors tensors(config);
    return load_weights(config, tensors.map(), dtype_of(o.at("dtype")), backend);
  }();
  const DType kv_dtype = dtype_of(o.at("kv_dtype"));
  ModelKv kv;
  kv.storages.push_back(backend.make_kv(pass.n_blocks(), kBlockSize, config.n_layers,
                                        config.n_kv_heads, config.head_dim, kv_dtype));
  for (int layer = 0; layer < config.n_layers; ++layer) kv.places.push_back({.layer = layer});
  Buffer& storage = kv.storages[0].data;
  std::memset(storage.as<std::byte>(), 0x3c, storage.bytes());  // the CPU's memory is the host's
  const RowBatch& batch = pass.batch();
  Forward forward(config, weights, backend,
                  {.n_ubatch = batch.n_rows,
                   .n_positions = context + n_rows,
                   .n_sequences = static_cast<int>(batch.sequences.size()),
                   .block_size = kBlockSize,
                   .storages = {{.shape = {config.n_kv_heads, config.head_dim}}},
                   .kv_dtype = kv_dtype});

  std::vector<std::map<std::string, double>> passes;
  const int n_passes = number(o, "passes");
  for (int i = 0; i < n_passes + 1; ++i) {
    backend.clear();
    const double begin = bench::now();
    backend.plan(batch, kv.storages[0]);
    forward.run(batch.n_rows, kv);
    const int n_wanted = static_cast<int>(batch.logits_rows.size());
    for (int r = 0; r < n_wanted; r += forward.output_rows()) {
      forward.logits(r, std::min(forward.output_rows(), n_wanted - r));
    }
    backend.finish(*forward.heartbeat());
    if (i == 0) continue;  // warms up
    passes.push_back(backend.seconds());
    passes.back()["total"] = bench::now() - begin;
  }
  std::ranges::sort(passes, {}, [](const auto& seconds) { return seconds.at("total"); });
  std::printf("{\"target\": \"%s\", \"threads\": %d, \"weight_bytes\": %zu, \"kv_bytes\": %zu",
              backend.target().c_str(), backend.n_threads(), weights.bytes(), storage.bytes());
  std::printf(", \"ms\": {");
  const char* separator = "";
  for (const auto& [name, seconds] : passes[passes.size() / 2]) {
    std::printf("%s\"%s\": %.4f", separator, name.c_str(), seconds * 1e3);
    separator = ", ";
  }
  std::printf("}}\n");
}
