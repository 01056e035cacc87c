// What tests of CUDA's matrix products share: weights in device memory, products by any kernel, and
// the scalar references.
#pragma once

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "block_numbers.h"
#include "cuda/gemm/gemm_launch.h"
#include "cuda/weights/pack.h"
#include "cuda_dtypes.h"
#include "cuda_fixture.h"
#include "native_weight.h"

namespace pb::test {

using cuda::GemmChoice;
using cuda::GemmKernel;
using cuda::GemmSizes;

// The cases that a test tries: under ThreadSanitizer, which takes fifty times as long and looks for
// races rather than for wrong numbers, only the last one.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kIsSlow = true;
#else
inline constexpr bool kIsSlow = false;
#endif
inline std::vector<int> cases(std::vector<int> all) {
  if (kIsSlow) all.erase(all.begin(), all.end() - 1);
  return all;
}
// Numbers of rows: all up to 70, then some up to 200.
inline std::vector<int> row_counts() {
  if (kIsSlow) return {1, 19, 150};
  std::vector<int> counts;
  for (int n = 1; n <= 200; n += n < 70 ? 1 : 13) counts.push_back(n);
  return counts;
}
inline uint64_t orders() { return n_orders(kIsSlow ? 2 : 12); }

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

// A weight in host memory, as pack_weight makes it.
struct HostWeight {
  cuda::WeightLayout layout;
  std::vector<std::byte> values;
  std::vector<uint16_t> scales;
};
inline HostWeight packed(std::span<const TensorView> parts, int n_out, int n_in, DType dtype) {
  HostWeight w{cuda::weight_layout(n_out, n_in, dtype), {}, {}};
  w.values.resize(w.layout.value_bytes);
  w.scales.resize(w.layout.scale_bytes / sizeof(uint16_t));
  ThreadPool pool(1);
  cuda::pack_weight(parts, w.layout, {w.values, std::as_writable_bytes(std::span(w.scales))}, pool);
  return w;
}
inline HostWeight packed(const std::vector<float>& numbers, int n_out, int n_in, DType dtype) {
  const TensorView view{"w", numbers.data(), DType::kF32, n_out, n_in, n_in, 1};
  return packed({&view, 1}, n_out, n_in, dtype);
}

// A weight and its bias (empty: none) in device memory.
class DeviceWeight {
 public:
  explicit DeviceWeight(const HostWeight& w, const std::vector<float>& bias = {})
      : values_(w.values), scales_(w.scales), bias_(bias) {}

  cuda::WeightPointers pointers() const {
    return {values_.get(), scales_.size() == 0 ? nullptr : scales_.get(),
            bias_.size() == 0 ? nullptr : bias_.get()};
  }

 private:
  DeviceArray<std::byte> values_;
  DeviceArray<uint16_t> scales_;
  DeviceArray<float> bias_;
};

// numbers (n_out, n_in) as products of `dtype` take them: quantised, where they are not yet, and
// rounded to bf16.
inline std::vector<float> rounded(std::vector<float> numbers, int n_in, DType dtype) {
  if (dtype == DType::kF32) return numbers;
  const bool quantises = is_quantised(dtype) && !is_native_only(dtype);
  for (size_t row = 0; quantises && row < numbers.size(); row += n_in) {
    for (int k = 0; k < n_in; k += kGroup) {
      const int n = std::min(kGroup, n_in - k);
      float group[kGroup] = {};
      std::copy_n(&numbers[row + k], n, group);
      dtype == DType::kInt8 ? dequantise(quantise_int8(group), group)
                            : dequantise(quantise_int4(group), group);
      std::copy_n(group, n, &numbers[row + k]);
    }
  }
  for (float& v : numbers) v = bf16_to_f32(f32_to_bf16(v));
  return numbers;
}

// A product: its numbers on the host, as the kernels take them.
struct Problem {
  GemmSizes sizes;
  std::vector<float> x;                        // (n_rows, n_in)
  std::vector<float> w;                        // (n_out, n_in)
  std::vector<float> bias;                     // (n_out), or empty
  std::shared_ptr<const NativeWeight> blocks;  // that w are the values of: of native-only dtypes

