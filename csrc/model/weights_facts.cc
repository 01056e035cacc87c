// Computes facts about loaded weights: their matrices, dtypes and sizes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <type_traits>
#include <vector>

#include "model/weights.h"

namespace pb {
namespace {

using VisitMatrix = FunctionRef<void(const Matrix&)>;

// Calls visit(matrix) for each matrix that the weight contains.
void visit_matrices(const Matrix& m, VisitMatrix visit) {
  if (m.n_out > 0) visit(m);
}
void visit_matrices(const Matrices& all, VisitMatrix visit) {
  for (const Matrix& m : all) visit(m);
}
void visit_matrices(const Experts& experts, VisitMatrix visit) {
  visit_matrices(experts.gate_up.of, visit);
  visit_matrices(experts.down.of, visit);
}
void visit_matrices(const Norm&, VisitMatrix) {}
void visit_matrices(const Vector&, VisitMatrix) {}
void visit_matrices(const Xielu&, VisitMatrix) {}

// Returns the size in bytes of a weight without its matrices.
size_t bytes_of(const Norm& n) { return n.weight.values.bytes() + n.bias.values.bytes(); }
size_t bytes_of(const Vector& v) { return v.values.bytes(); }
size_t bytes_of(const Experts& e) { return e.gate_up.table.bytes() + e.down.table.bytes(); }
size_t bytes_of(const Xielu&) { return sizeof(Xielu); }
size_t bytes_of(const Matrix&) { return 0; }
size_t bytes_of(const Matrices&) { return 0; }

template <typename T>
void visit_matrices(const std::optional<T>& value, VisitMatrix visit) {
  if (value) visit_matrices(*value, visit);
}
template <typename T>
size_t bytes_of(const std::optional<T>& value) {
  return value ? bytes_of(*value) : 0;
}

}  // namespace

void Weights::for_each_matrix(FunctionRef<void(const Matrix&)> visit) const {
  visit_matrices(token_embedding, visit);
  visit_matrices(position_embedding, visit);
  visit_matrices(head, visit);
  if (per_layer_embeddings) {
    visit(per_layer_embeddings->embedding);
    visit(per_layer_embeddings->proj);
  }
  for (const LayerWeights& layer : layers) {
    layer.visit([&](const auto& weight) { visit_matrices(weight, visit); });
  }
  if (tower == nullptr) return;
  visit(tower->patch);
  tower->blocks.for_each_matrix(visit);
  visit_matrices(tower->projector.linears, visit);
  for (const ProjectorWeights& d : tower->deepstack) visit_matrices(d.linears, visit);
}

double Weights::products_of_row(const MoeConfig& moe) const {
  double total = 0.0;
  for (const LayerWeights& layer : layers) {
    layer.visit([&](const auto& weight) {
      double products = 0.0;
      visit_matrices(weight, [&](const Matrix& m) { products += double(m.n_out) * m.n_in; });
      if constexpr (std::is_same_v<std::decay_t<decltype(weight)>, std::optional<Experts>>) {
        if (weight) products *= double(moe.n_experts_per_row) / moe.n_experts;
      }
      total += products;
    });
  }
  return total;
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
  size_t total = bytes_beside();
  for_each_matrix(
      [&](const Matrix& m) { total += m.packed.bytes() + m.bias.bytes() + m.order.bytes(); });
  return total;
}

size_t Weights::bytes_beside() const {
  size_t total = bytes_of(final_norm);
  if (per_layer_embeddings) total += bytes_of(per_layer_embeddings->norm);
  for (const LayerWeights& layer : layers) {
    layer.visit([&](const auto& weight) { total += bytes_of(weight); });
  }
  if (tower != nullptr) total += tower->bytes_beside();
  return total;
}

size_t TowerWeights::bytes_beside() const {
  size_t total = positions.size() * sizeof(float) + blocks.bytes_beside() + bytes_of(pre_norm) +
                 bytes_of(final_norm);
  const auto add = [&](const ProjectorWeights& p) {
    total += bytes_of(p.norm_before) + bytes_of(p.norm_after);
  };
  add(projector);
  for (const ProjectorWeights& d : deepstack) add(d);
  return total;
}

}  // namespace pb
