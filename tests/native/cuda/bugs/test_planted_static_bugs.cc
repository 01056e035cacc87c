// Bugs in kernels with static shared memory. (A program of its own: in programs that have any, the
// race detector cannot be shown the blocks of a launch as unordered.)
#include "attention_with_bugs.cuh"
#include "planted_bugs.h"

namespace pb::test {
namespace {

constexpr PlantedBug kBugs[] = {
    {"attention", nullptr, nullptr, nullptr},
    {"attention_no_barrier_scores", kWrong, kWrong, kRace},
    {"attention_shuffle_orders", nullptr, nullptr, kRace},
    {"attention_static_bounds", nullptr, "AddressSanitizer: global-buffer-overflow", nullptr},
    {"attention_unwritten", kWrong, kWrong, kWrong},
};

bool attention_is_right(const std::string& kernel, Numbers& numbers) {
  const size_t n = 61;
  const size_t dim = cuda::kDim;
  const auto q = numbers.floats(cuda::kQueries * dim);
  const auto keys = numbers.floats(n * dim, 0.2f);
  const auto values = numbers.floats(n * dim);
  std::vector<double> wanted(cuda::kQueries * dim);
  for (size_t query = 0; query < cuda::kQueries; ++query) {
    double sum = 0.0;
    for (size_t i = 0; i < n; ++i) {
      double score = 0.0;
      for (size_t d = 0; d < dim; ++d) score += double{q[query * dim + d]} * keys[i * dim + d];
      sum += std::exp(score);
      for (size_t d = 0; d < dim; ++d) {
        wanted[query * dim + d] += std::exp(score) * values[i * dim + d];
      }
    }
    for (size_t d = 0; d < dim; ++d) wanted[query * dim + d] /= sum;
  }
  const DeviceArray<float> dq(q);
  const DeviceArray<float> dk(keys);
  const DeviceArray<float> dv(values);
  DeviceArray<float> out(wanted.size());
  launch(kernel, dim3(1), dim3(128), 0,
         cuda::AttentionParams{dq.get(), dk.get(), dv.get(), static_cast<int>(n), out.get()});
  return are_close(out.host(), wanted);
}

}  // namespace

const std::span<const PlantedBug> planted_bugs = kBugs;

bool is_right(const std::string& kernel, Numbers& numbers) {
  return attention_is_right(kernel, numbers);
}

}  // namespace pb::test
