// What the tests of csrc/cpu share: the targets this CPU runs, numbers, activations, comparisons.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "block_numbers.h"
#include "check.h"
#include "cpu/cpu_backend.h"
#include "cpu/dispatch/dispatch.h"
#include "cpu/weights/pack.h"
#include "sampling/rng.h"

namespace pb::test {

// Whether an emulator runs the program, or a sanitizer looks on, at a small part of the speed: long
// tests take fewer rows and combinations. All of them run where nothing slows them.
#ifdef PB_SLOWED
inline constexpr bool kIsSlowed = true;
#else
inline constexpr bool kIsSlowed = false;
#endif

// Returns the targets that this CPU runs. Slowed tests leave out two whose kernels are the same
// code in other targets: avx512_bf16 has avx512_vnni's products of bytes and avx512 its other
// kernels; avx_vnni differs from avx2 in one instruction.
inline std::vector<const cpu::Kernels*> runnable_targets() {
  std::vector<const cpu::Kernels*> targets;
  for (const cpu::Kernels* target : cpu::compiled_targets()) {
    if (cpu::cpu_supports(*target)) targets.push_back(target);
  }
  const auto has = [&](std::string_view name) {
    return std::ranges::any_of(targets, [&](const auto* target) { return target->name == name; });
  };
  if (kIsSlowed && has("avx512_bf16")) {
    std::erase_if(targets, [](const auto* target) {
      return std::string_view(target->name).ends_with("_vnni");
    });
  }
  return targets;
}

// n numbers, uniform in [-size, size).
inline std::vector<float> numbers(size_t n, uint64_t seed, float size = 1.0f) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) {
    out[i] = size * static_cast<float>(2.0 * uniform(seed, i) - 1.0);
  }
  return out;
}

inline int integer(uint64_t seed, uint64_t index, int below) {
  return static_cast<int>(uniform(seed, index) * below);
}

// 0..n-1 in some order.
inline std::vector<int> shuffled(int n, uint64_t seed) {
  std::vector<int> order(n);
  for (int i = 0; i < n; ++i) order[i] = i;
  for (int i = n - 1; i > 0; --i) std::swap(order[i], order[integer(seed, i, i + 1)]);
  return order;
}

// A weight, and a row of weights, as a matrix of `dtype` holds them.
inline float rounded(float x, DType dtype) {
  return dtype == DType::kBF16 ? bf16_to_f32(f32_to_bf16(x)) : x;
}

// What comes of a row's groups of 32 once they are quantised; `numbers_of` writes those of one.
template <typename NumbersOf>
std::vector<float> quantised_row(std::vector<float> row, DType dtype, NumbersOf numbers_of) {
  const size_t n = row.size();
  row.resize((n + kGroup - 1) / kGroup * kGroup);
  for (size_t i = 0; i < n; i += kGroup) {
    dtype == DType::kInt8 ? numbers_of(quantise_int8(&row[i]), &row[i])
                          : numbers_of(quantise_int4(&row[i]), &row[i]);
  }
  row.resize(n);
  return row;
}

inline std::vector<float> rounded_row(std::vector<float> row, DType dtype) {
  if (is_quantised(dtype)) {
    return quantised_row(std::move(row), dtype,
                         [](const auto& group, float* x) { dequantise(group, x); });
  }
  for (float& x : row) x = rounded(x, dtype);
  return row;
}

inline TensorView view_of(const std::vector<float>& values, int64_t rows, int64_t cols,
                          const std::string& name = "tensor") {
  return {name, values.data(), DType::kF32, rows, cols, cols, 1};
}

inline bool same_bits(const float* a, const float* b, size_t n) {
  return std::memcmp(a, b, n * sizeof(float)) == 0;
}
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && same_bits(a.data(), b.data(), a.size());
}

inline const cpu::ProductKernel& product_of(const cpu::Kernels& target, DType dtype) {
  return cpu::product_kernel(target, dtype);
}

// The numbers that a group stands for on AMX: the scale a little too great and held to 14
// bits, its products with whole numbers cut to bf16. See cpu/kernels/amx/expand-inl.h.
template <typename Group>
void dequantise_cut(Group group, float* x) {
  const auto with_bits = [](float v, uint32_t mask) {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(v) & mask);
  };
  const float scale = with_bits(f16_to_f32(group.scale) * (1.0f + 2.0f / 3.0f / 256.0f), ~0x3ffu);
  group.scale = f32_to_f16(1.0f);
  dequantise(group, x);
  for (int i = 0; i < kGroup; ++i) x[i] = with_bits(x[i] * scale, 0xffff0000u);
}

