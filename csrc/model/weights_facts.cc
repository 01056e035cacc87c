// Facts about loaded weights: their matrices, dtypes and bytes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "model/weights.h"

namespace pb {
namespace {

size_t bytes_of(const Matrix& m) { return m.packed.bytes() + m.bias.bytes() + m.order.bytes(); }
size_t bytes_of(const Norm& n) { return n.weight.values.bytes() + n.bias.values.bytes(); }
template <typename T>
size_t bytes_of(const std::optional<T>& value) {
  return value ? bytes_of(*value) : 0;
}

}  // namespace

void Weights::for_each_matrix(FunctionRef<void(const Matrix&)> visit) const {
  visit(token_embedding);
  if (position_embedding) visit(*position_embedding);
  if (head) visit(*head);
  if (per_layer_embeddings) {
    visit(per_layer_embeddings->embedding);
    visit(per_layer_embeddings->proj);
  }
  for (const LayerWeights& w : layers) {
    for (const Matrix& m : w.qkv) visit(m);
    for (const Matrix& m : w.attn_gate) visit(m);
    visit(w.o);
    if (w.input) {
      visit(w.input->gate);
      visit(w.input->proj);
    }
    for (const Matrix& m : w.gate_up) visit(m);
    if (w.down.n_out > 0) visit(w.down);
    if (w.shared_gate) visit(*w.shared_gate);
    if (!w.experts) continue;
    visit(w.experts->router);
    for (const Matrix& m : w.experts->gate_up.of) visit(m);
    for (const Matrix& m : w.experts->down.of) visit(m);
  }
}

std::vector<DType> Weights::dtypes() const {
  std::map<DType, int64_t> elements;
  for_each_matrix([&](const Matrix& m) { elements[m.dtype] += int64_t{m.n_out} * m.n_in; });
  std::vector<DType> all;
  for (const auto& [dtype, n] : elements) all.push_back(dtype);
  std::ranges::stable_sort(all, std::greater{}, [&](DType dtype) { return elements[dtype]; });
  return all;
}

size_t Weights::bytes() const {
  size_t total = bytes_of(final_norm);
  if (per_layer_embeddings) total += bytes_of(per_layer_embeddings->norm);
  for_each_matrix([&](const Matrix& m) { total += bytes_of(m); });
  for (const LayerWeights& w : layers) {
    total += bytes_of(w.attn_norm) + bytes_of(w.q_norm) + bytes_of(w.k_norm) + bytes_of(w.v_norm) +
             bytes_of(w.attn_post_norm) + bytes_of(w.mlp_norm) + bytes_of(w.mlp_post_norm);
    if (w.input) total += bytes_of(w.input->post_norm);
    if (w.sinks) total += w.sinks->values.bytes();
    if (w.delta) {
      total += w.delta->convolution.values.bytes() + w.delta->decay.values.bytes() +
               w.delta->decay_bias.values.bytes() + bytes_of(w.delta->norm);
    }
    if (w.short_conv) total += w.short_conv->values.bytes();
    if (w.experts) total += w.experts->gate_up.table.bytes() + w.experts->down.table.bytes();
    if (w.experts && w.experts->scales) total += w.experts->scales->values.bytes();
    if (w.experts && w.experts->bias) total += w.experts->bias->values.bytes();
    if (!w.beside) continue;
    total += bytes_of(w.beside->router) + bytes_of(w.beside->experts) +
             bytes_of(w.beside->mlp_out) + bytes_of(w.beside->experts_out);
  }
  return total;
}

}  // namespace pb
