#include "tiny_model.h"

#include <utility>

namespace pb::test {

void TinyModel::add(const std::string& name, int rows, int cols, float centre, float spread) {
  std::normal_distribution<float> normal(centre, spread);
  auto& values = storage.emplace_back(size_t(rows) * size_t(cols));
  for (float& v : values) v = normal(random);
  tensors[name] = {.name = name,
                   .data = values.data(),
                   .rows = rows,
                   .cols = cols,
                   .row_stride = cols,
                   .col_stride = 1};
}

TinyModel rotary_model() {
  TinyModel m;
  ModelConfig& c = m.config;
  c.architecture = "qwen3";
  c.vocab_size = 61;
  c.hidden_size = 24;
  c.n_layers = 2;
  c.n_heads = 6;
  c.n_kv_heads = 2;
  c.head_dim = 8;
  c.intermediate_size = 40;
  c.max_position_embeddings = 96;
  c.norm_eps = 1e-5f;
  c.gated_mlp = true;
  c.ropes = {{.inv_freq = {1.0f, 0.3f, 0.1f, 0.03f}}};
  c.layer_ropes = {0, 0};
  c.attention_scale = 0.35f;
  c.sliding_windows = {0, 11};
  m.add("token_embedding", c.vocab_size, c.hidden_size, 0.0f, 1.0f);
  for (int i = 0; i < c.n_layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    m.add(layer + "attn_norm.weight", c.hidden_size, 1, 1.0f);
    m.add(layer + "mlp_norm.weight", c.hidden_size, 1, 1.0f);
    m.add(layer + "q.weight", c.q_size(), c.hidden_size);
    m.add(layer + "q.bias", c.q_size(), 1);
    m.add(layer + "k.weight", c.kv_size(), c.hidden_size);
    m.add(layer + "v.weight", c.kv_size(), c.hidden_size);
    m.add(layer + "v.bias", c.kv_size(), 1);
    m.add(layer + "q_norm.weight", c.head_dim, 1, 1.0f);
    m.add(layer + "k_norm.weight", c.head_dim, 1, 1.0f);
    m.add(layer + "o.weight", c.hidden_size, c.q_size());
    m.add(layer + "gate.weight", c.intermediate_size, c.hidden_size);
    m.add(layer + "up.weight", c.intermediate_size, c.hidden_size);
    m.add(layer + "down.weight", c.hidden_size, c.intermediate_size);
  }
  m.add("final_norm.weight", c.hidden_size, 1, 1.0f);
  m.add("head.weight", c.vocab_size, c.hidden_size);
  return m;
}

TinyModel post_norm_model(bool pre_norm) {
  TinyModel m = rotary_model();
  ModelConfig& c = m.config;
  c.activation = Activation::kGeluTanh;
  c.pre_norm = pre_norm;
  c.post_norm = true;
  c.whole_qk_norm = !pre_norm;
  c.embedding_scale = 2.5f;
  c.attention_softcap = 1.5f;
  c.logit_scale = 0.6f;
  c.logit_softcap = 3.0f;
  c.ropes.push_back({.inv_freq = {0.9f, 0.2f, 0.05f, 0.0f}});
  c.layer_ropes = {0, 1};
  for (int i = 0; i < c.n_layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    m.add(layer + "attn_post_norm.weight", c.hidden_size, 1, 1.0f);
    m.add(layer + "mlp_post_norm.weight", c.hidden_size, 1, 1.0f);
    if (pre_norm) continue;
    m.tensors.erase(layer + "attn_norm.weight");
    m.tensors.erase(layer + "mlp_norm.weight");
    m.add(layer + "q_norm.weight", c.q_size(), 1, 1.0f);
    m.add(layer + "k_norm.weight", c.kv_size(), 1, 1.0f);
  }
  return m;
}

TinyModel xielu_model() {
  TinyModel m = rotary_model();
  m.config.architecture = "apertus";
  m.config.activation = Activation::kXielu;
  m.config.gated_mlp = false;
  for (int i = 0; i < m.config.n_layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    m.tensors.erase(layer + "gate.weight");
    m.add(layer + "xielu.alpha_p", 1, 1, 0.5f);
    m.add(layer + "xielu.alpha_n", 1, 1, -0.3f);
    m.add(layer + "xielu.beta", 1, 1, 0.6f);
    m.add(layer + "xielu.eps", 1, 1, -0.3f, 0.05f);
  }
  return m;
}

TinyModel varied_model() {
  TinyModel m = rotary_model();
  ModelConfig& c = m.config;
  c.architecture = "gemma4";
  c.activation = Activation::kGeluTanh;
  c.n_layers = 4;
  c.post_norm = true;
  c.attention_scale = 1.0f;
  c.ropes.push_back({.inv_freq = {0.9f, 0.2f, 0.05f, 0.0f, 0.0f, 0.0f}});
  c.layer_ropes = {0, 1, 0, 1};
  c.sliding_windows = {11, 0, 11, 0};
  c.layer_shapes = {{2, 8, 40}, {1, 12, 40}, {2, 8, 56, 0}, {1, 12, 56, 1}};
  c.value_norm = true;
  c.layer_scales = true;
  c.per_layer_embedding_size = 6;
  c.per_layer_embedding_scale = 2.5f;
  std::erase_if(m.tensors, [](const auto& entry) { return entry.first.starts_with("layers."); });
  m.add("per_layer_embeddings.embedding", c.vocab_size, c.n_layers * c.per_layer_embedding_size,
        0.0f, 1.0f);
  m.add("per_layer_embeddings.proj.weight", c.n_layers * c.per_layer_embedding_size, c.hidden_size);
  m.add("per_layer_embeddings.norm.weight", c.per_layer_embedding_size, 1, 1.0f);
  for (int i = 0; i < c.n_layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    const LayerShape shape = c.shape(i);
    const int q_size = c.n_heads * shape.head_dim;
    for (const char* name : {"attn", "attn_post", "mlp", "mlp_post", "input_post"}) {
      m.add(layer + name + "_norm.weight", c.hidden_size, 1, 1.0f);
    }
    m.add(layer + "q.weight", q_size, c.hidden_size);
    m.add(layer + "q_norm.weight", shape.head_dim, 1, 1.0f);
    if (shape.kv_layer < 0) {
      m.add(layer + "k.weight", shape.kv_size(), c.hidden_size);
      m.add(layer + "v.weight", shape.kv_size(), c.hidden_size);
      m.add(layer + "k_norm.weight", shape.head_dim, 1, 1.0f);
    }
    m.add(layer + "o.weight", c.hidden_size, q_size);
    m.add(layer + "gate.weight", shape.intermediate_size, c.hidden_size);
    m.add(layer + "up.weight", shape.intermediate_size, c.hidden_size);
    m.add(layer + "down.weight", c.hidden_size, shape.intermediate_size);
    m.add(layer + "input_gate.weight", c.per_layer_embedding_size, c.hidden_size);
    m.add(layer + "input_proj.weight", c.hidden_size, c.per_layer_embedding_size);
    m.add(layer + "output_scale.weight", 1, 1, 0.8f);
  }
  return m;
}

TinyModel learned_model() {
  TinyModel m;
  ModelConfig& c = m.config;
  c.architecture = "gpt2";
  c.vocab_size = 53;
  c.hidden_size = 20;
  c.n_layers = 2;
  c.n_heads = 5;
  c.n_kv_heads = 5;
  c.head_dim = 4;
  c.intermediate_size = 36;
  c.max_position_embeddings = 64;
  c.norm_eps = 1e-5f;
  c.gated_mlp = true;
  c.norm = NormKind::kLayer;
  c.activation = Activation::kGeluTanh;
  c.gated_mlp = false;
  c.position = PositionKind::kLearned;
  c.layer_ropes = {-1, -1};
  c.attention_scale = 0.5f;
  c.sliding_windows = {0, 0};
  const auto linear = [&](const std::string& name, int n_out, int n_in) {
    m.add(name + ".weight", n_out, n_in);
    m.add(name + ".bias", n_out, 1);
  };
  const auto norm = [&](const std::string& name) {
    m.add(name + ".weight", c.hidden_size, 1, 1.0f);
    m.add(name + ".bias", c.hidden_size, 1);
  };
  m.add("token_embedding", c.vocab_size, c.hidden_size, 0.0f, 1.0f);
  m.add("position_embedding", c.max_position_embeddings, c.hidden_size);
  for (int i = 0; i < c.n_layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    norm(layer + "attn_norm");
    norm(layer + "mlp_norm");
    for (const char* name : {"q", "k", "v", "o"})
      linear(layer + name, c.hidden_size, c.hidden_size);
    linear(layer + "up", c.intermediate_size, c.hidden_size);
    linear(layer + "down", c.hidden_size, c.intermediate_size);
  }
  norm("final_norm");
  return m;
}

namespace {

// Experts in the first layer: 2 of 5 a row.
void add_experts(TinyModel& m) {
  ModelConfig& c = m.config;
  c.moe = {.n_experts = 5,
           .n_experts_per_row = 2,
           .intermediate_size = 12,
           .normalised = true,
           .in_layer = {true, false}};
  m.add("layers.0.router.weight", c.moe.n_experts, c.hidden_size);
  for (int e = 0; e < c.moe.n_experts; ++e) {
    const std::string expert = "layers.0.experts." + std::to_string(e) + ".";
    m.add(expert + "gate.weight", c.moe.intermediate_size, c.hidden_size);
    m.add(expert + "up.weight", c.moe.intermediate_size, c.hidden_size);
    m.add(expert + "down.weight", c.hidden_size, c.moe.intermediate_size);
  }
}

}  // namespace

TinyModel moe_model() {
  TinyModel m = rotary_model();
  m.config.architecture = "qwen3_moe";
  for (const char* part : {"gate", "up", "down"}) {
    m.tensors.erase("layers.0." + std::string(part) + ".weight");
  }
  add_experts(m);
  return m;
}

TinyModel shared_expert_model() {
  TinyModel m = rotary_model();
  m.config.architecture = "qwen3_5_moe";
  add_experts(m);
  m.config.moe.shared_expert = true;
  m.add("layers.0.shared_gate", m.config.hidden_size, 1);
  return m;
}

TinyModel ungated_shared_expert_model() {
  TinyModel m = shared_expert_model();
  m.config.moe.shared_gate = false;
  m.tensors.erase("layers.0.shared_gate");
  return m;
}

TinyModel parallel_model() {
  TinyModel m = rotary_model();
  m.config.architecture = "cohere2";
  m.config.parallel_blocks = true;
  for (int layer = 0; layer < m.config.n_layers; ++layer) {
    m.tensors.erase("layers." + std::to_string(layer) + ".mlp_norm.weight");
  }
  return m;
}

TinyModel squared_model() {
  TinyModel m = rotary_model();
  m.config.activation = Activation::kReluSquared;
  m.config.gated_mlp = false;
  m.config.qk_norm_after_rope = true;
  for (int layer = 0; layer < m.config.n_layers; ++layer) {
    m.tensors.erase("layers." + std::to_string(layer) + ".gate.weight");
  }
  return m;
}

TinyModel biased_router_model() {
  TinyModel m = moe_model();
  m.config.architecture = "ernie4_5_moe";
  m.add("layers.0.expert_bias", m.config.moe.n_experts, 1, 0.0f, 0.05f);
  return m;
}

TinyModel recurrent_model() {
  TinyModel m = shared_expert_model();
  ModelConfig& c = m.config;
  c.sliding_windows = {0, 0};
  c.attention_gate = true;
  c.gated_delta_net = {
      .n_key_heads = 2, .n_value_heads = 4, .key_dim = 6, .value_dim = 10, .conv_size = 4};
  c.recurrent_layers = {true, false};
  for (const char* part : {"q.weight", "q.bias", "k.weight", "v.weight", "v.bias", "q_norm.weight",
                           "k_norm.weight", "o.weight"}) {
    m.tensors.erase("layers.0." + std::string(part));
  }
  const std::string block = "layers.0.gated_delta_net.";
  m.add(block + "qkv.weight", c.gated_delta_net.n_channels(), c.hidden_size);
  m.add(block + "z.weight", c.gated_delta_net.value_size(), c.hidden_size);
  m.add(block + "b.weight", c.gated_delta_net.n_value_heads, c.hidden_size);
  m.add(block + "a.weight", c.gated_delta_net.n_value_heads, c.hidden_size);
  m.add(block + "o.weight", c.hidden_size, c.gated_delta_net.value_size());
  m.add(block + "convolution", c.gated_delta_net.n_channels(), c.gated_delta_net.conv_size, 0.0f,
        0.5f);
  m.add(block + "decay", c.gated_delta_net.n_value_heads, 1, -0.5f, 0.1f);
  m.add(block + "decay_bias", c.gated_delta_net.n_value_heads, 1);
  m.add(block + "norm.weight", c.gated_delta_net.value_dim, 1, 1.0f);
  m.add("layers.1.attn_gate.weight", c.q_size(), c.hidden_size);
  return m;
}

TinyModel oss_model() {
  TinyModel m = moe_model();
  ModelConfig& c = m.config;
  c.architecture = "gpt_oss";
  c.moe.swiglu_limit = 0.5f;
  c.moe.swiglu_alpha = 1.7f;
  for (int i = 0; i < c.n_layers; ++i) {
    m.add("layers." + std::to_string(i) + ".sinks.weight", c.n_heads, 1, 0.0f, 1.0f);
  }
  m.add("layers.0.router.bias", c.moe.n_experts, 1);
  for (int e = 0; e < c.moe.n_experts; ++e) {
    const std::string expert = "layers.0.experts." + std::to_string(e) + ".";
    m.add(expert + "gate.bias", c.moe.intermediate_size, 1);
    m.add(expert + "up.bias", c.moe.intermediate_size, 1);
    m.add(expert + "down.bias", c.hidden_size, 1);
  }
  return m;
}

TinyModel beside_model() {
  TinyModel m = gemma_model();
  m.config.architecture = "gemma4";
  add_experts(m);
  m.config.moe.beside_mlp = true;
  for (const char* name : {"router", "experts", "mlp_out", "experts_out"}) {
    m.add("layers.0." + std::string(name) + "_norm.weight", m.config.hidden_size, 1, 1.0f);
  }
  m.add("layers.0.expert_scales.weight", m.config.moe.n_experts, 1, 1.0f);
  return m;
}

std::vector<LayerStorage> one_storage(const ModelConfig& config) {
  return {{.shape = {config.n_kv_heads, config.head_dim}, .n_layers = config.n_layers}};
}

ModelKv one_group(const ModelConfig& config, KvStorage storage) {
  ModelKv kv;
  kv.storages.push_back(std::move(storage));
  for (int layer = 0; layer < config.n_layers; ++layer) kv.places.push_back({.layer = layer});
  return kv;
}

}  // namespace pb::test
