// What kind of decoder-only transformer a checkpoint is. Filled by pybatcher/loading; the
// C++ side trusts nothing and checks every field again in validate().
#pragma once

#include <string>
#include <vector>

namespace pb {

enum class NormKind { kRms, kLayer };
// Rotary positions: how far each pair of a head's elements turns per position, in radians. Pairs
// that do not turn (partial rotary) have 0.
struct RopeConfig {
  std::vector<float> inv_freq;            // (head_dim / 2), scaling already applied
  std::vector<float> long_inv_freq = {};  // instead, past original_positions; empty = no others
  float attention_factor = 1.0f;          // multiplies what turns
  float query_beta = 0.0f;     // q *= 1 + query_beta * log(1 + floor(p / original_positions))
  int original_positions = 0;  // that the model was trained with first; 0 = nothing asks

  // The frequencies for sequences of up to n_positions: never a matter of how long one is by now,
  // which would change the keys that it has.
  const std::vector<float>& frequencies(int n_positions) const {
    return long_inv_freq.empty() || n_positions <= original_positions ? inv_freq : long_inv_freq;
  }
};

enum class Activation { kSilu, kGeluTanh, kGelu };

struct ModelConfig {
  std::string architecture;  // "llama", "gpt2", ...: for messages only
  int vocab_size = 0;
  int hidden_size = 0;
  int n_layers = 0;
  int n_heads = 0;
  int n_kv_heads = 0;  // divides n_heads
  int head_dim = 0;    // even with rope
  int intermediate_size = 0;
  int max_position_embeddings = 0;
  NormKind norm = NormKind::kRms;
  float norm_eps = 1e-5f;
  Activation activation = Activation::kSilu;
  bool gated_mlp = true;             // act(gate) * up, else act(up)
  bool learned_positions = false;    // added to the embedding; else rope
  std::vector<RopeConfig> ropes;     // that layers have; empty where positions are learned
  std::vector<int> layer_ropes;      // (n_layers): an index of ropes; -1 = q and k do not turn
  float attention_scale = 0.0f;      // q.k is multiplied by it
  std::vector<int> sliding_windows;  // (n_layers); 0 = full attention

  int q_size() const { return n_heads * head_dim; }
  int kv_size() const { return n_kv_heads * head_dim; }

  // Throws kModelFormat naming the field, its value and what it may be.
  void validate() const;
};

}  // namespace pb