  // Normally distributed numbers, or random blocks of native-only dtypes: with n_in rounded
  // up to whole ones.
  static Problem random(GemmSizes sizes, bool has_bias, uint32_t seed) {
    Numbers numbers(seed);
    const bool is_native = is_native_only(sizes.weights);
    if (is_native) sizes.n_in = round_up(sizes.n_in, block_elements(sizes.weights));
    Problem p{sizes, {}, {}, {}, {}};
    p.x = numbers.floats(size_t(sizes.n_rows) * sizes.n_in);
    if (is_native) {
      p.blocks = std::make_shared<NativeWeight>(sizes.n_out, sizes.n_in, sizes.weights, seed);
      p.w = p.blocks->values();
    } else {
      p.w = numbers.floats(size_t(sizes.n_out) * sizes.n_in);
    }
    if (has_bias) p.bias = numbers.floats(sizes.n_out);
    if (sizes.weights != DType::kF32) p.x = rounded(std::move(p.x), sizes.n_in, DType::kBF16);
    return p;
  }
  HostWeight packed_w() const {
    if (!is_native_only(sizes.weights)) return packed(w, sizes.n_out, sizes.n_in, sizes.weights);
    const TensorView view = blocks->view();
    return packed({&view, 1}, sizes.n_out, sizes.n_in, sizes.weights);
  }
  // The first `n_rows` rows, from row `first` on.
  Problem rows(int first, int n_rows) const {
    Problem p = *this;
    p.sizes.n_rows = n_rows;
    p.x.assign(x.begin() + ptrdiff_t(first) * sizes.n_in,
               x.begin() + ptrdiff_t(first + n_rows) * sizes.n_in);
    return p;
  }
};

// A problem in device memory, to be multiplied in many ways.
class Product {
 public:
  explicit Product(const Problem& p)
      : sizes_(p.sizes),
        x_stride_(round_up(p.sizes.n_in, 16)),
        w_(p.packed_w(), p.bias),
        wide_(rows_of(p, sizes_.weights == DType::kF32)),
        narrow_(to_bf16(rows_of(p, sizes_.weights != DType::kF32))) {}

  // y (n_rows, n_out), of n_rows of the problem's. y: what is there before, for Store::kAdd.
  std::vector<float> run(const GemmChoice& choice, int n_rows,
                         const std::vector<float>* y = nullptr) const {
    const size_t n = size_t(n_rows) * sizes_.n_out;
    DeviceArray<float> out = y != nullptr ? DeviceArray<float>(*y) : DeviceArray<float>(n);
    run_into(out, 0, 0, choice, n_rows, y != nullptr ? Store::kAdd : Store::kSet);
    return out.host();
  }
  // All of y (n_rows, stride), whose columns from `first` on are set or added to.
  std::vector<float> run_beside(const GemmChoice& choice, int first, int stride,
                                const std::vector<float>& y, Store store) const {
    DeviceArray<float> out(y);
    run_into(out, first, stride, choice, sizes_.n_rows, store);
    return out.host();
  }
  std::vector<float> run(const GemmChoice& choice) const { return run(choice, sizes_.n_rows); }

  template <typename Params>
  static void launch_one(const cuda::Launch<Params>& l) {
    launch(l.kernel, dim3(l.grid.x, l.grid.y, l.grid.z), dim3(l.threads), l.shared_bytes, l.params);
  }

 private:
  void run_into(DeviceArray<float>& y, int first, int stride, const GemmChoice& choice, int n_rows,
                Store store) const {
    GemmSizes sizes = sizes_;
    sizes.n_rows = n_rows;
    DeviceArray<float> scratch(gemm_scratch_bytes(sizes, choice) / sizeof(float));
    const bool is_f32 = sizes.weights == DType::kF32;
    const cuda::GemmOperands operands{
        .x = is_f32 ? static_cast<const void*>(wide_.get()) : narrow_.get(),
        .x_stride = x_stride_,
        .w = w_.pointers(),
        .y = y.get() + first,
        .scratch = scratch.get(),
        .y_stride = stride};
    launched_kernels().insert(choice.kernel->name);
    if (choice.splits_k) launched_kernels().insert("gemm_finish");
    if (choice.expanded_columns > 0) {
      const cuda::WeightLayout layout = cuda::weight_layout(1, sizes.n_in, sizes.weights);
      launched_kernels().insert(expand_launch(layout, operands.w, 0, 1, scratch.get()).kernel);
    }
    launch_gemm(test_device(), sizes, choice, operands, store);
    test_device().finish();
  }
  // (n_rows, x_stride), zero in its padding; empty unless it is wanted.
  std::vector<float> rows_of(const Problem& p, bool is_wanted) const {
    std::vector<float> rows(is_wanted ? size_t(sizes_.n_rows) * x_stride_ : 0);
    for (int r = 0; is_wanted && r < sizes_.n_rows; ++r) {
      std::copy_n(&p.x[size_t(r) * sizes_.n_in], sizes_.n_in, &rows[size_t(r) * x_stride_]);
    }
    return rows;
  }
  static std::vector<__nv_bfloat16> to_bf16(const std::vector<float>& from) {
    std::vector<__nv_bfloat16> to(from.size());
    for (size_t i = 0; i < from.size(); ++i) to[i] = __float2bfloat16_rn(from[i]);
    return to;
  }