// rounded_row, and what comes of it where the target multiplies quantised weights as bf16.
inline std::vector<float> multiplied_row(std::vector<float> row, const cpu::Kernels& target,
                                         DType dtype) {
  if (!is_quantised(dtype) || product_of(target, dtype).row != cpu::RowFormat::kBf16) {
    return rounded_row(std::move(row), dtype);
  }
  return quantised_row(std::move(row), dtype,
                       [](const auto& group, float* x) { dequantise_cut(group, x); });
}

// Bytes of a number of a row of activations.
inline size_t element_bytes(const Activations& a, const cpu::Kernels& target) {
  const cpu::RowFormat format = product_of(target, a.dtype).row;
  return format == cpu::RowFormat::kInt8 ? 1 : format == cpu::RowFormat::kBf16 ? 2 : 4;
}

inline void write_activations(Activations& a, const cpu::Kernels& target, int row,
                              const float* values) {
  cpu::RowOut out;
  out.format = product_of(target, a.dtype).row;
  out.numbers = a.data.as<std::byte>() + row * a.row_stride * element_bytes(a, target);
  if (a.groups) out.groups = a.groups.as<cpu::RowGroup>() + row * a.group_stride;
  target.copy(values, out, a.cols);
}

// Rows of x as products take them, in that order.  x (any, n_in)
inline Activations make_activations(Backend& backend, const cpu::Kernels& target,
                                    const std::vector<float>& x, int n_in, DType dtype,
                                    const std::vector<int>& rows) {
  Activations a = backend.make_activations(static_cast<int>(rows.size()), n_in, dtype);
  for (size_t i = 0; i < rows.size(); ++i) {
    write_activations(a, target, static_cast<int>(i),
                      x.data() + static_cast<size_t>(rows[i]) * n_in);
  }
  return a;
}

// Row `row` in f32, its padding included.
inline std::vector<float> read_activations(const Activations& a, const cpu::Kernels& target,
                                           int row) {
  const size_t size = element_bytes(a, target);
  std::vector<float> out(a.row_stride);
  const std::byte* from = a.data.as<std::byte>() + row * a.row_stride * size;
  for (int64_t i = 0; i < a.row_stride; ++i) {
    if (size == 1) {
      const int64_t group = row * a.group_stride + i / kGroup;
      const bool exists = i / kGroup < a.group_stride;
      const float scale = exists ? a.groups.as<cpu::RowGroup>()[group].scale : 0.0f;
      out[i] = scale * static_cast<float>(static_cast<int8_t>(from[i]));
    } else if (size == 2) {
      uint16_t half;
      std::memcpy(&half, from + i * size, size);
      out[i] = bf16_to_f32(half);
    } else {
      std::memcpy(&out[i], from + i * size, size);
    }
  }
  return out;
}

// Numbers of the test as operations of the CPU take them.
inline Buffer over(std::vector<float>& values) {
  return {values.data(), values.size() * sizeof(float), nullptr};
}
inline const Buffer over(const std::vector<float>& values) {
  return over(const_cast<std::vector<float>&>(values));
}

// Plans a pass of rows without KV.
inline void plan_rows(Backend& backend, const RowBatch& batch) {
  KvStorage none;
  none.block_size = kAttentionSegment;
  backend.plan(batch, none);
}

// Rows `ids` of a table, added to `to` where there is something.
inline std::vector<float> embedded(Backend& backend, const Matrix& table,
                                   const std::vector<int32_t>& ids, std::vector<float> to = {}) {
  const bool add = !to.empty();
  to.resize(ids.size() * table.n_in);
  Buffer x = over(to);
  plan_rows(
      backend,
      {.n_rows = static_cast<int>(ids.size()), .tokens = ids.data(), .positions = ids.data()});
  add ? backend.embed_add(table, x) : backend.embed(table, 1.0f, x);
  return to;
}

// All rows of a matrix, as embed gives them back.
inline std::vector<float> stored(Backend& backend, const Matrix& m) {
  std::vector<int32_t> ids(m.n_out);
  for (int i = 0; i < m.n_out; ++i) ids[i] = i;
  return embedded(backend, m, ids);
}

inline Matrix make(Backend& backend, const std::vector<TensorView>& parts, DType dtype,
                   std::vector<TensorView> biases = {}) {
  biases.resize(parts.size());
  return backend.place(backend.pack(parts, biases, dtype));
}

// A matrix as a target lays it out, whichever it is.
inline PackedMatrix packed_as(const cpu::TileLayout& layout, const TensorView& view, DType dtype) {
  ThreadPool pool(2);
  const std::array parts = {view};
  const std::array biases = {TensorView{}};
  return cpu::pack_matrix(parts, biases, dtype, layout, pool);
}

// The message of the Error that f throws.
template <typename F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "(nothing thrown)";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace pb::test