  GemmSizes sizes_;
  int x_stride_;
  DeviceWeight w_;
  DeviceArray<float> wide_;
  DeviceArray<__nv_bfloat16> narrow_;
};

// Every way there is to multiply these sizes: each kernel, k split and not.
inline std::vector<GemmChoice> all_choices(const GemmSizes& sizes) {
  std::vector<GemmChoice> choices;
  for (const GemmKernel& kernel : cuda::gemm_kernels(sizes.weights)) {
    choices.push_back({&kernel, false});
    if (sizes.n_in > cuda::kSegmentK) choices.push_back({&kernel, true});
  }
  return choices;
}

// The same, with the widest tile of each kernel only.
inline std::vector<GemmChoice> widest_choices(const GemmSizes& sizes) {
  std::vector<GemmChoice> choices;
  for (const GemmChoice& choice : all_choices(sizes)) {
    if (choice.kernel->columns >= 64) choices.push_back(choice);
  }
  return choices;
}

inline constexpr MmaModel kModels[] = {MmaModel::kSequential, MmaModel::kAmpere, MmaModel::kHopper};

// The product by the arithmetic that params_gemm.h promises, with products added one by one: the
// bits of MmaModel::kSequential.
inline std::vector<float> chained(const Problem& p, const std::vector<float>* y = nullptr) {
  const std::vector<float> w = rounded(p.w, p.sizes.n_in, p.sizes.weights);
  std::vector<float> out(size_t(p.sizes.n_rows) * p.sizes.n_out);
  for (size_t i = 0; i < out.size(); ++i) {
    const float* x_row = &p.x[i / p.sizes.n_out * p.sizes.n_in];
    const float* w_row = &w[i % p.sizes.n_out * p.sizes.n_in];
    float sum = 0.0f;
    for (int first = 0; first < p.sizes.n_in; first += cuda::kSegmentK) {
      float segment = 0.0f;
      for (int k = first; k < std::min(p.sizes.n_in, first + cuda::kSegmentK); ++k) {
        segment = std::fmaf(x_row[k], w_row[k], segment);
      }
      sum = first == 0 ? segment : sum + segment;
    }
    if (!p.bias.empty()) sum += p.bias[i % p.sizes.n_out];
    out[i] = y != nullptr ? (*y)[i] + sum : sum;
  }
  return out;
}

// Expects that a product leaves alone what is beside its outputs, by every kernel: before and after
// them, at odd places and at even ones.
inline void expect_outputs_beside_others(const GemmSizes& sizes) {
  const Problem p = Problem::random(sizes, true, 41);
  const Product product(p);
  for (const auto& [first, more] : {std::pair(0, 2), {2, 4}, {3, 3}, {1, 0}}) {
    const int stride = first + p.sizes.n_out + more;
    const std::vector<float> before = Numbers(42).floats(size_t(p.sizes.n_rows) * stride);
    for (const Store store : {Store::kSet, Store::kAdd}) {
      std::vector<float> expected = before;
      std::vector<float> own;
      for (int r = 0; r < p.sizes.n_rows; ++r) {
        const auto row = before.begin() + ptrdiff_t(r) * stride + first;
        own.insert(own.end(), row, row + p.sizes.n_out);
      }
      own = chained(p, store == Store::kAdd ? &own : nullptr);
      for (int r = 0; r < p.sizes.n_rows; ++r) {
        std::copy_n(&own[size_t(r) * p.sizes.n_out], p.sizes.n_out,
                    &expected[size_t(r) * stride + first]);
      }
      for (const GemmChoice& choice : widest_choices(p.sizes)) {
        EXPECT(same_bits(product.run_beside(choice, first, stride, before, store), expected));
      }
    }
  }
}

// Expects `y` to be the product within the error of its additions: each of n_in + 3 cuts at most
// 2^-22 of a sum (Ampere's mma keeps 24 bits and cuts twice), a sum of random numbers is about the
// root of their squares, and errors of both signs add as roots of squares too; times 8.
inline void expect_near(const std::vector<float>& y, const Problem& p) {
  const std::vector<float> w = rounded(p.w, p.sizes.n_in, p.sizes.weights);
  for (size_t i = 0; i < y.size(); ++i) {
    const float* x_row = &p.x[i / p.sizes.n_out * p.sizes.n_in];
    const float* w_row = &w[i % p.sizes.n_out * p.sizes.n_in];
    double sum = p.bias.empty() ? 0.0 : p.bias[i % p.sizes.n_out];
    double squares = sum * sum;
    for (int k = 0; k < p.sizes.n_in; ++k) {
      const double product = double{x_row[k]} * w_row[k];
      sum += product;
      squares += product * product;
    }
    const double bound = 8 * 0x1p-22 * std::sqrt(squares) * std::sqrt(p.sizes.n_in + 3.0);
    EXPECT(std::abs(y[i] - sum) <= bound);
  }
}

}  // namespace pb::test
